// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tool"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tooltest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// A process that holds the xtables lock makes an ADD wait for seconds, not for
// ever, and only where there is something to change.
func TestPrivilegedXtablesLockIsBounded(t *testing.T) {
	n, err := netlab.NewNode()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	ref := attachments.ID{Network: "n", ContainerID: "c", IfName: "eth0"}
	addrs := []netip.Prefix{netip.MustParsePrefix("10.1.0.2/16")}
	err = n.Do(func() error {
		f, err := os.OpenFile("/run/xtables.lock", os.O_CREATE|os.O_RDONLY, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			return err
		}
		tables := New(tool.NewEnv("", 0, nil), VariantLegacy)
		start := time.Now()
		if err := tables.DelMasq(t.Context(), ref, addrs, nil); err != nil || time.Since(start) > time.Second {
			t.Errorf("DEL of nothing: %v after %v", err, time.Since(start))
		}
		err = tables.AddMasq(t.Context(), ref, addrs)
		if took := time.Since(start); !errors.Is(err, netfilter.ErrBusy) || took < 4*time.Second || took > 15*time.Second {
			t.Errorf("ADD: %v after %v, want %v after 5 s", err, took, netfilter.ErrBusy)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A condition may be about the destination, also of a port of one address: iptables
// takes one match of it per rule.
func TestPrivilegedConditionOnDestination(t *testing.T) {
	for _, variant := range []string{VariantNFT, VariantLegacy} {
		for _, condition := range [][]string{{"-d", "192.0.2.0/24"}, {"!", "--destination", "192.0.2.9"}} {
			t.Run(variant+" "+strings.Join(condition, " "), func(t *testing.T) {
				n, err := netlab.NewNode()
				if err != nil {
					t.Fatal(err)
				}
				defer n.Close()
				p := netfilter.Ports{
					Ref: attachments.ID{Network: "n", ContainerID: "c", IfName: "eth0"}, ConditionsV4: condition,
					Mappings: []netfilter.Mapping{tooltest.Mapping("192.0.2.1", unix.IPPROTO_TCP, 80, "10.1.0.2", 80), tooltest.Mapping("0.0.0.0", unix.IPPROTO_TCP, 81, "10.1.0.2", 81)},
				}
				if err := n.Do(func() error {
					tables := New(tool.NewEnv("", 0, nil), variant)
					return errors.Join(tables.AddPorts(t.Context(), p), tables.CheckPorts(t.Context(), p))
				}); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
