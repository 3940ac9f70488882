// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// envKernel is set where the kernel matrix runs the tests, to the series.
const envKernel = "SLUICE_TEST_KERNEL"

// kernelRow is what is predicted of a kernel and all later ones up to the next row.
type kernelRow struct {
	major, minor        int
	tcx, fibSrc, coarse Answer
	skNetns, netkit     Answer
	// uplinks and pods are by what programs hang there when the configuration leaves the choice to us.
	uplinks, pods string
}

// kernelTable is in order. docs/dev/kernels.md shows what the matrix found.
var kernelTable = []kernelRow{
	{5, 10, AnswerNo, AnswerNo, AnswerNo, AnswerNo, AnswerNo, hook.HowClsact, hook.HowClsact},
	{6, 1, AnswerNo, AnswerYes, AnswerYes, AnswerNo, AnswerNo, hook.HowClsact, hook.HowClsact}, // the flag is of 6.7, and stable kernels have taken it over
	{6, 6, AnswerYes, AnswerYes, AnswerYes, AnswerNo, AnswerNo, hook.HowTCX, hook.HowClsact},
	{6, 7, AnswerYes, AnswerYes, AnswerYes, AnswerNo, AnswerYes, hook.HowTCX, hook.HowClsact}, // Debian builds it in
	{6, 15, AnswerYes, AnswerYes, AnswerYes, AnswerYes, AnswerYes, hook.HowTCX, hook.HowClsact},
}

// predicted returns the row of the running kernel.
func predicted() kernelRow {
	row := kernelTable[0]
	for _, r := range kernelTable {
		if bpfsys.KernelAtLeast(r.major, r.minor) {
			row = r
		}
	}
	return row
}

// The loader asks the kernel and not its version, so on the kernels of the matrix, whose answers are known, the answers, the
// backend and the way every program is attached must be the known ones. Elsewhere an answer may be another: a vendor's kernel
// has taken a feature over, or was built without one. What follows from the answers must hold too.
func TestPrivilegedProbesMatchTable(t *testing.T) {
	e := newEnv(t)
	up := e.uplink()
	d := e.open()
	ep := e.pod("pod1", "10.1.0.2/16")
	e.ok(d.Enable(e.ctx, ep, FeatureMasquerade|FeaturePublish))
	s, err := d.Status(e.ctx)
	e.ok(err)
	for _, p := range s.Probes {
		t.Logf("report: probe %s %s", strings.ReplaceAll(p.Name, " ", "_"), p.Answer)
	}
	t.Logf("report: probe backend %s", s.Backend)
	t.Logf("report: probe attach_uplinks %s", s.Attach.Uplinks)
	t.Logf("report: probe attach_pods %s", s.Attach.Pods)
	want := predicted()
	if os.Getenv(envKernel) == "" {
		t.Log("not a kernel of the matrix: its answers are taken as they are")
		want = fromAnswers(want, s.Probes)
	}
	if s.Backend != "ebpf" {
		t.Errorf("backend %s: %s", s.Backend, s.Reason)
	}
	translations := AnswerYes
	if require.AskConntrackBTF() != nil {
		translations = AnswerNo
	}
	for _, p := range s.Probes {
		answer := map[string]Answer{programs.ProbeTranslations: translations, programs.ProbeTCX: want.tcx, programs.ProbeFIBSrc: want.fibSrc, programs.ProbeCoarse: want.coarse, programs.ProbeSkNetns: want.skNetns, programs.ProbeNetkit: want.netkit, programs.ProbeMountNS: AnswerNo, programs.ProbeJIT: AnswerUnclear}[p.Name]
		if answer == "" {
			answer = AnswerYes
		}
		if p.Answer != answer && (os.Getenv(envKernel) != "" || p.Required) {
			t.Errorf("probe %s: %s (%s), the table says %s", p.Name, p.Answer, p.Reason, answer)
		}
	}
	if d := cmp.Diff(AttachModes{Uplinks: want.uplinks, Pods: want.pods}, s.Attach); d != "" {
		t.Errorf("ways of attaching: %s", d)
	}
	if d := cmp.Diff([]string{"from_uplink " + want.uplinks, "to_uplink " + want.uplinks}, hooksOf(e, d, up)); d != "" {
		t.Errorf("attached to the uplink: %s", d)
	}
	if d := cmp.Diff([]string{"from_pod " + want.pods, "to_pod " + want.pods}, hooksOf(e, d, ep.HostIfindex)); d != "" {
		t.Errorf("attached to the pod: %s", d)
	}
}

// fromAnswers is what must follow from what an unknown kernel answered.
func fromAnswers(row kernelRow, report []Probe) kernelRow {
	for _, p := range report {
		if p.Name == programs.ProbeTCX {
			row.tcx, row.uplinks = p.Answer, hook.HowTCX
			if p.Answer == AnswerNo {
				row.uplinks = hook.HowClsact
			}
		}
	}
	return row
}
