// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/helperproc"
	"github.com/sluice-cni/sluice/pkg/sysctlallow"
	"github.com/sluice-cni/sluice/pkg/sysctlallow/match"
)

func conf(keys string) []byte {
	return []byte(`{"cniVersion":"1.1.0","name":"n","type":"tuning"` + keys + `}`)
}

func TestMACPrecedence(t *testing.T) {
	t.Parallel()
	const m1, m2, m3, m4 = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03", "02:00:00:00:00:04"
	tests := []struct{ name, keys, args, want string }{
		{"none", ``, "", ""},
		{"configuration", `,"mac":"` + m1 + `"`, "", m1},
		{"CNI_ARGS over configuration", `,"mac":"` + m1 + `"`, "MAC=" + m2, m2},
		{"CNI_ARGS without one", `,"mac":"` + m1 + `"`, "IgnoreUnknown=1;MAC=", m1},
		{"runtimeConfig over CNI_ARGS", `,"mac":"` + m1 + `","runtimeConfig":{"mac":"` + m3 + `"}`, "MAC=" + m2, m3},
		{"the last one alone has to be valid", `,"mac":"placeholder","runtimeConfig":{"mac":"placeholder"},"args":{"cni":{"mac":"` + m4 + `"}}`, "MAC=placeholder", m4},
		{"args.cni over all", `,"mac":"` + m1 + `","runtimeConfig":{"mac":"` + m3 + `"},"args":{"cni":{"mac":"` + m4 + `"}}`, "MAC=" + m2, m4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w, err := parse(conf(tt.keys), "c", tt.args, "eth0")
			if err != nil {
				t.Fatal(err)
			}
			if got := w.mac.String(); got != tt.want {
				t.Errorf("mac %q, want %q", got, tt.want)
			}
		})
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	w, err := parse(conf(`,"sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1","net.core.somaxconn":"500"},"mtu":1400,"promisc":true,
		"allmulti":false,"txQLen":10,"args":{"cni":{"sysctl":{"net.core.somaxconn":"600","net/ipv4/ip_forward":"1"},"mtu":1300,"promisc":false}}`),
		"c", "", "net1.5")
	if err != nil {
		t.Fatal(err)
	}
	want := []sysctlPair{
		{"net/ipv4/ip_forward", "net/ipv4/ip_forward", "1"}, // of all devices: first
		{"net.core.somaxconn", "net/core/somaxconn", "600"},
		{"net.ipv4.conf.IFNAME.arp_filter", "net/ipv4/conf/net1.5/arp_filter", "1"},
	}
	if d := cmp.Diff(want, w.sysctls, cmp.AllowUnexported(sysctlPair{})); d != "" {
		t.Errorf("sysctls (-want +got):\n%s", d)
	}
	if w.mtu != 1300 || w.promisc || w.allMulti == nil || *w.allMulti || *w.txQLen != 10 {
		t.Errorf("mtu %d promisc %v allmulti %v txQLen %v", w.mtu, w.promisc, w.allMulti, w.txQLen)
	}
}

// Upstream panics here.
func TestSysctlOnlyInArgs(t *testing.T) {
	t.Parallel()
	w, err := parse(conf(`,"args":{"cni":{"sysctl":{"net.core.somaxconn":"600"}}}`), "c", "", "eth0")
	if err != nil || len(w.sysctls) != 1 {
		t.Fatalf("%v, %v", w, err)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, keys, args string
		code             uint
		words            []string
	}{
		{"not below net", `,"sysctl":{"kernel.pid_max":"1"}`, "", 7, []string{"sysctl", "kernel.pid_max"}},
		{"twice", `,"sysctl":{"net.core.somaxconn":"1","net.core.somaxconn":"2"}`, "", 7, []string{"net.core.somaxconn", "duplicated"}},
		{"twice in args", `,"args":{"cni":{"sysctl":{"net.a":"1","net.a":"2"}}}`, "", 7, []string{"args.cni.sysctl", "net.a"}},
		{"two spellings", `,"sysctl":{"net.a.b":"1","net/a/b":"2"}`, "", 7, []string{"net/a/b", "net.a.b"}},
		{"sysctl is no object", `,"sysctl":[]`, "", 6, []string{"sysctl"}},
		{"sysctl value is a number", `,"sysctl":{"net.a":1}`, "", 6, []string{"sysctl"}},
		{"mac", `,"mac":"xx"`, "", 7, []string{"mac", "xx"}},
		{"mac in CNI_ARGS", ``, "MAC=xx", 7, []string{"CNI_ARGS MAC", "xx"}},
		{"mac in runtimeConfig", `,"runtimeConfig":{"mac":"01:00:5e:00:00:01"}`, "", 7, []string{"runtimeConfig.mac", "01:00:5e:00:00:01"}},
		{"unknown CNI_ARGS", ``, "FOO=1", 4, []string{"FOO"}},
		{"mtu", `,"mtu":-1`, "", 7, []string{"mtu", "-1"}},
		{"mtu in args", `,"args":{"cni":{"mtu":-2}}`, "", 7, []string{"args.cni.mtu", "-2"}},
		{"mtu too big", `,"mtu":4294968696`, "", 7, []string{"mtu", "4294968696"}},
		{"txQLen too big", `,"args":{"cni":{"txQLen":4294967301}}`, "", 7, []string{"args.cni.txQLen", "4294967301"}},
		{"txQLen", `,"txQLen":-5`, "", 7, []string{"txQLen", "-5"}},
		{"dataDir", `,"dataDir":"here"`, "", 7, []string{"dataDir", "here"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := parse(conf(tt.keys), "c", tt.args, "eth0")
			if err == nil {
				t.Fatal("no error")
			}
			e := cnierr.From(err)
			if e.Code != tt.code {
				t.Errorf("code %d, want %d: %v", e.Code, tt.code, e)
			}
			for _, word := range tt.words {
				if !strings.Contains(e.Msg, word) {
					t.Errorf("message %q does not name %q", e.Msg, word)
				}
			}
		})
	}
}

func TestAllowlist(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := &plugin{Deps{Allowlist: dir + "/allowlist.conf", Match: match.Match}}
	somaxconn := []sysctlPair{{given: "net.core.somaxconn"}}
	if err := p.allowed(t.Context(), somaxconn); err != nil {
		t.Errorf("without a file: %v", err)
	}
	write(t, p.Allowlist, "\n^net.core\\.\nrp_filter$\n")
	if err := p.allowed(t.Context(), append(somaxconn, sysctlPair{given: "net.ipv4.conf.IFNAME.rp_filter"})); err != nil {
		t.Errorf("allowed: %v", err)
	}
	err := p.allowed(t.Context(), []sysctlPair{{given: "net.ipv4.ip_forward"}})
	var e *cnierr.Error
	if !errors.As(err, &e) || cnierr.From(err).Code != cnierr.CodeConfig {
		t.Errorf("not on the list: %v", err)
	}
	write(t, p.Allowlist, "\n^net\n(")
	if err := p.allowed(t.Context(), somaxconn); err == nil || !strings.Contains(err.Error(), "line 3") || cnierr.From(err).Code != cnierr.CodeConfig {
		t.Errorf("bad expression: %v", err)
	}
	write(t, p.Allowlist, "\n")
	if err := p.allowed(t.Context(), somaxconn); err == nil || !strings.Contains(err.Error(), "somaxconn") {
		t.Errorf("an empty list: %v", err)
	}
	p.Match = func(context.Context, sysctlallow.Order) (sysctlallow.Answer, error) {
		return sysctlallow.Answer{}, helperproc.ErrMissing
	}
	if err := p.allowed(t.Context(), somaxconn); !errors.Is(err, helperproc.ErrMissing) {
		t.Errorf("nobody to ask: %v", err)
	}
}
