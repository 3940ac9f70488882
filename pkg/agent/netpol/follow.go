// SPDX-License-Identifier: Apache-2.0

package netpol

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sluice-cni/sluice/pkg/agent/kube"
	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/log"
)

const (
	// shortestWait doubles after each request that failed, up to longestWait.
	shortestWait = 100 * time.Millisecond
	longestWait  = 10 * time.Second
	// shortWatch is how long a watch lasts at least that was one.
	shortWatch = time.Second
)

// follower follows one resource.
type follower struct {
	*run
	resource kube.Resource
	version  string // of what was sent; empty: a list is due
	failing  time.Time
}

// follow lists a resource, and then watches it until ctx ends. A watch that ends goes on from the last version. Only if the API server
// does not know that any more is there another list, and what it does not have is forgotten when it is complete: until then the tables
// stay as they are.
func (r *run) follow(ctx context.Context, resource kube.Resource) {
	f := &follower{run: r, resource: resource}
	wait := shortestWait
	for ctx.Err() == nil {
		began, step := time.Now(), f.watch
		if f.version == "" {
			step = f.list
		}
		watched := f.version != ""
		err := step(ctx)
		if ctx.Err() != nil {
			return
		}
		if f.answered(err); err == nil && (!watched || time.Since(began) >= shortWatch) {
			wait = shortestWait
			continue
		}
		sleep(ctx, wait+rand.N(wait)) // jitter, so that nodes do not ask at one time
		wait = min(2*wait, longestWait)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (f *follower) send(ctx context.Context, do func()) {
	select {
	case <-ctx.Done():
	case f.events <- event{time.Now(), do}:
	}
}

func (f *follower) list(ctx context.Context) error {
	in := newSeen()
	version, err := f.Source.List(ctx, f.resource, func(obj runtime.Object) { f.send(ctx, f.change(obj, false, in)) })
	if err != nil {
		return err
	}
	f.send(ctx, func() { f.retain(f.resource, in) })
	f.version = version
	f.metrics.count(&f.metrics.lists)
	return nil
}

func (f *follower) watch(ctx context.Context) error {
	events, err := f.Source.Watch(ctx, f.resource, f.version)
	if err != nil {
		return f.expired(err)
	}
	defer events.Stop()
	f.answered(nil)
	for e := range events.ResultChan() {
		if e.Type == watch.Error {
			return f.expired(apierrors.FromObject(e.Object))
		}
		if e.Type != watch.Bookmark {
			f.send(ctx, f.change(e.Object, e.Type == watch.Deleted, nil))
		}
		if at, err := meta.Accessor(e.Object); err == nil && at.GetResourceVersion() != "" {
			f.version = at.GetResourceVersion()
		}
	}
	return nil
}

// expired has the next step list again if the API server cannot go on from the version.
func (f *follower) expired(err error) error {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsBadRequest(err) {
		f.Log.Info("network policies: the watch cannot go on, everything is listed again", log.String("resource", string(f.resource)), log.Error(err))
		f.version = ""
		return nil
	}
	return err
}

// answered reports an API server that refuses, or that has been silent for a while.
func (f *follower) answered(err error) {
	step := "network policies: " + string(f.resource)
	if err == nil {
		if !f.failing.IsZero() {
			f.failing = time.Time{}
			f.Report.Clear(step)
		}
		return
	}
	if f.failing.IsZero() {
		f.failing = time.Now()
	}
	reason, late := report.NoAnswer, time.Since(f.failing) >= patience
	var status apierrors.APIStatus
	if errors.As(err, &status) && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || late) {
		reason, late = report.NetworkPolicyFailed, true
	}
	if late {
		f.Report.Problem(step, reason, fmt.Sprintf("policies stay as they are: %v", err))
	}
}
