// SPDX-License-Identifier: Apache-2.0

package iptables

import "testing"

// The choice of tables goes by what third parties use. Rules of Sluice's own do not make a variant look used.
func TestThirdPartyRules(t *testing.T) {
	t.Parallel()
	own := "*filter\n:FORWARD DROP [0:0]\n"
	for _, r := range append(lastRules([]string{"cni0"}, 0x1000), answerRules(0x1000)...) {
		own += "-A FORWARD " + r + "\n"
	}
	if n := parseTable(own + "COMMIT\n").count(true); n != 0 {
		t.Errorf("%d of our own rules count as a third party's", n)
	}
	if n := parseTable(own + "-A FORWARD -j DROP\nCOMMIT\n").count(true); n != 1 {
		t.Errorf("%d rules of a third party, not 1", n)
	}
}
