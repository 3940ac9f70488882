// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-cni/sluice/pkg/log"
)

// sink keeps Events, or refuses them.
type sink struct {
	mu     sync.Mutex
	down   bool
	events []*corev1.Event
}

func (s *sink) CreateEvent(_ context.Context, e *corev1.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return errors.New("away")
	}
	s.events = append(s.events, e)
	return nil
}

func (s *sink) set(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

func (s *sink) reasons() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		out = append(out, e.Reason)
	}
	return out
}

// A problem is told once, also one that the API server did not take at first, and one that is gone by then is not.
func TestProblem(t *testing.T) {
	t.Parallel()
	s := &sink{down: true}
	r := New(s, "node-a", log.NewNop())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	for range 3 {
		r.Problem("routes", RoutesFailed, "one\ntwo")
		r.Problem("install", InstallFailed, "x")
		r.Problem("nodes", NoAnswer, "away")
	}
	if got := r.Problems(); len(got) != 3 || got[2] != "routes: RoutesFailed: one two" {
		t.Errorf("problems: %q", got)
	}
	time.Sleep(50 * time.Millisecond)
	r.Clear("install")
	s.set(false)
	for end := time.Now().Add(20 * time.Second); len(s.reasons()) == 0 && time.Now().Before(end); {
		time.Sleep(20 * time.Millisecond)
	}
	time.Sleep(100 * time.Millisecond)
	if got := s.reasons(); len(got) != 1 || got[0] != string(RoutesFailed) {
		t.Errorf("Events: %v", got)
	}
	cancel()
	<-done
	e := s.events[0]
	if e.InvolvedObject.Kind != "Node" || e.InvolvedObject.Name != "node-a" || e.InvolvedObject.UID != "node-a" || e.Message != "one two" {
		t.Errorf("Event: %+v", e)
	}
	var b strings.Builder
	if err := r.WriteMetrics(&b); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`sluice_agent_problems_total{reason="RoutesFailed"} 1`, `sluice_agent_problems_total{reason="InstallFailed"} 1`, `sluice_agent_problem{reason="InstallFailed"} 0`,
		`sluice_agent_problem{reason="RoutesFailed"} 1`, `sluice_agent_reinstalls_total 0`,
	} {
		if !strings.Contains(b.String(), line+"\n") {
			t.Errorf("no %q in\n%s", line, b.String())
		}
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"a\x1b[31mb\x00": "a[31mb", "ä\xff": "ä", strings.Repeat("ä", 600): strings.Repeat("ä", 498) + "…"} {
		if got := clean(in); got != want || !utf8.ValidString(got) {
			t.Errorf("%q: %q", in, got)
		}
	}
}
