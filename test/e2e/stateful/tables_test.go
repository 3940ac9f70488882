// SPDX-License-Identifier: Apache-2.0

package stateful

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// Lines as Linux 6.18 prints them.
func TestParseEntry(t *testing.T) {
	for line, want := range map[string]string{
		"ipv4     2 tcp      6 431999 ESTABLISHED src=192.0.2.2 dst=192.0.2.1 sport=51000 dport=8080 src=10.1.0.2 dst=192.0.2.2 sport=80 dport=51000 [ASSURED] mark=0 zone=0 use=2":             "192.0.2.2:51000 established assured, days",
		"ipv4     2 tcp      6 2 SYN_RECV src=192.0.2.2 dst=10.1.0.2 sport=60052 dport=80 src=10.1.0.2 dst=192.0.2.2 sport=80 dport=60052 mark=7 zone=0 use=2":                                  "192.0.2.2:60052 opening, seconds",
		"ipv6     10 tcp      6 118 TIME_WAIT src=2001:db8:1::2 dst=2001:db8:1::1 sport=51000 dport=8080 src=fd00:10:1::2 dst=2001:db8:1::2 sport=80 dport=51000 [ASSURED] mark=0 zone=0 use=2": "[2001:db8:1::2]:51000 closed",
		"ipv4     2 udp      17 29 src=192.0.2.2 dst=10.1.0.2 sport=5000 dport=80 [UNREPLIED] src=10.1.0.2 dst=192.0.2.2 sport=80 dport=5000 mark=0 zone=5 use=2":                               "192.0.2.2:5000 open unreplied, a minute",
	} {
		e, ok := e2etest.ParseTracked(line)
		if got := e.Original.String() + " " + kind(e); !ok || got != want {
			t.Errorf("%s\n  is read as %q, want %q", line, got, want)
		}
	}
	if e, ok := e2etest.ParseTracked("ipv4     2 unknown  2 597 src=0.0.0.0 dst=224.0.0.22 [UNREPLIED] src=224.0.0.22 dst=0.0.0.0 mark=0 zone=0 use=2"); ok {
		t.Errorf("IGMP is read as %+v", e)
	}
}

// The suite stays as large as it is meant to be, and each ruleset can be named.
func TestRulesets(t *testing.T) {
	names := map[string]bool{}
	for _, r := range rulesets() {
		if names[r.name] {
			t.Errorf("two rulesets are called %q", r.name)
		}
		names[r.name] = true
		if len(r.atOnce)+len(r.then) == 0 {
			t.Errorf("nothing is done with %q", r.name)
		}
	}
	if len(names) < 60 {
		t.Errorf("%d rulesets, want 60", len(names))
	}
}
