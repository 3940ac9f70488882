// SPDX-License-Identifier: Apache-2.0

// Package cniops is what the verbs of the main plugins have in common,
// whatever device they make: the namespaces they work in, keys that several of
// them have, entries of a result, and GC. It owns no state.
package cniops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Bounds of an Ethernet device's MTU, in bytes; the kernel refuses others.
const (
	minMTU = 68
	maxMTU = 65535
)

// Namespaces is where an attachment happens: the pod's namespace, and a handle in it
// and in the node's.
type Namespaces struct {
	NS        *netns.NS
	Host, Pod *rtnl.Handle
}

// Open opens the namespace at path, and the handles. The caller must Close the
// result.
func Open(path string) (_ *Namespaces, err error) {
	s := &Namespaces{}
	if s.NS, err = netns.Open(path); err != nil {
		return nil, cnierr.Wrap(cnierr.CodeNetNS, err, "CNI_NETNS %q cannot be used", path)
	}
	if s.Host, err = rtnl.New(); err != nil {
		s.Close()
		return nil, cnierr.Wrap(cnierr.CodeKernel, err, "open the host's network namespace")
	}
	if s.Pod, err = rtnl.NewIn(s.NS); err != nil {
		s.Close()
		return nil, cnierr.Wrap(cnierr.CodeNetNS, err, "open the pod's network namespace")
	}
	return s, nil
}

// Reopen opens a handle in the pod's namespace of an earlier call, see
// netns.Reopen. It returns nil without an error when that is gone, and with it
// what was in it.
func Reopen(inode uint64, paths ...string) (*rtnl.Handle, error) {
	ns, err := netns.Reopen(inode, paths...)
	if ns == nil {
		return nil, cnierr.Wrap(cnierr.CodeNetNS, err, "open the pod's network namespace")
	}
	defer ns.Close()
	pod, err := rtnl.NewIn(ns)
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeNetNS, err, "open the pod's network namespace")
	}
	return pod, nil
}

// Close releases the descriptors. A nil value is fine.
func (s *Namespaces) Close() {
	if s == nil {
		return
	}
	if s.Pod != nil {
		s.Pod.Close()
	}
	if s.Host != nil {
		s.Host.Close()
	}
	s.NS.Close()
}

// EnsureIfNameFree makes sure that the pod has no interface of the wanted name; the
// specification demands an error.
func (s *Namespaces) EnsureIfNameFree(ifname string) error {
	if why := cniconf.BadIfName(ifname); why != "" { // a caller without cniskel; the kernel would number "eth%d"
		return cnierr.New(cnierr.CodeEnvironment, fmt.Sprintf("invalid CNI_IFNAME %q: %s", ifname, why), "")
	}
	_, err := s.Pod.LinkByName(ifname)
	switch {
	case err == nil:
		return cnierr.New(cnierr.CodeConflict, fmt.Sprintf("CNI_IFNAME %q exists already in %s", ifname, s.NS.Path()), "")
	case errors.Is(err, rtnl.ErrNotFound):
		return nil
	}
	return cnierr.Wrap(cnierr.CodeKernel, err, "look up %s in the pod", ifname)
}

// RunSteps takes the steps of an ADD, one after the other, and stops where undoing is
// easy when it is told to end or runs out of time.
func RunSteps(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return cnierr.Wrap(cnierr.CodeTryAgain, err, "the ADD was interrupted")
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// CheckMTU checks the key "mtu"; 0 leaves the choice to the kernel.
func CheckMTU(mtu int) error {
	if mtu != 0 && (mtu < minMTU || mtu > maxMTU) {
		return cnierr.Config("mtu", mtu, fmt.Sprintf("must be 0 or %d to %d", minMTU, maxMTU))
	}
	return nil
}

// CheckResult refuses a call whose result the configuration's version cannot carry, before anything is made. With IPAM there
// will be an address, which every version can carry.
func CheckResult(ipamType, version string) error {
	if ipamType != "" {
		return nil
	}
	_, err := cniconf.Convert(&types100.Result{Interfaces: []*types100.Interface{{}}}, version)
	return err
}

// MAC returns the hardware address that a call wants, nil for none: of the
// configuration's own key (empty where the plugin has none), CNI_ARGS "MAC",
// args.cni.mac and runtimeConfig.mac, the last one that is given. The others need
// not be valid, as with upstream: they may be placeholders.
func MAC(a *cniskel.Args, c *cniconf.Common, own string) (mac net.HardwareAddr, err error) {
	type requested struct {
		MAC string `json:"mac"`
	}
	var args struct {
		CNI requested `json:"cni"`
	}
	var runtime requested
	if err := cniconf.DecodeSection("args", c.Args, &args); err != nil {
		return nil, err
	}
	if err := cniconf.DecodeSection("runtimeConfig", c.RuntimeConfig, &runtime); err != nil {
		return nil, err
	}
	key, last := "args.cni.mac", args.CNI.MAC
	if runtime.MAC != "" {
		key, last = "runtimeConfig.mac", runtime.MAC
	}
	if err := cniconf.ParseArgs(a.Args, map[string]func(string) error{
		"MAC": func(s string) error {
			if s == "" || last != "" {
				return nil
			}
			mac, err = cniconf.ParseMAC("MAC", s)
			return err
		},
	}); err != nil {
		return nil, err
	}
	switch {
	case cniconf.Awaits(a.StdinData, a.ContainerID, "mac"):
		return nil, nil
	case last != "":
		return cniconf.ParseMAC(key, last)
	case mac != nil || own == "":
		return mac, nil
	}
	return cniconf.ParseMAC("mac", own)
}

// DNS returns what a result should say: the configuration's own settings, which
// replace the IPAM plugin's entirely when any of them is there (an empty list
// counts), else the IPAM plugin's.
func DNS(own, fromIPAM types.DNS) types.DNS {
	if own.Nameservers != nil || own.Search != nil || own.Options != nil || own.Domain != "" {
		return own
	}
	return fromIPAM
}

// ResultInterface describes a device in a result of the given CNI version. Versions before
// 1.1.0 do not have the MTU, and converting down does not remove it.
func ResultInterface(l rtnl.Link, sandbox, version string) *types100.Interface {
	i := &types100.Interface{Name: l.Name, Mac: l.MAC.String(), Sandbox: sandbox}
	if version == "1.1.0" {
		i.Mtu = l.MTU
	}
	return i
}

// FindInterface returns prevResult's entry for a device, nil when it has none.
func FindInterface(prev *types100.Result, name, sandbox string) *types100.Interface {
	for _, i := range prev.Interfaces {
		if i.Name == name && i.Sandbox == sandbox {
			return i
		}
	}
	return nil
}

// Differences compares a device with prevResult's entry for it.
func Differences(l rtnl.Link, prev *types100.Result, sandbox string) (diffs []error) {
	differ := func(format string, a ...any) {
		diffs = append(diffs, cnierr.New(cnierr.CodeCheck, fmt.Sprintf(format, a...), ""))
	}
	i := FindInterface(prev, l.Name, sandbox)
	if i == nil {
		differ("%s is not in prevResult", l.Name)
		return diffs
	}
	if i.Mac != "" && !strings.EqualFold(i.Mac, l.MAC.String()) {
		differ("%s has the address %s, not %s", l.Name, l.MAC, i.Mac)
	}
	if i.Mtu != 0 && i.Mtu != l.MTU && l.Kind != "bridge" { // a bridge's follows its ports
		differ("%s has the MTU %d, not %d", l.Name, l.MTU, i.Mtu)
	}
	return diffs
}

// Prev returns the prevResult that a CHECK compares with; a missing one is an
// error with code 7.
func Prev(c *cniconf.Common) (*types100.Result, error) {
	prev, err := cniconf.ParseResult("prevResult", c.RawPrevResult, c.Version())
	if err == nil && prev == nil {
		err = cnierr.New(cnierr.CodeConfig, `missing key "prevResult": CHECK compares with it`, "")
	}
	return prev, err
}

// DelConf is the little that DEL and GC read of a configuration. The rest may
// be anything, also what ADD would refuse.
type DelConf struct {
	cniconf.Common
	IPAM json.RawMessage `json:"ipam"`
}

// ParseDel decodes a configuration for DEL and GC. With a name, an odd value
// elsewhere does not keep them from cleaning.
func ParseDel(stdin []byte) (DelConf, error) {
	var c DelConf
	if err := cniconf.Load(stdin, &c); err != nil && c.Name == "" {
		return c, err
	}
	return c, nil
}
