// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"bytes"
	"errors"
	"net"
	"time"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

const (
	// homeTimeout bounds the wait for hardware whose namespace has ended.
	homeTimeout = 3 * time.Second
	// spareName is what a device is called whose own name another device has
	// taken: the kernel puts a free number in.
	spareName = "dev%d"
)

// returnDevice brings a lent device home, from the pod or from wherever on the
// host it got to, down and under its own name. A device that is nowhere needs
// nothing. One whose name has been taken gets a spare one and keeps its own
// in its alias; a failure would hold up the pod's end and help no process.
func (e *ends) returnDevice(s section, lentAs string, l *log.Logger) error {
	if err := e.fetch(s, lentAs); err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "give %s back to the host", s.Device)
	}
	dev, found, err := findOnHost(e.host, s, lentAs)
	if err != nil || !found {
		return cnierr.Wrap(cnierr.CodeKernel, err, "find %s on the host", s.Device)
	}
	if err := e.rename(dev, s); err != nil {
		if !errors.Is(err, rtnl.ErrExist) {
			return cnierr.Wrap(cnierr.CodeKernel, err, "give %s its own name %s back", dev.Name, s.Device)
		}
		l.Warn("another device has taken the name: the returned one keeps a spare name, and its own in its alias",
			log.String(log.KeyDevice, s.Device), log.String("spare", dev.Name))
		s.Alias = s.Device
	}
	return cnierr.Wrap(cnierr.CodeKernel, e.reset(dev, s, l), "restore %s", s.Device)
}

// fetch moves the device out of the pod if it is there. When its name is taken
// on the host it goes under a spare one.
func (e *ends) fetch(s section, lentAs string) error {
	if e.pod == nil {
		return nil
	}
	dev, found, err := findIn(e.pod, s, lentAs)
	if err == nil && !found {
		dev, found, err = e.mark(s, lentAs)
	}
	if err != nil || !found {
		return err
	}
	fd := e.hostNS.Fd()
	home := func(name string) error { return e.pod.SetLink(dev.Index, rtnl.LinkChange{NetNS: &fd, Name: &name}) }
	if err = home(s.Device); !errors.Is(err, rtnl.ErrExist) {
		return unless(err, rtnl.ErrNotFound)
	}
	if _, there := e.pod.LinkByIndex(dev.Index); there != nil {
		return unless(there, rtnl.ErrNotFound) // moved, under the name it had in the pod
	}
	if err = home(spareName); errors.Is(err, rtnl.ErrExist) {
		// An alternative name, which the pod may have given it, is taken on the host.
		if err = e.pod.DropAltNames(dev.Index); err == nil {
			err = home(s.Device)
		}
		if errors.Is(err, rtnl.ErrExist) {
			err = home(spareName)
		}
	}
	return unless(err, rtnl.ErrNotFound)
}

// mark puts the loan's mark back on a bare device from which the pod has taken
// it: on the host nothing else would tell it from others.
func (e *ends) mark(s section, lentAs string) (dev rtnl.Link, found bool, err error) {
	dev, err = e.pod.LinkByName(lentAs)
	if err != nil || !s.bare(dev, lentAs) {
		return dev, false, unless(err, rtnl.ErrNotFound)
	}
	return dev, true, e.pod.SetLink(dev.Index, rtnl.LinkChange{Alias: &s.Device})
}

// rename gives a device on the host its own name; a spare one when that is
// taken and the one it has is the pod's.
func (e *ends) rename(dev rtnl.Link, s section) error {
	if dev.Name == s.Device {
		return nil
	}
	if dev.Up {
		if err := e.host.SetDown(dev.Index); err != nil {
			return err
		}
	}
	return e.host.SetName(dev.Index, s.Device)
}

// reset takes the loan's mark off the device and undoes what the pod may have
// changed of it. Addresses and state the kernel has reset by the move. A virtual
// function may not be free to choose its address or MTU: that is only said.
func (e *ends) reset(dev rtnl.Link, s section, l *log.Logger) error {
	var errs []error
	if s.MTU != 0 && dev.MTU != s.MTU {
		errs = append(errs, e.host.SetMTU(dev.Index, s.MTU))
	}
	if mac, err := net.ParseMAC(s.MAC); err == nil && !bytes.Equal(mac, dev.MAC) {
		errs = append(errs, e.host.SetMAC(dev.Index, mac))
	}
	if err := errors.Join(errs...); err != nil {
		l.Warn("the device stays as the pod left it", log.String(log.KeyDevice, s.Device), log.Error(err))
	}
	if dev.Alias == s.Alias {
		return nil
	}
	return e.host.SetLink(dev.Index, rtnl.LinkChange{Alias: &s.Alias})
}

// findOnHost looks for the device by its own name and by the one it was lent
// under before it goes through all devices.
func findOnHost(host *rtnl.Handle, s section, lentAs string) (rtnl.Link, bool, error) {
	for _, name := range []string{s.Device, lentAs} {
		if name == "" {
			continue
		}
		l, err := host.LinkByName(name)
		if err == nil && s.same(l, lentAs) {
			return l, true, nil
		}
		if err != nil && !errors.Is(err, rtnl.ErrNotFound) {
			return l, false, err
		}
	}
	return findIn(host, s, lentAs)
}

// findIn goes through the devices of a namespace. One with the loan's mark is
// preferred: two functions of a card may share an address.
func findIn(h *rtnl.Handle, s section, lentAs string) (dev rtnl.Link, found bool, err error) {
	links, err := h.Links()
	if err != nil {
		return rtnl.Link{}, false, err
	}
	for _, l := range links {
		if s.same(l, lentAs) && (!found || l.Alias == s.Device) {
			dev, found = l, true
		}
	}
	return dev, found, nil
}
