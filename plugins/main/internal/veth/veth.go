// SPDX-License-Identifier: Apache-2.0

// Package veth makes, names, finds and removes the pairs of the main plugins:
// one end on the node, the other the pod's interface. They are veths, or netkit
// devices where the configuration asks for them. Which plugin made a pair, and
// what its host end hangs on, does not matter here. It owns no state; a plugin
// keeps a Recorded in its attachment record.
package veth

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

const (
	// nameTries bounds the host-side names that are tried when one is taken.
	nameTries = 10
	// upTimeout bounds the wait for a host veth to carry frames.
	upTimeout = 5 * time.Second
)

// PairConf holds the keys of the pair. Embed it in a plugin's configuration.
type PairConf struct {
	DeviceKind string `json:"deviceKind"`
	BigTCP     bool   `json:"bigTCP"`
}

// ValidatePair checks the kind.
func (c PairConf) ValidatePair() error {
	switch c.DeviceKind {
	case "", rtnl.KindVeth, rtnl.KindNetkit:
		return nil
	}
	return cnierr.Config("deviceKind", c.DeviceKind, `must be "veth" or "netkit"`)
}

// Recorded is what an attachment record holds of a host veth. Its JSON is read by
// later versions.
type Recorded struct {
	HostIfName string `json:"hostIfName"`
	HostIndex  int    `json:"hostIfIndex,omitempty"` // 0 until ADD completes
	HostMAC    string `json:"hostMAC"`               // chosen by ADD: together with the name it identifies the device
	DeviceKind string `json:"deviceKind,omitempty"`  // empty: veth
	NoNetkit   string `json:"noNetkit,omitempty"`    // why the pair is veth although the configuration asked for netkit
}

// AddPair makes the pair with one message, of the kind that c asks for. Where the kernel has no netkit devices that will do, it makes
// veths, and r says why. The name of the host end begins with "veth" either way: rules of the node go by it.
func (r *Recorded) AddPair(host *rtnl.Handle, c PairConf, logger *log.Logger, s rtnl.VethSpec) error {
	if s.Netkit = c.DeviceKind == rtnl.KindNetkit; !s.Netkit {
		return host.AddVeth(s)
	}
	err := host.AddVeth(s)
	if err == nil {
		r.DeviceKind = rtnl.KindNetkit
	}
	if !errors.Is(err, rtnl.ErrNotSupported) {
		return err
	}
	s.Netkit = false
	verr := host.AddVeth(s)
	if verr == nil {
		r.NoNetkit = "the kernel has no netkit devices that will do (Linux 6.8 or newer with CONFIG_NETKIT): " + err.Error()
		logger.Warn("deviceKind is netkit: using veth", log.NamedError(log.KeyReason, err))
	}
	return verr
}

// SetBigTCP lets TCP of the pod send and receive larger segments of IPv4 than 64 KiB by the pair, if c asks for it and the kernel can.
// IPv6 stays as it is: docs/dev/adr/0053-big-tcp.md. podEnd is as the kernel described it.
func (c PairConf) SetBigTCP(host, pod *rtnl.Handle, logger *log.Logger, hostEnd, podEnd rtnl.Link) error {
	if !c.BigTCP {
		return nil
	}
	if podEnd.MaxSegmentIPv4 == 0 { // the kernel would ignore the attributes without an error
		logger.Warn("bigTCP is ignored: the kernel has none for IPv4 (Linux 6.3 or newer)", log.String(log.KeyDevice, podEnd.Name))
		return nil
	}
	size := rtnl.BigSegment
	change := rtnl.LinkChange{MaxSegmentIPv4: &size}
	return cnierr.Wrap(cnierr.CodeKernel, errors.Join(host.SetLink(hostEnd.Index, change), pod.SetLink(podEnd.Index, change)), "set bigTCP")
}

// MAC returns the recorded address; nil when it is none.
func (r Recorded) MAC() net.HardwareAddr {
	mac, err := net.ParseMAC(r.HostMAC)
	if err != nil {
		return nil
	}
	return mac
}

// HostName returns the host veth's name for the given try. It follows from the
// attachment, so that the device can be found when every record is lost.
func HostName(ref attachments.ID, try int) string {
	var b [12]byte
	binary.BigEndian.PutUint64(b[:], ref.Owner())
	binary.BigEndian.PutUint32(b[8:], uint32(try))
	sum := sha256.Sum256(b[:])
	return "veth" + hex.EncodeToString(sum[:4])
}

// RandomMAC returns a unicast, locally administered address. It is no secret.
func RandomMAC() net.HardwareAddr {
	mac := binary.BigEndian.AppendUint64(nil, rand.Uint64())[:6]
	mac[0] = mac[0]&^1 | 2
	return mac
}

// Make calls add, which makes the pair by AddPair under r's name and address, until that
// name is free on the node. save is called after each change of r, nameFree when
// the other name may be the one that is taken; its error ends the matter.
func (r *Recorded) Make(ref attachments.ID, add, save, nameFree func() error) error {
	for try := range nameTries {
		if try > 0 {
			r.HostIfName = HostName(ref, try)
			if err := save(); err != nil {
				return err
			}
		}
		err := add()
		if err == nil || !errors.Is(err, rtnl.ErrExist) {
			return cnierr.Wrap(cnierr.CodeKernel, err, "make the veth pair")
		}
		if taken := nameFree(); taken != nil { // another process was faster
			return taken
		}
	}
	return cnierr.New(cnierr.CodeConflict, "make the veth pair: "+HostName(ref, 0)+" and all other names tried for the host end are taken", "")
}

// Ends returns both ends of a pair that Make has made. Of the host veth they are the name, the address and the index: the
// rest is read when the link is up.
func (r Recorded) Ends(host, pod *rtnl.Handle, ifname string) (hostEnd, podEnd rtnl.Link, err error) {
	hostEnd = rtnl.Link{Name: r.HostIfName, MAC: r.MAC()}
	if hostEnd.Index, err = host.IndexByName(r.HostIfName); err != nil {
		return hostEnd, podEnd, cnierr.Wrap(cnierr.CodeKernel, err, "look up the host end")
	}
	podEnd, err = pod.LinkByName(ifname)
	return hostEnd, podEnd, cnierr.Wrap(cnierr.CodeKernel, err, "look up the pod's end")
}

// WaitUp returns the link once it carries frames, which it does at once or in a
// matter of milliseconds unless the node is in trouble. The calling thread is in
// host's namespace.
func WaitUp(ctx context.Context, host *rtnl.Handle, l rtnl.Link) (rtnl.Link, error) {
	up := func() (bool, error) {
		now, err := host.LinkByIndex(l.Index)
		if err == nil {
			l = now
		}
		return l.OperState == rtnl.OperUp, err
	}
	done, err := up()
	if !done && err == nil {
		err = waitUntil(ctx, l.Index, up)
	}
	return l, cnierr.Wrap(cnierr.CodeKernel, err, "wait for %s to come up", l.Name)
}

func waitUntil(ctx context.Context, index int, up func() (bool, error)) error {
	w, err := rtnl.Subscribe(rtnl.GroupLink)
	if err != nil {
		return err
	}
	defer w.Close()
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	return w.Wait(ctx, index, up)
}

// Remove deletes the host veth, and with it the pair, if the device is the
// recorded one. The kernel may have given its index, and the operator its name,
// to another since.
func (r Recorded) Remove(host *rtnl.Handle) error {
	l, err := host.LinkByName(r.HostIfName)
	if errors.Is(err, rtnl.ErrNotFound) && r.HostIndex > 0 {
		l, err = host.LinkByIndex(r.HostIndex) // renamed
	}
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, gone(err), "look up the host end")
	}
	if !r.same(l) {
		return nil
	}
	return cnierr.Wrap(cnierr.CodeKernel, gone(host.DelLink(l.Index)), "delete %s", l.Name)
}

// same reports that l is the recorded device: by its address, or, if another process
// has changed that, by its name and index together.
func (r Recorded) same(l rtnl.Link) bool {
	return l.Paired() && (l.MAC.String() == r.HostMAC || r.HostIndex > 0 && l.Index == r.HostIndex && l.Name == r.HostIfName)
}

// RemovePair deletes the pair of an attachment: the recorded one. Without a record (found is false) it is the one with the
// derived name, and the one that upstream's plugin made, if ours accepts its host veth and no record claims it.
func (r Recorded) RemovePair(
	host *rtnl.Handle, a *cniskel.Args, ref attachments.ID, found bool, list func(network string) ([]*attachments.Record, error), ours func(end rtnl.Link) bool,
) error {
	if found {
		return r.Remove(host)
	}
	unclaimed := func(end rtnl.Link) bool { return ours(end) && !claimed(list, end) }
	return errors.Join(removeDerived(host, ref), removeNamed(host, a, unclaimed))
}

// removeDerived deletes the host veth of an ADD whose record is lost.
func removeDerived(host *rtnl.Handle, ref attachments.ID) error {
	l, err := host.LinkByName(HostName(ref, 0))
	if err != nil || !l.Paired() {
		return cnierr.Wrap(cnierr.CodeKernel, gone(err), "look up the host end")
	}
	return cnierr.Wrap(cnierr.CodeKernel, gone(host.DelLink(l.Index)), "delete %s", l.Name)
}

// removeNamed deletes the pair of a pod that another plugin suite attached: the
// interface CNI_IFNAME, if it is one of a pair whose other end ours accepts. A namespace
// that is gone took its end with it.
func removeNamed(host *rtnl.Handle, a *cniskel.Args, ours func(end rtnl.Link) bool) error {
	if a.Netns == "" || a.IfName == "" {
		return nil
	}
	ns, err := netns.Open(a.Netns)
	if errors.Is(err, netns.ErrNotExist) || errors.Is(err, netns.ErrNotNS) {
		return nil
	}
	if err != nil {
		return cnierr.Wrap(cnierr.CodeNetNS, err, "CNI_NETNS %q cannot be used", a.Netns)
	}
	defer ns.Close()
	pod, err := rtnl.NewIn(ns)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeNetNS, err, "open the pod's network namespace")
	}
	defer pod.Close()
	l, err := pod.LinkByName(a.IfName)
	if err != nil || !l.Paired() {
		return cnierr.Wrap(cnierr.CodeKernel, gone(err), "look up %s in the pod", a.IfName)
	}
	end, err := host.LinkByIndex(l.PeerIndex)
	if err != nil || end.Kind != l.Kind || end.PeerIndex != l.Index || !ours(end) {
		return nil // not a device that this plugin or upstream's would have made
	}
	return cnierr.Wrap(cnierr.CodeKernel, gone(host.DelLink(end.Index)), "delete %s", end.Name)
}

// claimed reports that some plugin's section of some attachment's record names the
// device, or that nothing tells. It reads all records; only attachments
// without one come here.
func claimed(list func(network string) ([]*attachments.Record, error), l rtnl.Link) bool {
	records, err := list("")
	if err != nil {
		return true
	}
	for _, rec := range records {
		for name := range rec.Plugins {
			var r Recorded
			if ok, err := rec.Section(name, &r); ok && err == nil && r.HostMAC == l.MAC.String() {
				return true
			}
		}
	}
	return false
}

// NoRA keeps routers on the pods' network from configuring the host through
// this device. Without IPv6 in the kernel there is nothing to do.
func NoRA(logger *log.Logger, device rtnl.Link) {
	if device.NoRA {
		return
	}
	if err := sysctl.Set("net/ipv6/conf/"+device.Name+"/accept_ra", "0"); err != nil {
		logger.Debug("accept_ra stays", log.String(log.KeyDevice, device.Name), log.Error(err))
	}
}

// Forward lets the host route packets of the families of addrs, also those that
// come in by device. It is never taken back: others may depend on it by then.
// Netlink is asked first, since the file takes longer to find the more network
// namespaces there are.
func Forward(host *rtnl.Handle, device rtnl.Link, addrs []netip.Prefix) error {
	for _, key := range ForwardKeys(device.Name, addrs) {
		ask := func() (bool, error) { return host.Forwarding(rtnl.FamilyV4) }
		switch key {
		case forwardV6:
			ask = func() (bool, error) { return host.Forwarding(rtnl.FamilyV6) }
		case forwardDevice(device.Name):
			ask = func() (bool, error) { return host.DeviceForwarding(rtnl.FamilyV4, device.Index) }
		}
		if on, err := ask(); err == nil && on {
			continue
		}
		if err := sysctl.Set(key, "1"); err != nil {
			return cnierr.Wrap(cnierr.CodeKernel, err, "enable forwarding")
		}
	}
	return nil
}

const (
	forwardV4 = "net/ipv4/ip_forward"
	forwardV6 = "net/ipv6/conf/all/forwarding"
)

func forwardDevice(device string) string { return "net/ipv4/conf/" + device + "/forwarding" }

// ForwardKeys are the kernel parameters that must not be 0 for the host to route
// packets of the families of addrs that come in by device. For IPv4 the kernel asks
// the device, for IPv6 only the key of all devices.
func ForwardKeys(device string, addrs []netip.Prefix) (keys []string) {
	if slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr().Is4() }) {
		keys = append(keys, forwardV4, forwardDevice(device))
	}
	if slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		keys = append(keys, forwardV6)
	}
	return keys
}

// NoDAD spares the device's link-local address the check for another owner: its
// MAC is random, and while the address is unproven the host cannot ask for the
// neighbours it forwards to (RFC 4861 7.2.2), which would keep the first pods
// without IPv6 for two seconds. It must come before the device has a carrier,
// with which the kernel makes the address.
func NoDAD(l *log.Logger, device string) {
	if err := sysctl.Set("net/ipv6/conf/"+device+"/accept_dad", "0"); err != nil {
		l.Debug("accept_dad stays", log.String(log.KeyDevice, device), log.Error(err))
	}
}

// NoLinkLocal spares a device the link-local address that the kernel would give it with its carrier, and the three routes of that. The
// kernel walks the addresses and routes of all devices whenever one comes up or goes. Without IPv6 there is nothing to do.
func NoLinkLocal(host *rtnl.Handle, l *log.Logger, device rtnl.Link) {
	if err := host.SetLink(device.Index, rtnl.LinkChange{NoLinkLocal: true}); err != nil {
		l.Debug("the device gets a link-local address", log.String(log.KeyDevice, device.Name), log.Error(err))
	}
}

// gone takes "there is no such thing" for success.
func gone(err error) error {
	if errors.Is(err, rtnl.ErrNotFound) {
		return nil
	}
	return err
}
