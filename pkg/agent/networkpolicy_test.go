// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-cni/sluice/pkg/agent/report"
	"github.com/sluice-cni/sluice/pkg/log"
)

type noSink struct{}

func (noSink) CreateEvent(context.Context, *corev1.Event) error { return nil }

// Policies that nobody enforces are a problem for as long as there are any. An API server that does not answer changes nothing.
func TestUnenforced(t *testing.T) {
	t.Parallel()
	a := &agent{Options: Options{Log: log.NewNop()}, report: report.New(noSink{}, "here", log.NewNop())}
	for i, step := range []struct {
		found bool
		err   error
		want  bool
	}{{false, nil, false}, {true, nil, true}, {false, errors.New("away"), true}, {true, nil, true}, {false, nil, false}, {false, errors.New("away"), false}} {
		a.noteUnenforced(step.found, step.err)
		if got := strings.Contains(strings.Join(a.report.Problems(), "\n"), "NetworkPolicyNotEnforced"); got != step.want {
			t.Errorf("step %d: reported %t: %q", i, got, a.report.Problems())
		}
	}
}
