// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// A queue of a third party in the place of a limit is not shown as one.
func TestPrivilegedLimitReplaced(t *testing.T) {
	l := netlab.NewT(t, netlab.Options{})
	shell := func(script string) {
		t.Helper()
		if err := l.Node.Do(func() error {
			_, err := netlab.Run("sh", "-ec", script)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	shell("ip link add v0 type veth peer name v0p; ip link set v0 up; ip link set v0p up; tc qdisc add dev v0 root tbf rate 10mbit burst 16k latency 25ms")
	if err := l.Node.Do(func() error {
		return attachments.Open(attachments.DefaultDir).Complete(webRef, "bandwidth", map[string]any{
			"backend": "tbf", "hostIfName": "v0", "hostIfindex": 7, "ingress": map[string]any{"rate": 1_250_000, "burst": 16384},
		})
	}); err != nil {
		t.Fatal(err)
	}
	if v := realJSON[[]limitView](t, l.Node, "bandwidth"); len(v) != 1 || v[0].Error != "" {
		t.Errorf("in force: %+v", v)
	}
	for _, script := range []string{"tc qdisc replace dev v0 root pfifo", "tc qdisc del dev v0 root"} {
		shell(script)
		v := realJSON[[]limitView](t, l.Node, "bandwidth")
		if len(v) != 1 || v[0].Error == "" {
			t.Errorf("%s: %+v", script, v)
		}
		out, _, _ := real(t, l.Node, "bandwidth")
		if !strings.Contains(out, "?") {
			t.Errorf("%s:\n%s", script, out)
		}
	}
}
