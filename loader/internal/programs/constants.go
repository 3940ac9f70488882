// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

const (
	portRangeName = "ip_local_port_range"
	portRangeKey  = pintree.SysctlDir + "/" + portRangeName
)

// Constants are what is compiled into the programs at load time. A change of any of them is another build.
type Constants struct {
	fastPath  nodeconf.FastPath
	relearn   uint32 // seconds; 0: never
	liberal   bool   // netfilter accepts TCP packets outside of the window that it knows
	antiSpoof bool
	admitMark uint32
	snat      []nodeconf.PortRange // one or two
	NoMasq    []netip.Prefix
	cgroup    string          // root, as configured; as attach
	attach    nodeconf.Attach // no constant, but a change means attaching everything anew, as another build does
}

// ConstantsOf returns those of the configuration and of the node's sysctls.
func ConstantsOf(t *pintree.Tree) (Constants, error) {
	c := t.Config
	k := Constants{
		fastPath:  c.FastPath,
		relearn:   c.Relearn,
		liberal:   beLiberal(t),
		antiSpoof: c.AntiSpoof,
		admitMark: c.AdmitMark,
		snat:      c.SNATPorts,
		attach:    c.Attach,
		cgroup:    c.CgroupRoot,
		NoMasq:    slices.Clone(c.NonMasqueradeCIDRs),
	}
	slices.SortFunc(k.NoMasq, func(a, b netip.Prefix) int {
		if n := a.Addr().Compare(b.Addr()); n != 0 {
			return n
		}
		return a.Bits() - b.Bits()
	})
	if len(k.snat) == 0 {
		local, err := t.Sysctl(portRangeName)
		if err != nil {
			return k, err
		}
		if k.snat, err = complement(local); err != nil {
			return k, fmt.Errorf("sysctl %s: %w", portRangeKey, err)
		}
	}
	return k, nil
}

// nodePorts is where Kubernetes takes the NodePorts from if nothing else is said to its API server
// (service-node-port-range).
var nodePorts = nodeconf.PortRange{First: 30000, Last: 32767}

// complement returns the two largest ranges of ports above 1023 that neither the kernel gives to its own sockets nor Kubernetes
// to Services, the higher one first. local is net.ipv4.ip_local_port_range. When nothing is left, masquerading shares all of
// them with the node: the programs look for a local socket before they take a port.
func complement(local string) ([]nodeconf.PortRange, error) {
	fields := strings.Fields(local)
	if len(fields) != 2 {
		return nil, fmt.Errorf("%q is not a range of ports", local)
	}
	lo, errLo := strconv.ParseUint(fields[0], 10, 16)
	hi, errHi := strconv.ParseUint(fields[1], 10, 16)
	if errLo != nil || errHi != nil || lo > hi {
		return nil, fmt.Errorf("%q is not a range of ports", local)
	}
	all := nodeconf.PortRange{First: 1024, Last: 65535}
	ranges := without([]nodeconf.PortRange{all}, nodeconf.PortRange{First: uint16(lo), Last: uint16(hi)})
	if len(ranges) == 0 {
		return []nodeconf.PortRange{all}, nil
	}
	if rest := without(ranges, nodePorts); len(rest) > 0 {
		ranges = rest
	}
	size := func(r nodeconf.PortRange) int { return int(r.Last) - int(r.First) }
	slices.SortFunc(ranges, func(a, b nodeconf.PortRange) int { return size(b) - size(a) })
	ranges = ranges[:min(len(ranges), 2)]
	slices.SortFunc(ranges, func(a, b nodeconf.PortRange) int { return int(b.First) - int(a.First) })
	return ranges, nil
}

// without returns what is left of the ranges without the ports of cut.
func without(ranges []nodeconf.PortRange, cut nodeconf.PortRange) (rest []nodeconf.PortRange) {
	for _, r := range ranges {
		if cut.Last < r.First || r.Last < cut.First {
			rest = append(rest, r)
			continue
		}
		if r.First < cut.First {
			rest = append(rest, nodeconf.PortRange{First: r.First, Last: cut.First - 1})
		}
		if cut.Last < r.Last {
			rest = append(rest, nodeconf.PortRange{First: cut.Last + 1, Last: r.Last})
		}
	}
	return rest
}

// loadConsts are the constants that are found out, or drawn at random, at each load, and are the same in all programs of one.
type loadConsts struct {
	netns    uint64 // cookie of the network namespace, 0 if it has none
	fibSrc   bool   // the kernel's routes name the source address
	coarse   bool   // the kernel tells tc programs the time of the last tick
	skNetns  bool   // and the namespace of a packet's socket
	netkit   bool   // pods can have netkit devices
	snat     uint32 // secret of the masquerade ports, not 0
	cbCookie [2]uint32
}

func randomConsts() loadConsts {
	b := make([]byte, 12)
	_, _ = rand.Read(b) // never fails
	word := func(i int) uint32 { return binary.NativeEndian.Uint32(b[4*i:]) }
	return loadConsts{snat: word(0) | 1, cbCookie: [2]uint32{word(1) | 1, word(2)}}
}

const loadConstsFormat = "%d %t %t %t %t %d %d %d"

func (d loadConsts) String() string {
	return fmt.Sprintf(loadConstsFormat, d.netns, d.fibSrc, d.coarse, d.skNetns, d.netkit, d.snat, d.cbCookie[0], d.cbCookie[1])
}

// constsOf reads what was drawn for the set of programs in dir.
func constsOf(dir string) (d loadConsts, err error) {
	target, err := os.Readlink(filepath.Join(dir, pintree.LoadConstsName))
	if err != nil {
		return d, err
	}
	if _, err := fmt.Sscanf(target, loadConstsFormat, &d.netns, &d.fibSrc, &d.coarse, &d.skNetns, &d.netkit, &d.snat, &d.cbCookie[0], &d.cbCookie[1]); err != nil {
		return d, fmt.Errorf("%s: %q: %w", pintree.LoadConstsName, target, err)
	}
	return d, nil
}

// Build names this set of programs with these constants.
func (k Constants) Build() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %d %t %t %d %v %v %s %s", bpfgen.Build, k.fastPath, k.relearn, k.liberal, k.antiSpoof, k.admitMark, k.snat, k.NoMasq, k.attach, k.cgroup)
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func fastPathValue(f nodeconf.FastPath) uint32 {
	switch f {
	case nodeconf.FastPathEstablished:
		return uint32(bpfgen.TypesSlFastPathSL_FAST_LEARNED)
	case nodeconf.FastPathImmediate:
		return uint32(bpfgen.TypesSlFastPathSL_FAST_DIRECT)
	default:
		return uint32(bpfgen.TypesSlFastPathSL_FAST_OFF)
	}
}

// compiled is what the programs get of k and of what was drawn for their set.
func (k Constants) compiled(d loadConsts) loadapi.Constants {
	c := loadapi.Constants{
		FastPath: fastPathValue(k.fastPath), Relearn: relearnClock(k.relearn), TCPLiberal: k.liberal, AntiSpoof: k.antiSpoof, AdmitMark: k.admitMark,
		FIBSrc: d.fibSrc, Coarse: d.coarse, SkNetns: d.skNetns, Netkit: d.netkit, NetnsCookie: d.netns, SNATSecret: d.snat, CBCookie: d.cbCookie,
	}
	for i, r := range k.snat {
		c.SNAT[i] = [2]uint16{r.First, r.Last}
	}
	return c
}

// status shows the constants to the operator.
func (k Constants) status() ConfigStatus {
	s := ConfigStatus{FastPath: string(k.fastPath), RelearnSeconds: k.relearn, AntiSpoof: k.antiSpoof, AdmitMark: fmt.Sprintf("%#x", k.admitMark)}
	for _, r := range k.snat {
		s.SNATPorts = append(s.SNATPorts, r.String())
	}
	for _, p := range k.NoMasq {
		s.NonMasqueradeCIDRs = append(s.NonMasqueradeCIDRs, p.String())
	}
	return s
}
