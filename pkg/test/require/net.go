// SPDX-License-Identifier: Apache-2.0

package require

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link needs the device type that "ip link add type kind" makes: "dummy",
// "ipvlan", "macvlan", "netkit", "vlan", "vrf", ... "tun" and "tap" need the
// driver behind /dev/net/tun.
func Link(t testing.TB, kind string) {
	t.Helper()
	if kind == "tun" || kind == "tap" {
		Feature(t, "link tun", askTUN)
		return
	}
	Feature(t, "link "+kind, func() error { return askLink(kind) })
}

// HasLink is Link for a test that wants to know and goes on either way.
func HasLink(t testing.TB, kind string) bool {
	t.Helper()
	return Has(t, "link "+kind, func() error { return askLink(kind) })
}

// NamespaceType needs the ioctl that tells the type of a namespace. Every kernel since 4.11 has it; an emulator of another architecture
// may not hand it on. It needs no privileges.
func NamespaceType(t testing.TB) {
	t.Helper()
	skipWithout(t, "ioctl NS_GET_NSTYPE", askNamespaceType())
}

func askNamespaceType() error {
	fd, err := unix.Open("/proc/self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.ENOSYS) {
		return ErrMissing
	}
	return err
}

// Nfnetlink needs netlink sockets of netfilter (CONFIG_NETFILTER_NETLINK), which an emulator of another architecture may not hand on. It
// needs no privileges.
func Nfnetlink(t testing.TB) {
	t.Helper()
	skipWithout(t, "nfnetlink", askNfnetlink())
}

func askNfnetlink() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return ErrMissing
	}
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// askTUN opens the driver's device, which exists without a driver too.
func askTUN() error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENXIO) {
		return ErrMissing
	}
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// askLink makes a device of the kind upon a veth. rtnl_newlink answers
// EOPNOTSUPP for a kind that no module registered (net/core/rtnetlink.c); what a known
// kind says of attributes it would need is another answer.
func askLink(kind string) error {
	base, err := baseVeth()
	if err != nil {
		return err
	}
	attrs := netlink.LinkAttrs{Name: "probe"}
	if kind == "vlan" || strings.HasPrefix(kind, "ipv") || strings.HasPrefix(kind, "macv") {
		attrs.ParentIndex = base.Attrs().Index
	}
	err = netlink.LinkAdd(&netlink.GenericLink{LinkAttrs: attrs, LinkType: kind})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return ErrMissing
	}
	if errors.Is(err, unix.EINVAL) {
		return nil // known, and wants more than a name
	}
	return err
}

// baseVeth makes a veth to ask with.
func baseVeth() (netlink.Link, error) {
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "base"}, PeerName: "peer"}); err != nil {
		return nil, fmt.Errorf("make a veth to ask with: %w", err)
	}
	return netlink.LinkByName("base")
}

// Qdisc needs the queueing discipline that "tc qdisc add ... kind" makes: "fq",
// "tbf", "clsact", ...
func Qdisc(t testing.TB, kind string) {
	t.Helper()
	Feature(t, "qdisc "+kind, func() error { return askQdisc(kind) })
}

// HasQdisc is Qdisc for a test that wants to know and goes on either way.
func HasQdisc(t testing.TB, kind string) bool {
	t.Helper()
	return Has(t, "qdisc "+kind, func() error { return askQdisc(kind) })
}

// askQdisc puts the discipline on lo. qdisc_create answers ENOENT for one that
// is not there (net/sched/sch_api.c), EINVAL when options are wanting.
func askQdisc(kind string) error {
	const loopback = 1
	attrs := netlink.QdiscAttrs{LinkIndex: loopback, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}
	if kind == "clsact" || kind == "ingress" {
		attrs.Parent, attrs.Handle = netlink.HANDLE_CLSACT, netlink.MakeHandle(0xffff, 0)
	}
	err := netlink.QdiscAdd(&netlink.GenericQdisc{QdiscAttrs: attrs, QdiscType: kind})
	if errors.Is(err, unix.ENOENT) {
		return ErrMissing
	}
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// VLANFiltering needs bridges that filter VLANs (CONFIG_BRIDGE_VLAN_FILTERING).
func VLANFiltering(t testing.TB) {
	t.Helper()
	Feature(t, "bridge vlan_filtering", func() error {
		on := true
		err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "probe"}, VlanFiltering: &on})
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		if err != nil {
			return ErrMissing
		}
		l, err := netlink.LinkByName("probe")
		if err != nil {
			return err
		}
		if b, ok := l.(*netlink.Bridge); !ok || b.VlanFiltering == nil || !*b.VlanFiltering {
			return ErrMissing // the attribute was not understood
		}
		return nil
	})
}

// NFTFamily needs nftables tables of a family: "bridge", "netdev", "inet", ...
// It asks with nft(8).
func NFTFamily(t testing.TB, family string) {
	t.Helper()
	Feature(t, "nftables family "+family, func() error {
		return askCommand("nft", "add", "table", family, "probe")
	})
}

// IPTables needs an iptables command (iptables, ip6tables, iptables-nft,
// iptables-legacy, ...) to accept the arguments, such as "-t", "nat", "-A",
// "POSTROUTING", "-j", "MASQUERADE". name says what they are there for.
func IPTables(t testing.TB, name, command string, args ...string) {
	t.Helper()
	Feature(t, name, func() error { return askCommand(command, args...) })
}

// absent is what nft and iptables print when the kernel lacks a family, a
// table, an expression, a match or a target.
var absent = []string{
	"Operation not supported", "not supported by protocol", "No such file or directory", "does not exist", "RULE_APPEND failed",
	"Extension", "missing kernel module", "No chain/target/match by that name", "can't initialize",
}

func askCommand(name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err == nil {
		return nil
	}
	for _, text := range absent {
		if strings.Contains(string(out), text) {
			return fmt.Errorf("%w: %s", ErrMissing, out)
		}
	}
	return fmt.Errorf("%s: %w: %s", name, err, out)
}

// SCTP needs sockets of that protocol.
func SCTP(t testing.TB) {
	t.Helper()
	Feature(t, "sctp", func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		if errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ESOCKTNOSUPPORT) {
			return ErrMissing
		}
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
}

// BigTCP needs segments of TCP over IPv4 above 64 KiB on a veth (Linux 6.3).
func BigTCP(t testing.TB) {
	t.Helper()
	Feature(t, "BIG TCP of IPv4", askBigTCP)
}

// askBigTCP asks a veth. do_setlink answers EINVAL to more than the device takes, and rtnetlink ignores attributes that it does not know.
func askBigTCP() error {
	base, err := baseVeth()
	if err != nil {
		return err
	}
	const size = 128 << 10
	if err := netlink.LinkSetGSOIPv4MaxSize(base, size); errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return ErrMissing
	} else if err != nil {
		return err
	}
	if base, err = netlink.LinkByName("base"); err != nil {
		return err
	}
	if base.Attrs().GSOIPv4MaxSize != size {
		return ErrMissing
	}
	return nil
}

// BridgeNetfilter needs br_netfilter: the rules of the IP layer see what a bridge gets at its ports. A kernel before 5.3 has one
// setting for all network namespaces.
func BridgeNetfilter(t testing.TB) {
	t.Helper()
	Feature(t, "br_netfilter", func() error {
		_, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables")
		if errors.Is(err, os.ErrNotExist) {
			return ErrMissing
		}
		return err
	})
}
