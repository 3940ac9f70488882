// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"errors"
	"fmt"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// device is a pod's interface with its host veth, and handles on both namespaces.
// The caller must Close it.
type device struct {
	ns   *netns.NS
	in   *rtnl.Handle // the pod's namespace
	out  *rtnl.Handle // ours
	pod  rtnl.Link
	host rtnl.Link // Index 0: the device has no end in our namespace
}

// openDevice finds ifname in the namespace at path. Errors have the code of a bad
// namespace, or code.
func openDevice(path, ifname string, code uint) (_ *device, err error) {
	d := &device{}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if d.ns, err = netns.Open(path); err != nil {
		return nil, cnierr.Wrap(cnierr.CodeNetNS, err, "open the pod's network namespace")
	}
	if d.in, err = rtnl.NewIn(d.ns); err != nil {
		return nil, cnierr.Wrap(code, err, "open the pod's network namespace")
	}
	if d.out, err = rtnl.New(); err != nil {
		return nil, cnierr.Wrap(code, err, "open the node's network namespace")
	}
	if d.pod, err = d.in.LinkByName(ifname); err != nil {
		return nil, cnierr.Wrap(code, err, "find %s in the pod", ifname)
	}
	if !d.pod.Paired() || d.pod.PeerIndex == 0 {
		return d, nil
	}
	peer, err := d.out.LinkByIndex(d.pod.PeerIndex)
	switch {
	case errors.Is(err, rtnl.ErrNotFound):
	case err != nil:
		return nil, cnierr.Wrap(code, err, "find the host end of %s", ifname)
	case peer.Kind == d.pod.Kind && peer.PeerIndex == d.pod.Index: // else the index of some other namespace
		d.host = peer
	}
	return d, nil
}

// Close releases the handles.
func (d *device) Close() {
	if d.in != nil {
		d.in.Close()
	}
	if d.out != nil {
		d.out.Close()
	}
	if d.ns != nil {
		d.ns.Close()
	}
}

// side is a device in one of the two namespaces.
type side struct {
	h     *rtnl.Handle
	index int
	mtu   int
}

// podSide is the pod's own device, and hostSide its other end.
func (d *device) podSide() side  { return side{d.in, d.pod.Index, d.pod.MTU} }
func (d *device) hostSide() side { return side{d.out, d.host.Index, d.host.MTU} }

// ifbSide is the intermediate device called name beside s. The error wraps
// rtnl.ErrNotFound when there is none.
func (s side) ifbSide(name string) (side, error) {
	l, err := s.h.LinkByName(name)
	if err != nil {
		return side{}, err
	}
	if l.Kind != rtnl.KindIFB {
		return side{}, fmt.Errorf("%s is a %s device: %w", name, l.Kind, rtnl.ErrExist)
	}
	return side{s.h, l.Index, l.MTU}, nil
}
