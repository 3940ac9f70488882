// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/loadertest"
	"github.com/sluice-cni/sluice/pkg/attachments"
)

func TestBandwidth(t *testing.T) {
	ref := attachments.ID{Network: "net", ContainerID: "3f1c", IfName: "eth0"}
	data, err := json.Marshal(map[string]any{
		"backend": "edt", "reason": "configured", "hostIfName": "veth1", "hostIfindex": 7,
		"ingress": map[string]any{"rate": 1_250_000, "burst": 16384, "derived": true}, "egress": map[string]any{"rate": 125_000, "burst": 16384},
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &fakeNode{
		records: []*attachments.Record{{ID: ref, Plugins: map[string]attachments.Section{"bandwidth": {State: attachments.StateDone, Data: data}}}},
		dp: loadertest.Datapath{State: &loader.Status{}, Limits: []loader.RateLimitStatus{
			{Owner: ref.Owner(), Bytes: 3 << 20, Drops: 4, Backlog: 20 * time.Millisecond},
			{Owner: ref.Owner(), Egress: true, Police: true, Bytes: 9 << 20, Drops: 7},
			{Owner: ref.Owner(), Egress: true, Bytes: 5 << 10, Drops: 1},
			{Owner: 1, Bytes: 1},
		}},
	}
	out, errs, status := runTool(t, n, 0, "bandwidth", "-w")
	want := []string{
		"OWNER DIRECTION BACKEND RATE BURST DEVICE BYTES DROPS QUEUE REASON",
		"net/3f1c/eth0 ingress edt 10Mbit/s 131kbit* veth1 3.0M 4 20ms configured",
		"net/3f1c/eth0 egress edt 1.0Mbit/s 131kbit pod:eth0 5.0K 8 0ms configured",
	}
	var got []string
	for line := range strings.Lines(out) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") || status != 0 || errs != "" {
		t.Errorf("status %d, stderr %q, output\n%s", status, errs, out)
	}

	var views []limitView
	out, _, _ = runTool(t, n, 0, "bandwidth", "-o", "json", "--container", "3f")
	if err := json.Unmarshal([]byte(out), &views); err != nil || len(views) != 2 || views[1].RateBits != 1_000_000 || !views[0].BurstDerived ||
		views[0].Policed || !views[1].Policed || views[1].Bypassed != 7 || views[1].Drops != 1 {
		t.Errorf("%v: %s", err, out)
	}
	wantSnakeCase(t, out)
	if out, _, status := runTool(t, &fakeNode{}, 0, "bandwidth"); status != 0 || !strings.Contains(out, "No pod is limited") {
		t.Errorf("nothing loaded: status %d, %q", status, out)
	}
}
