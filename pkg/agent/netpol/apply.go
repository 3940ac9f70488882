// SPDX-License-Identifier: Apache-2.0

package netpol

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// The steps of which problems are reported.
const (
	tablesStep = "network policies"
	fieldsStep = "fields of network policies"
	closedStep = "closed pods"
)

// commit applies what has changed, as soon as the lists are complete.
func (r *run) commit(ctx context.Context) {
	if !r.listed() {
		r.waiting = 0
		return
	}
	if r.tables == nil && time.Now().Before(r.retryAt) {
		// The snapshot will have it. The engine must not gather changes for as long as a node has no programs, and no table that is
		// written from now on has numbers of before.
		r.engine.Settled(r.engine.Commit())
		r.waiting, r.checked = 0, false
		return
	}
	began := r.since
	if r.waiting == 0 {
		began = time.Now()
	}
	r.waiting = 0
	if r.tables != nil {
		b := r.engine.Commit()
		err := r.apply(ctx, b)
		if err == nil {
			r.applied(b, began)
			return
		}
		r.failed(ctx, err)
	}
	b, err := r.begin(ctx)
	if err != nil {
		r.failed(ctx, err)
		r.retryAt = time.Now().Add(r.retry)
		r.retry = min(2*r.retry, longestRetry)
		return
	}
	if !r.failing.IsZero() {
		r.Report.Clear(tablesStep)
	}
	r.failing, r.failure, r.retry, r.retryAt, r.settling = time.Time{}, nil, shortestRetry, time.Time{}, nil
	r.applied(b, began)
	r.Log.Info("network policies are in force", log.Int("pods", r.engine.Stats().Pods), log.Int("local", r.engine.Stats().Local), log.Int("changes", len(b.Changes)))
}

func (r *run) apply(ctx context.Context, b networkpolicy.Batch) error {
	if len(b.Changes) == 0 {
		return nil
	}
	return r.tables.Apply(ctx, b.Changes)
}

// begin writes everything to new tables, and then has the old ones forgotten.
func (r *run) begin(ctx context.Context) (networkpolicy.Batch, error) {
	tables, err := r.Begin(ctx)
	if err != nil {
		return networkpolicy.Batch{}, err
	}
	b := r.engine.Snapshot()
	if err := tables.Apply(ctx, b.Changes); err != nil {
		return b, err
	}
	if err := tables.Finish(ctx); err != nil {
		return b, err
	}
	r.tables = tables
	return b, nil
}

func (r *run) applied(b networkpolicy.Batch, began time.Time) {
	r.checked = false
	if len(b.Changes) == 0 {
		return
	}
	now := time.Now()
	r.metrics.applied(now, now.Sub(began), len(b.Changes))
	b.Changes = nil // they may be many
	r.settling = append(r.settling, settling{b, now})
}

// failed has the next commit begin with empty tables: what the ones in force have is not known. They stay until then.
func (r *run) failed(ctx context.Context, err error) {
	if r.tables = nil; ctx.Err() != nil {
		return
	}
	r.metrics.count(&r.metrics.failures)
	if r.failing.IsZero() {
		r.failing = time.Now()
		r.Log.Warn("network policies cannot be applied, the next try writes all of them", log.Error(err))
	}
	r.failure = err
}

// settle tells the engine of the batches that were applied long enough ago.
func (r *run) settle(now time.Time) {
	done := 0
	for done < len(r.settling) && now.Sub(r.settling[done].applied) >= settleTime {
		done++
	}
	if done > 0 {
		r.engine.Settled(r.settling[done-1].batch)
		r.settling = slices.Delete(r.settling, 0, done)
	}
}

// check reports what is wrong now. A pod has to be closed twice before it counts: the news of its namespace may be on its way.
func (r *run) check() {
	if !r.failing.IsZero() && time.Since(r.failing) >= patience {
		r.Report.Problem(tablesStep, report.NetworkPolicyFailed, fmt.Sprintf("what was in force stays, and new pods wait: %v", r.failure))
	}
	if r.checked || !r.listed() {
		return
	}
	now := r.engine.Problems()
	closed := slices.DeleteFunc(slices.Clone(now), func(p networkpolicy.Problem) bool { return !r.suspects[p.UID] })
	r.suspects = map[string]bool{}
	for _, p := range now {
		r.suspects[p.UID] = true
	}
	r.checked = len(closed) == len(now)
	r.metrics.state(r.engine.Stats(), len(closed), len(r.bad))
	r.problem(closedStep, report.PodsClosed, "pods of this node admit nothing, because their policies cannot be kept", len(closed), func() string {
		lines := make([]string, 0, len(closed))
		for _, p := range closed {
			lines = append(lines, r.names[p.UID]+": "+p.Why)
		}
		return slices.Min(lines)
	})
	r.problem(fieldsStep, report.NetworkPolicyUnsupported, "NetworkPolicies have parts that cannot be used and accept nothing", len(r.bad), func() string {
		name := slices.Min(slices.Collect(maps.Keys(r.bad)))
		return name + ": " + strings.ReplaceAll(r.bad[name], "\n", "; ")
	})
}

// problem states a problem that n things have, with the first of them.
func (r *run) problem(step string, reason report.Reason, what string, n int, first func() string) {
	if n == 0 {
		r.Report.Clear(step)
		return
	}
	r.Report.Problem(step, reason, fmt.Sprintf("%d %s; the first: %s", n, what, first()))
}
