// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"testing"

	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

func TestHostName(t *testing.T) {
	ref := attachments.ID{Network: "n", ContainerID: "c", IfName: "eth0"}
	a, b := HostName(ref, 0), HostName(ref, 1)
	if a == b || len(a) != 12 || a[:4] != "veth" || a != HostName(ref, 0) {
		t.Errorf("names %q, %q", a, b)
	}
}

func TestRandomMAC(t *testing.T) {
	a, b := RandomMAC(), RandomMAC()
	if a.String() == b.String() || a[0]&3 != 2 || b[0]&3 != 2 {
		t.Errorf("%s and %s, want two that are local and unicast", a, b)
	}
}

// A kernel without BIG TCP of IPv4 says nothing of it when it describes a link, and would ignore the setting without an error.
func TestBigTCPOfAnOlderKernel(t *testing.T) {
	core, seen := observer.New(zapcore.WarnLevel)
	for _, asked := range []bool{false, true} {
		if err := (PairConf{BigTCP: asked}).SetBigTCP(nil, nil, log.NewCore(core), rtnl.Link{Name: "veth0"}, rtnl.Link{Name: "eth0"}); err != nil {
			t.Fatal(err)
		}
		if warned := seen.FilterMessageSnippet("bigTCP is ignored").FilterField(log.String(log.KeyDevice, "eth0")).Len() == 1; warned != asked {
			t.Errorf("asked for %t: said %+v", asked, seen.All())
		}
	}
}
