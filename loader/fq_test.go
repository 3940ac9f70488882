// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/nodeid"
)

// Whether the kernel has sch_fq is asked once. A yes holds until the next boot, a no for a while: modules get loaded.
func TestPrivilegedFQIsRemembered(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	// The agent may not ask, so its load leaves the question open.
	s, err := programs.ReadDecision(d.tree)
	e.ok(err)
	for i := range s.Probes {
		if s.Probes[i].Name == programs.ProbeFQ {
			s.Probes[i].Answer = AnswerUnclear
		}
	}
	path, boot := d.tree.Paths.FQ, nodeid.BootID()
	ofLoad, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	e.ok(programs.WriteDecision(d.tree, s))
	e.ok(file.Remove(path))
	has, why := d.HasFQ() // the kernel's answer
	noted, err := os.ReadFile(path)
	e.ok(err)
	if want := boot + " " + why + "\n"; string(noted) != want || has != (why == "") {
		t.Errorf("the note is %q, want %q", noted, want)
	}
	// The load asked before. Its yes is in the decision.
	if want := map[bool]string{false: string(noted)}[has]; string(ofLoad) != want {
		t.Errorf("the note of the load is %q, want %q", ofLoad, want)
	}

	const no = "by the test"
	loaded := pintree.Exists(programs.FQModule)
	for _, tt := range []struct {
		name, note string
		age        time.Duration
		has        bool
		why        string
	}{
		{name: "no", note: boot + " " + no + "\n", has: loaded, why: map[bool]string{false: no}[loaded]},
		{name: "no, nearly too long ago", note: boot + " " + no + "\n", age: programs.RefusalAge - time.Minute, has: loaded, why: map[bool]string{false: no}[loaded]},
		{name: "no, too long ago", note: boot + " " + no + "\n", age: programs.RefusalAge + time.Second, has: has, why: why},
		{name: "no, in the future", note: boot + " " + no + "\n", age: -time.Hour, has: has, why: why},
		{name: "yes", note: boot + " \n", has: true},
		{name: "yes, long ago", note: boot + " \n", age: 1000 * time.Hour, has: true},
		{name: "yes, of another boot", note: "other \n", has: has, why: why},
		{name: "half written", note: boot + " by", has: has, why: why},
		{name: "without an answer", note: boot + "\n", has: has, why: why},
		{name: "empty", has: has, why: why},
	} {
		e.ok(os.WriteFile(path, []byte(tt.note), 0o600))
		then := time.Now().Add(-tt.age)
		e.ok(os.Chtimes(path, then, then))
		if gotHas, gotWhy := d.HasFQ(); gotHas != tt.has || gotWhy != tt.why {
			t.Errorf("%s: %v, %q, want %v, %q", tt.name, gotHas, gotWhy, tt.has, tt.why)
		}
	}
	e.ok(d.Unload(e.ctx))
	if pintree.Exists(path) {
		t.Error("the note outlives the datapath")
	}
}
