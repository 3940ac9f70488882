// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// Of <linux/wireguard.h>.
const (
	wgSetDevice = 1

	wgDeviceName       = 2
	wgDevicePrivateKey = 3
	wgDeviceListenPort = 6
	wgDevicePeers      = 8

	wgPeerPublicKey  = 1
	wgPeerEndpoint   = 4
	wgPeerAllowedIPs = 9

	wgAllowedFamily = 1
	wgAllowedAddr   = 2
	wgAllowedMask   = 3

	wgPort = 51820
)

// genlHeader is a struct genlmsghdr. nl.Genlmsg serialises two bytes beyond itself, and Linux 7 wants those to be 0.
type genlHeader [4]byte

func (h genlHeader) Len() int { return len(h) }

func (h genlHeader) Serialize() []byte { return h[:] }

// setWireGuard gives wg0 of the calling thread's namespace a key and a peer, to which everything goes.
func setWireGuard(key *ecdh.PrivateKey, peer *ecdh.PublicKey, endpoint netip.Addr) error {
	family, err := netlink.GenlFamilyGet("wireguard")
	if err != nil {
		return err
	}
	port := binary.BigEndian.AppendUint16(nil, wgPort)
	sockaddr := append(nl.Uint16Attr(unix.AF_INET), port...)
	sockaddr = append(append(sockaddr, endpoint.AsSlice()...), make([]byte, 8)...)
	peers := nl.NewRtAttr(unix.NLA_F_NESTED|wgDevicePeers, nil)
	p := peers.AddRtAttr(unix.NLA_F_NESTED, nil)
	p.AddRtAttr(wgPeerPublicKey, peer.Bytes())
	p.AddRtAttr(wgPeerEndpoint, sockaddr)
	allowed := p.AddRtAttr(unix.NLA_F_NESTED|wgPeerAllowedIPs, nil)
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		a := allowed.AddRtAttr(unix.NLA_F_NESTED, nil)
		a.AddRtAttr(wgAllowedFamily, nl.Uint16Attr(map[bool]uint16{true: unix.AF_INET, false: unix.AF_INET6}[any.Is4()]))
		a.AddRtAttr(wgAllowedAddr, any.AsSlice())
		a.AddRtAttr(wgAllowedMask, []byte{0})
	}
	req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	req.AddData(genlHeader{wgSetDevice, 1})
	req.AddData(nl.NewRtAttr(wgDeviceName, nl.ZeroTerminated("wg0")))
	req.AddData(nl.NewRtAttr(wgDevicePrivateKey, key.Bytes()))
	req.AddData(nl.NewRtAttr(wgDeviceListenPort, nl.Uint16Attr(wgPort)))
	req.AddData(peers)
	_, err = req.Execute(unix.NETLINK_GENERIC, 0)
	return err
}

// A WireGuard device, which has no Ethernet header, carries hostPorts and masquerade; what it sends itself, by UDP over the other
// uplink, is the node's own and left alone.
func TestPrivilegedWireGuardUplink(t *testing.T) {
	t.Parallel()
	require.Link(t, "wireguard")
	w := e2etest.NewWorld(t)
	var keys [2]*ecdh.PrivateKey
	for i := range keys {
		k, err := ecdh.X25519().GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = k
	}
	v4 := e2etest.Families()[0]
	ends := []netip.Addr{v4.Node(w.Client()), v4.Client(w.Client())}
	for i, ns := range []interface{ Do(func() error) error }{w.Node, w.Client()} {
		e2etest.MustRun(t, ns, "ip link add wg0 type wireguard")
		if err := ns.Do(func() error { return setWireGuard(keys[i], keys[1-i].PublicKey(), ends[1-i]) }); err != nil {
			t.Fatal(err)
		}
		for _, line := range []string{
			fmt.Sprintf("ip addr add 10.77.0.%d/24 dev wg0", i+1), fmt.Sprintf("ip addr add fd00:77::%d/64 dev wg0 nodad", i+1), "ip link set wg0 up",
		} {
			e2etest.MustRun(t, ns, line)
		}
	}
	anotherUplink(t, w)
}
