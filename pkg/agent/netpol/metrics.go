// SPDX-License-Identifier: Apache-2.0

package netpol

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// buckets are the upper bounds of the histogram, in seconds.
var buckets = [...]float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5}

// metrics are what the Controller counts. They are safe for concurrent use.
type metrics struct {
	mu       sync.Mutex
	stats    networkpolicy.Stats
	closed   int
	bad      int
	last     time.Time
	lists    int
	failures int
	changes  int
	within   [len(buckets)]int // batches, by bucket
	batches  int
	seconds  float64
}

func (m *metrics) count(counter *int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	*counter++
}

func (m *metrics) applied(now time.Time, took time.Duration, changes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = now
	m.changes += changes
	m.batches++
	m.seconds += took.Seconds()
	for i, limit := range buckets {
		if took.Seconds() <= limit {
			m.within[i]++
		}
	}
}

func (m *metrics) state(s networkpolicy.Stats, closed, bad int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats, m.closed, m.bad = s, closed, bad
}

const prefix = "sluice_agent_networkpolicy_"

// WriteMetrics writes them in the text format of Prometheus.
func (c *Controller) WriteMetrics(w io.Writer) error {
	m := &c.metrics
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	one := func(name, kind, help string, value any) {
		fmt.Fprintf(&b, "# HELP %s%s %s\n# TYPE %s%s %s\n%s%s %v\n", prefix, name, help, prefix, name, kind, prefix, name, value)
	}
	one("pods", "gauge", "Pods of the cluster that policies can name.", m.stats.Pods)
	one("local_pods", "gauge", "Pods of this node that policies can select.", m.stats.Local)
	one("closed_pods", "gauge", "Pods of this node that admit nothing, because their policies cannot be kept.", m.closed)
	one("policies", "gauge", "NetworkPolicies of the cluster.", m.stats.Policies)
	one("unsupported_policies", "gauge", "NetworkPolicies of which a part cannot be used.", m.bad)
	one("open_namespaces", "gauge", "Namespaces whose pods no policy can select.", m.stats.Namespaces)
	one("sets", "gauge", "Sets of policies that pods of this node have.", m.stats.Sets)
	one("classes", "gauge", "Classes of peers.", m.stats.Classes)
	one("points", "gauge", "Questions about a peer that have a bit in each class.", m.stats.Points)
	one("prefixes", "gauge", "Networks that have a class.", m.stats.Prefixes)
	one("changes_total", "counter", "Changes written to the tables.", m.changes)
	one("lists_total", "counter", "Times that all objects of a kind were listed: at the start, and after a gap in a watch.", m.lists)
	one("failures_total", "counter", "Times that the tables could not be written.", m.failures)
	last := 0.0
	if !m.last.IsZero() {
		last = float64(m.last.UnixMilli()) / 1000
	}
	one("last_applied_timestamp_seconds", "gauge", "When a batch was applied last; 0 before the first.", last)
	name := prefix + "apply_seconds"
	fmt.Fprintf(&b, "# HELP %s Time from the first event of a batch to its end in the tables.\n# TYPE %s histogram\n", name, name)
	for i, limit := range buckets {
		fmt.Fprintf(&b, "%s_bucket{le=\"%v\"} %d\n", name, limit, m.within[i])
	}
	fmt.Fprintf(&b, "%s_bucket{le=\"+Inf\"} %d\n%s_sum %v\n%s_count %d\n", name, m.batches, name, m.seconds, name, m.batches)
	_, err := io.WriteString(w, b.String())
	return err
}
