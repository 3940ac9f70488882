// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// A way of attaching that the operator asks for and the kernel lacks decides against eBPF at Open, not at the first device.
func TestRequire(t *testing.T) {
	report := func(tcx, clsact Answer) probes {
		return probes{{Name: ProbeTCX, Answer: tcx}, {Name: probeClsact, Answer: clsact}}
	}
	tests := []struct {
		attach      nodeconf.Attach
		tcx, clsact Answer
		missing     int
	}{
		{nodeconf.AttachAuto, AnswerNo, AnswerYes, 0},
		{nodeconf.AttachAuto, AnswerYes, AnswerNo, 0},
		{nodeconf.AttachAuto, AnswerNo, AnswerNo, 1},
		{nodeconf.AttachAuto, AnswerNo, AnswerUnclear, 0},
		{nodeconf.AttachTCX, AnswerNo, AnswerYes, 1},
		{nodeconf.AttachClsact, AnswerYes, AnswerNo, 1},
		{nodeconf.AttachClsact, AnswerNo, AnswerYes, 0},
	}
	for _, tt := range tests {
		tree := &pintree.Tree{Config: nodeconf.Default()}
		tree.Config.Attach = tt.attach
		if got := require(tree, report(tt.tcx, tt.clsact)).missing(); len(got) != tt.missing {
			t.Errorf("%s, tcx %s, clsact %s: missing %v", tt.attach, tt.tcx, tt.clsact, got)
		}
	}
}

// Only a definite no of a requirement decides; unclear does not.
func TestAnswers(t *testing.T) {
	ask := func(err error) func() error { return func() error { return err } }
	report := runProbes([]question{
		{"yes", "", true, ask(nil)},
		{"unclear", "", true, ask(errors.New("no idea"))},
		{"no, not needed", "slower", false, ask(loadapi.No("old kernel"))},
	})
	if len(report.missing()) != 0 {
		t.Errorf("missing: %+v", report.missing())
	}
	if !strings.Contains(report.Reason(), "unclear") || report[2].Consequence != "slower" {
		t.Errorf("%q, %+v", report.Reason(), report)
	}
	report = append(report, question{"needed", noDatapath, true, ask(loadapi.No("%d bits missing", 3))}.run())
	if got := report.Reason(); got != "needed: 3 bits missing" {
		t.Errorf("reason %q", got)
	}
}
