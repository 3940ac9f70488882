// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/ebpfload"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// walk is a packet on its way.
type walk struct {
	n      *node
	p      *Path
	t      Tuple
	frame  []byte
	mark   uint32
	in     rtnl.Link // that it came in by; zero: a process of the node sent it
	answer bool
	below  bool // a pod's device without a host veth gave it to its parent
}

func (w *walk) step(kind, at, result, format string, a ...any) {
	w.p.Steps = append(w.p.Steps, Step{Kind: kind, At: at, Result: result, Text: fmt.Sprintf(format, a...), Packet: w.t.String()})
}

// unknown is a place that may decide otherwise. condition goes on "if".
func (w *walk) unknown(kind, at, condition, format string, a ...any) {
	w.step(kind, at, NotAsked, format, a...)
	if !slices.Contains(w.p.NotRehearsed, condition) {
		w.p.NotRehearsed = append(w.p.NotRehearsed, condition)
	}
}

func (w *walk) drop(kind, at, device, reason, why, do string) {
	where := at
	if device != "" {
		where += " on " + device
	}
	w.step(kind, where, Stopped, "%s: %s", reason, why)
	w.p.Verdict, w.p.At, w.p.Device, w.p.Reason, w.p.Why, w.p.Do = Dropped, at, device, reason, why, do
}

func (w *walk) deliverTo(ep *loader.EndpointStatus) {
	w.p.Verdict, w.p.At, w.p.Device, w.p.pod = Delivered, "pod "+w.n.name(ep.Owner), ep.HostIfName, ep
}

func (w *walk) send(out rtnl.Link) {
	w.p.Verdict, w.p.At, w.p.Device, w.p.out = Sent, out.Name, out.Name, out
}

// Verdicts of programs (<linux/pkt_cls.h>, <linux/bpf.h>).
const (
	tcNext     = -1
	tcShot     = 2
	tcRedirect = 7
	xdpPass    = 2
)

// fromClients never hands a packet past the stack. Its redirection leads to the ingress of the same device.
const fromClients = "sl_from_clients"

// copied are the programs that a copy has. sl_edt only delays, or drops for a rate that one packet does not have.
var copied = []string{"sl_from_pod", "sl_to_pod", "sl_from_uplink", "sl_to_uplink", "sl_from_l3dev", "sl_to_l3dev", fromClients, "sl_to_clients", "sl_mac_check", "sl_xdp_denylist"}

// Hooks, as Datapath.Hooks names them.
const (
	hookIngress = "ingress"
	hookEgress  = "egress"
	hookXDP     = "xdp"
)

// outcome is what a hook says.
type outcome int

const (
	goesOn outcome = iota
	ended          // dropped: the path has its verdict
	pastStack
)

// hook gives the packet to the programs at a hook of a device.
func (w *walk) hook(dev rtnl.Link, place string) (outcome, error) {
	all, err := w.n.dp.Hooks([]int{dev.Index})
	if err != nil {
		return ended, err
	}
	ours := false
	for _, at := range all {
		if at.Hook != place {
			continue
		}
		for _, prog := range at.Programs {
			name := cmp.Or(prog.Name, prog.Kind)
			where := fmt.Sprintf("%s on %s, %s", name, dev.Name, place)
			switch {
			case slices.Contains(copied, prog.Name) && prog.Ours:
				ours = true
				out, err := w.run(prog.Name, where, dev)
				if err != nil || out != goesOn {
					return out, err
				}
			case prog.Ours && prog.Name == "sl_parent" && !w.below:
				w.step("program", where, Passed, "it judges what pods on the device send, and this comes from elsewhere")
			case prog.Ours && prog.Name == "sl_parent":
				w.step("program", where, Passed, "the pod's rules and limit once more, which its own device has asked")
			case prog.Ours && prog.Name == "sl_edt":
				w.step("program", where, Passed, "a rate limit: a packet may wait, or be dropped for the rate, which one packet does not have")
			default:
				w.unknown("program", where, fmt.Sprintf("program %s on %s lets it pass", name, dev.Name), "a program that is not Sluice's, or that is not rehearsed (id %d)", prog.ID)
			}
		}
	}
	if !ours && place != hookXDP && w.expects(dev) {
		w.step("program", dev.Name+", "+place, NotAsked, "the program of Sluice is missing: \"sluice doctor\" says why")
	}
	return goesOn, nil
}

// expects reports whether the datapath has programs on the device.
func (w *walk) expects(dev rtnl.Link) bool {
	return slices.ContainsFunc(w.n.status.Devices, func(d loader.DeviceStatus) bool { return d.Ifindex == dev.Index })
}

func (w *walk) run(name, where string, dev rtnl.Link) (outcome, error) {
	data := w.frame
	if dev.Bare {
		data = data[etherLen:]
	}
	r, err := w.n.copy.Run(name, ebpfload.TestPacket{Data: data, Ifindex: dev.Index, Ingress: w.in.Index, Mark: w.mark})
	if err != nil {
		return ended, err
	}
	xdp := name == "sl_xdp_denylist"
	if xdp && r.Verdict == xdpPass {
		r.Verdict = tcNext
	} else if xdp {
		r.Verdict = tcShot
	}
	if r.Verdict == tcShot {
		reason := drops.Reason(r.Reason)
		w.drop("program", name, dev.Name, reason.Name(), reason.String(), reason.Advice())
		return ended, nil
	}
	before, marked := w.t, w.mark
	if dev.Bare {
		w.frame = append(append([]byte{}, w.frame[:etherLen]...), r.Data...)
	} else {
		w.frame = r.Data
	}
	w.t, w.mark = read(w.frame, w.t), r.Mark
	result, text := Passed, "goes on to the node's stack"
	if w.t != before {
		result, text = Rewritten, fmt.Sprintf("was %s", before)
	}
	if w.mark != marked {
		text += fmt.Sprintf("; mark %#x", w.mark)
	}
	if r.NoIn {
		text += "; it runs without the device that the packet came in by, which this kernel cannot give to a test"
	}
	if r.Verdict == tcRedirect && name == fromClients {
		text += ", by the ingress of the same device once more"
	} else if r.Verdict == tcRedirect {
		w.step("program", where, Redirected, "%s; it bypasses the stack, as an established connection", text)
		return pastStack, nil
	}
	w.step("program", where, result, "%s", text)
	return goesOn, nil
}

// redirected ends a way past the stack: into the pod that the packet is for, or out by the route that the connection has.
func (w *walk) redirected() error {
	if ep := w.n.endpoint(w.t.Dst.Addr()); ep != nil {
		w.deliverTo(ep)
		return nil
	}
	r, err := w.n.h.AskRoute(rtnl.RouteQuery{Dst: w.t.Dst.Addr()})
	if err != nil {
		return err
	}
	out, err := w.n.link(r.LinkIndex)
	w.send(out)
	return err
}

// fromPod is the way of what a pod sends.
func (w *walk) fromPod(ep *loader.EndpointStatus) error {
	const at = "the pod's own routes"
	w.step("pod", "pod "+w.n.name(ep.Owner), Passed, "sends %s", w.t)
	v, known, err := w.n.podRoute(ep, w.t)
	if err != nil {
		w.drop("route", at, "", "no-route-in-pod", fmt.Sprintf("the pod has no route to %s (%v)", w.t.Dst.Addr(), unwrap(err)), "look at \"ip route\" inside the pod, and at the routes that the network's IPAM gives")
		return nil
	}
	if known && v.route.Type == unix.RTN_LOCAL {
		w.step("route", at, Passed, "%s is the pod's own", w.t.Dst.Addr())
		w.deliverTo(ep)
		return nil
	}
	if rec := w.n.records[ep.Owner]; known && rec != nil && v.device != rec.IfName {
		other := w.n.sibling(ep, v.device)
		if _, ok := w.n.inside[other]; other == nil || other.Netns != "" && !ok {
			w.unknown("route", at, "its device "+v.device+" sends it", "it leaves by %s, which is no device of the datapath", v.device)
			w.p.Verdict, w.p.At, w.p.Device, w.p.away = Sent, "the pod's device "+v.device, v.device, true
			return nil
		}
		w.step("route", at, Passed, "it leaves by the pod's device %s", v.device)
		ep = other
	}
	if ep.Netns != "" {
		return w.fromInside(ep, v, known)
	}
	dev, err := w.n.link(ep.HostIfindex)
	if err != nil {
		return err
	}
	dst, stopped := w.podNeighbour(ep, v, known)
	if stopped {
		return nil
	}
	w.otherFamilies(dev)
	w.frame, w.in = frame(w.t, w.answer, dst, parseMAC(ep.MAC)), rtnl.Link{}
	switch out, err := w.hook(dev, hookIngress); {
	case err != nil || out == ended:
		return err
	case out == pastStack:
		return w.redirected()
	}
	w.in = dev
	return w.input(dev, ep)
}

// podNeighbour returns the link address that the pod sends to. stopped says that it has none.
func (w *walk) podNeighbour(ep *loader.EndpointStatus, v podView, known bool) (dst net.HardwareAddr, stopped bool) {
	dst = parseMAC(ep.GatewayMAC)
	if !known {
		w.unknown("route", "the pod's own routes", "the pod has a route", "its network namespace cannot be looked into; the packet is taken to go to the gateway")
		return dst, false
	}
	how := "on the link"
	if v.route.Gateway.IsValid() {
		how = "by the gateway " + v.route.Gateway.String()
	}
	peer := w.n.endpoint(v.hop)
	switch {
	case v.neighbour.State&unix.NUD_FAILED != 0:
		w.drop("neighbour", "the pod's neighbour table", "", "no-neighbour", fmt.Sprintf("%s has not answered the pod", v.hop), fmt.Sprintf("look whether %s is on the pod's link: \"ip neigh\" inside the pod", v.hop))
		return nil, true
	case v.neighbour.Reaches() && len(v.neighbour.MAC) == len(dst):
		dst = v.neighbour.MAC
	case peer != nil && peer.RouteIfindex == ep.RouteIfindex && peer.HostIfindex != ep.HostIfindex:
		dst = parseMAC(peer.MAC)
	case peer == nil && !w.n.isLocal(v.hop) && !v.hop.IsLinkLocalUnicast():
		w.unknown("neighbour", "the pod's neighbour table", v.hop.String()+" answers the pod", "%s: the pod has not asked for %s yet", how, v.hop)
		return make(net.HardwareAddr, len(dst)), false
	}
	w.step("route", "the pod's own routes", Passed, "%s", how)
	return dst, false
}

// input is the way from a device into the stack, or through a bridge. ep is the pod whose host veth it is, nil for others.
func (w *walk) input(dev rtnl.Link, ep *loader.EndpointStatus) error {
	if dev.MasterIndex == 0 {
		return w.routed(dev)
	}
	master, err := w.n.link(dev.MasterIndex)
	if err != nil {
		return err
	}
	if master.Kind != "bridge" { // of a VRF the kernel knows by the device
		return w.routed(dev)
	}
	to := net.HardwareAddr(w.frame[:6])
	for i := range w.n.status.Endpoints {
		peer := &w.n.status.Endpoints[i]
		if !bytes.Equal(parseMAC(peer.MAC), to) || peer.RouteIfindex != master.Index {
			continue
		}
		w.step("bridge", master.Name, Passed, "bridged to the port of %s", w.n.name(peer.Owner))
		if w.bridgeNetfilter() && w.netfilter(unix.NF_INET_FORWARD, "FORWARD (br_netfilter)") {
			return nil
		}
		return w.intoPod(peer)
	}
	if ep != nil && !bytes.Equal(to, master.MAC) && !bytes.Equal(to, parseMAC(ep.GatewayMAC)) {
		w.unknown("bridge", master.Name, "a port of "+master.Name+" leads there", "bridged out of another port; which one is not followed")
		w.send(master)
		return nil
	}
	switch out, err := w.hook(master, hookIngress); {
	case err != nil || out == ended:
		return err
	case out == pastStack:
		return w.redirected()
	}
	w.in = master
	return w.routed(master)
}

// intoPod is the last part of a way into a pod.
func (w *walk) intoPod(ep *loader.EndpointStatus) error {
	dev, err := w.n.link(ep.HostIfindex)
	if err != nil {
		return err
	}
	setMACs(w.frame, parseMAC(ep.MAC), parseMAC(ep.GatewayMAC))
	switch out, err := w.hook(dev, hookEgress); {
	case err != nil || out == ended:
		return err
	case out == pastStack:
		return w.redirected()
	}
	w.deliverTo(ep)
	return nil
}

// fromOutside is the way of what comes in by a device of the node.
func (w *walk) fromOutside(via string) error {
	var (
		dev rtnl.Link
		err error
	)
	if via != "" {
		dev, err = w.n.h.LinkByName(via)
		if errors.Is(err, rtnl.ErrNotFound) {
			return usage("--via %q: there is no such device", via)
		}
	} else {
		var r rtnl.Route
		if r, err = w.n.h.AskRoute(rtnl.RouteQuery{Dst: w.t.Src.Addr()}); err != nil {
			return usage("from %q: the node has no route to it, so say by which device it comes: --via", w.t.Src.Addr())
		}
		dev, err = w.n.link(r.LinkIndex)
	}
	if err != nil {
		return err
	}
	mac := w.n.arrivesFor(dev, w.t)
	if len(mac) != 6 {
		mac = make(net.HardwareAddr, 6)
	}
	w.frame = frame(w.t, w.answer, mac, net.HardwareAddr{2, 0, 0, 0, 0, 1})
	w.step("device", dev.Name, Passed, "comes in: %s", w.t)
	w.otherFamilies(dev)
	for _, at := range []string{hookXDP, hookIngress} {
		switch out, err := w.hook(dev, at); {
		case err != nil || out == ended:
			return err
		case out == pastStack:
			return w.redirected()
		}
	}
	w.in = dev
	if w.fromParent(dev) {
		return nil
	}
	return w.input(dev, nil)
}

// fromNode is the way of what a process of the node sends.
func (w *walk) fromNode() error {
	w.step("socket", "a process of the node", Passed, "sends %s", w.t)
	if !w.answer {
		w.socketLB()
	}
	r, err := w.n.h.AskRoute(rtnl.RouteQuery{Src: w.t.Src.Addr(), Dst: w.t.Dst.Addr(), Mark: w.mark, Proto: w.t.Proto})
	if err != nil {
		w.drop("route", "the node's routes", "", "no-route", fmt.Sprintf("the node has no route from %s to %s (%v)", w.t.Src.Addr(), w.t.Dst.Addr(), unwrap(err)), "look at \"ip route get "+w.t.Dst.Addr().String()+"\"")
		return nil
	}
	w.frame = frame(w.t, w.answer, make(net.HardwareAddr, 6), make(net.HardwareAddr, 6))
	if w.netfilter(unix.NF_INET_LOCAL_OUT, "OUTPUT") {
		return nil
	}
	if r.Type == unix.RTN_LOCAL {
		w.step("route", "the node's routes", Passed, "%s is the node's own", w.t.Dst.Addr())
		w.p.Verdict, w.p.At = Delivered, "the node itself"
		return nil
	}
	return w.output(r)
}

// socketLB does what the programs for sockets do, by the map of hostPorts: the kernel does not run them for a test.
func (w *walk) socketLB() {
	if !w.n.status.Local.Attached {
		return
	}
	for _, hp := range w.n.hostPorts {
		any := hp.HostIP.IsUnspecified() && hp.HostIP.Is4() == w.t.is4() && w.n.isLocal(w.t.Dst.Addr())
		if hp.Proto != w.t.Proto || hp.Port != w.t.Dst.Port() || !any && hp.HostIP.Unmap() != w.t.Dst.Addr() {
			continue
		}
		before := w.t
		w.t.Dst = netip.AddrPortFrom(hp.PodIP.Unmap(), hp.PodPort)
		w.unknown("program", "the programs for sockets", "they take the hostPort as the map has it", "hostPort of %s: was %s", w.n.name(hp.Owner), before)
		return
	}
}

// unwrap is the kernel's own word at the end of an error.
func unwrap(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
