// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/networkpolicy"
)

// What waits for the node agent is on the screen, with how long it has.
func TestStatusNetworkPolicy(t *testing.T) {
	n := newFakeNode()
	known := n.records[0].Owner()
	n.dp.Networked = []loader.NetworkPolicyStatus{
		{Owner: 1}, {Owner: 2, Set: 77}, {Owner: known, Set: networkpolicy.ClosedSet, Closed: 12 * time.Second},
	}
	out, errs, status := runTool(t, n, 0, "status")
	want := "3 attachments, 2 restricted"
	if status != 0 || errs != "" || !strings.Contains(out, want) || !strings.Contains(out, n.records[0].Network+"/") || !strings.Contains(out, "for 12 s") {
		t.Errorf("exit status %d, %q\n%s", status, errs, out)
	}
	out, _, _ = runTool(t, n, 0, "status", "-o", "json")
	if !strings.Contains(out, `"network_policy"`) || !strings.Contains(out, fmt.Sprintf(`"id": "%016x"`, known)) || !strings.Contains(out, `"seconds": 12`) {
		t.Error(out)
	}
}
