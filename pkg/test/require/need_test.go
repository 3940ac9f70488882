// SPDX-License-Identifier: Apache-2.0

package require

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// recorder is a test that remembers how it was ended.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper()               {}
func (r *recorder) Skip(args ...any)      { r.skipped = args[0].(string); runtime.Goexit() }
func (r *recorder) Fatalf(string, ...any) { r.failed = "failed"; runtime.Goexit() }

// run gives f a recorder, on a goroutine that f may end.
func run(f func(t testing.TB)) *recorder {
	r, done := &recorder{}, make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r
}

func TestPrivilegedFeature(t *testing.T) {
	tests := []struct {
		name            string
		err             error
		skipped, failed string
	}{
		{"yes", nil, "", ""},
		{"no", ErrMissing, "missing feature: x", ""},
		{"no, wrapped", errors.Join(errors.New("why"), ErrMissing), "missing feature: x", ""},
		{"unclear", unix.EPERM, "", "failed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := run(func(t testing.TB) { Feature(t, "x", func() error { return tt.err }) })
			if r.skipped != tt.skipped || r.failed != tt.failed {
				t.Errorf("skipped %q, failed %q", r.skipped, r.failed)
			}
		})
	}
}

// A test that was not asked for says which command runs it.
func TestAsked(t *testing.T) {
	for asked, want := range map[bool]string{true: "", false: "left to: make runtimes"} {
		if r := run(func(t testing.TB) { Asked(t, asked, "make runtimes") }); r.skipped != want || r.failed != "" {
			t.Errorf("asked %v: skipped %q, want %q; failed %q", asked, r.skipped, want, r.failed)
		}
	}
}

// What no kernel has is missing; what every kernel that runs Sluice has is there.
func TestPrivilegedKnownAnswers(t *testing.T) {
	tests := []struct {
		name string
		ask  func(t testing.TB)
		want string
	}{
		{"no link", func(t testing.TB) { Link(t, "nosuchkind") }, "missing feature: link nosuchkind"},
		{"veth", func(t testing.TB) { Link(t, "veth") }, ""},
		{"macvlan", func(t testing.TB) { Link(t, "macvlan") }, ""},
		{"no qdisc", func(t testing.TB) { Qdisc(t, "nosuchkind") }, "missing feature: qdisc nosuchkind"},
		{"clsact", func(t testing.TB) { Qdisc(t, "clsact") }, ""},
		{"tbf", func(t testing.TB) { Qdisc(t, "tbf") }, ""},
		{"no rule", func(t testing.TB) {
			IPTables(t, "none", "iptables", "-A", "FORWARD", "-j", "NOSUCHTARGET")
		}, "missing feature: none"},
		{"inet", func(t testing.TB) { NFTFamily(t, "inet") }, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if r := run(tt.ask); r.skipped != tt.want || r.failed != "" {
				t.Errorf("skipped %q, want %q; failed %q", r.skipped, tt.want, r.failed)
			}
		})
	}
}

// The others must at least know.
func TestPrivilegedDefinite(t *testing.T) {
	for _, kind := range []string{"dummy", "ifb", "ipvlan", "macvtap", "netkit", "tun", "vlan", "vrf", "vxlan"} {
		r := run(func(t testing.TB) { Link(t, kind) })
		t.Logf("link %s: %q", kind, r.skipped)
		if r.failed != "" {
			t.Errorf("link %s: no definite answer", kind)
		}
	}
	for _, kind := range []string{"fq", "fq_codel", "htb", "ingress", "netem", "noqueue", "prio"} {
		r := run(func(t testing.TB) { Qdisc(t, kind) })
		t.Logf("qdisc %s: %q", kind, r.skipped)
		if r.failed != "" {
			t.Errorf("qdisc %s: no definite answer", kind)
		}
	}
	for name, ask := range map[string]func(testing.TB){"tcx": TCX, "fib source": FIBSource, "test run": TestRunIngress, "vlan_filtering": VLANFiltering, "sctp": SCTP} {
		r := run(ask)
		t.Logf("%s: %q", name, r.skipped)
		if r.failed != "" {
			t.Errorf("%s: no definite answer", name)
		}
	}
}
