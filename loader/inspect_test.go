// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/programs"
)

// A survey gives the answers of a load and leaves a node as it is.
func TestPrivilegedSurvey(t *testing.T) {
	e := newEnv(t)
	before, _, err := Survey(e.ctx, e.o)
	e.ok(err)
	var st unix.Statfs_t
	e.ok(unix.Statfs(e.o.Config.BPFFS, &st))
	if st.Type == unix.BPF_FS_MAGIC {
		t.Error("a survey mounted the bpffs")
	}
	if _, err := os.Stat(e.o.RunDir); err == nil {
		t.Error("a survey made the run directory")
	}
	d := e.open()
	s, err := d.Status(e.ctx)
	e.ok(err)
	after, cgroup, err := Survey(e.ctx, e.o)
	e.ok(err)
	if cgroup != e.o.Config.CgroupRoot {
		t.Errorf("cgroup root %q, want %q", cgroup, e.o.Config.CgroupRoot)
	}
	for i, p := range after {
		if p != s.Probes[i] {
			t.Errorf("after the load the survey says %+v, the load said %+v", p, s.Probes[i])
		}
		if want := before[i]; p.Name != programs.ProbeBPFFS && p != want {
			t.Errorf("before the load %+v, after it %+v", want, p)
		} else if p.Name == programs.ProbeBPFFS && (want.Answer != AnswerUnclear || p.Answer != AnswerYes) {
			t.Errorf("bpffs: before the load %+v, after it %+v", want, p)
		}
	}
}
