// SPDX-License-Identifier: Apache-2.0

package choice

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tooltest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// SCTP and 20 ports at once are rules that every tool takes, and that are found
// again; a repeated ADD replaces them.
func TestPrivilegedRulesAreTaken(t *testing.T) {
	p := netfilter.Ports{Ref: attachments.ID{Network: "n", ContainerID: "c", IfName: "eth0"}, SNAT: true, MarkBit: 5}
	for i := range uint16(20) {
		p.Mappings = append(p.Mappings, tooltest.Mapping("0.0.0.0", unix.IPPROTO_TCP, 1000+i, "10.1.0.2", 80), tooltest.Mapping("::", unix.IPPROTO_UDP, 1000+i, "fd00::2", 80))
	}
	p.Mappings = append(p.Mappings, tooltest.Mapping("192.0.2.1", unix.IPPROTO_SCTP, 9, "10.1.0.2", 10), tooltest.Mapping("2001:db8::1", unix.IPPROTO_SCTP, 9, "fd00::2", 10))
	for _, name := range []string{netfilter.NameIPTablesNFT, netfilter.NameIPTablesLegacy, netfilter.NameNFTables} {
		t.Run(name, func(t *testing.T) {
			n, err := netlab.NewNode()
			if err != nil {
				t.Fatal(err)
			}
			defer n.Close()
			if err := n.Do(func() error {
				tables, _ := New(Options{}).Named(name)
				for range 2 {
					if err := errors.Join(tables.AddPorts(t.Context(), p), tables.CheckPorts(t.Context(), p)); err != nil {
						return err
					}
				}
				fewer := p
				fewer.Mappings, fewer.MasqAll = p.Mappings[:1], true
				if err := errors.Join(tables.AddPorts(t.Context(), fewer), tables.CheckPorts(t.Context(), fewer)); err != nil {
					return err
				}
				if err := tables.CheckPorts(t.Context(), p); !errors.Is(err, netfilter.ErrDiffers) {
					t.Errorf("CHECK of what is not there: %v", err)
				}
				// Another attachment of the same container, in another network.
				other := netfilter.Ports{Ref: attachments.ID{Network: "m", ContainerID: "c", IfName: "eth1"}, Mappings: []netfilter.Mapping{tooltest.Mapping("0.0.0.0", unix.IPPROTO_TCP, 2000, "10.2.0.2", 80)}}
				if err := errors.Join(
					tables.AddPorts(t.Context(), other),
					tables.DelPorts(t.Context(), netfilter.Held{Ref: p.Ref, Mappings: fewer.Mappings}),
					tables.CheckPorts(t.Context(), other),
					tables.DelPorts(t.Context(), netfilter.Held{Ref: p.Ref, Spare: []netfilter.Held{{Ref: other.Ref, Mappings: other.Mappings}}}),
					tables.CheckPorts(t.Context(), other),
				); err != nil {
					t.Errorf("another network's ports: %v", err)
				}
				return tables.DelPorts(t.Context(), netfilter.Held{Ref: other.Ref})
			}); err != nil {
				t.Error(err)
			}
		})
	}
}
