// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"context"
	"encoding/json"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
)

func (p *plugin) record(ref attachments.ID) cniops.Record {
	return cniops.Record{Dir: p.Records, ID: ref, Section: Name}
}

// del gives the device back. It needs no more than the attachment's name.
func (p *plugin) del(ctx context.Context, a *cniskel.Args) error {
	c, err := cniops.ParseDel(a.StdinData)
	if err != nil {
		return err
	}
	ref := a.Ref(c.Name)
	if name := p.nameAtAdd(a, ref); name != c.Name {
		ref.Network = name
		if a, err = underName(a, name); err != nil {
			return err
		}
	}
	return p.detach(ctx, a, c, ref)
}

// nameAtAdd is the network's name, or the one that it had when the device was lent. The operator may have changed it since, and
// the device must still come home, as with upstream. The device tells this from a DEL of an attachment that was never made:
// the configuration must mean the one that is lent under CNI_IFNAME.
func (p *plugin) nameAtAdd(a *cniskel.Args, ref attachments.ID) string {
	if p.remember(ref).found {
		return ref.Network
	}
	r, err := p.parseAny(a)
	if err != nil {
		return ref.Network
	}
	records, _ := p.Records.List("") // what cannot be read is no record
	for _, rec := range records {
		var s section
		if ok, err := rec.Section(Name, &s); !ok || err != nil || !r.means(s) {
			continue
		}
		if rec.ContainerID == ref.ContainerID && rec.IfName == ref.IfName && (a.Netns == "" || rec.NetNS == a.Netns) {
			return rec.Network
		}
	}
	return ref.Network
}

// underName is the call with another network name, which IPAM has the addresses under.
func underName(a *cniskel.Args, name string) (*cniskel.Args, error) {
	var conf map[string]json.RawMessage
	quoted, err := json.Marshal(name)
	if err == nil {
		err = cniconf.Load(a.StdinData, &conf)
	}
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeDecode, err, "rename the network")
	}
	conf["name"] = quoted
	stdin, err := json.Marshal(conf)
	call := *a
	call.StdinData = stdin
	return &call, cnierr.Wrap(cnierr.CodeDecode, err, "rename the network")
}

// detach ends one loan: the device, the addresses and then the record. It goes
// on after an error; the record stays while something is left.
func (p *plugin) detach(ctx context.Context, a *cniskel.Args, c cniops.DelConf, ref attachments.ID) error {
	old := p.remember(ref)
	back := func() error { return p.giveBack(ctx, a, ref, old) }
	if !old.found {
		back = func() error {
			if p.Records.Claimed(ref, a.Netns) {
				return nil // the interface is another attachment's
			}
			return giveBackUnrecorded(a)
		}
	}
	return p.record(ref).Detach(ctx, p.IPAM, a, c.IPAM, old.IPAM, back)
}

// giveBack returns a recorded device to the host. A device that is nowhere is
// gone, with its pod if it was a virtual one.
func (p *plugin) giveBack(ctx context.Context, a *cniskel.Args, ref attachments.ID, old remembered) error {
	if old.Device == "" { // never moved
		return nil
	}
	e, err := openHost()
	if err != nil {
		return err
	}
	defer e.close()
	gone, err := e.openRecorded(a.Netns, old)
	if err != nil {
		return err
	}
	if gone && old.Kind == "" && !p.claimed(old.section, ref) {
		e.await(ctx, old.section, a)
	}
	return e.returnDevice(old.section, ref.IfName, a.Log)
}

// openRecorded opens the namespace the device went to, by the path of the call
// or the recorded one, if it is still the same. It reports that there is none.
func (e *ends) openRecorded(path string, old remembered) (gone bool, err error) {
	ns, err := netns.Reopen(old.NetNS, path, old.path)
	if ns == nil {
		return err == nil, cnierr.Wrap(cnierr.CodeNetNS, err, "open the pod's network namespace")
	}
	e.podNS = ns
	e.pod, err = rtnl.NewIn(ns)
	return false, cnierr.Wrap(cnierr.CodeNetNS, err, "open the pod's network namespace")
}

// await gives the kernel time to bring hardware home from a namespace that has
// just ended, which it does in the background.
func (e *ends) await(ctx context.Context, s section, a *cniskel.Args) {
	w, err := rtnl.Subscribe(rtnl.GroupLink)
	if err != nil {
		return
	}
	defer w.Close()
	ctx, cancel := context.WithTimeout(ctx, homeTimeout)
	defer cancel()
	if err := w.Wait(ctx, 0, func() (bool, error) {
		_, found, err := findOnHost(e.host, s, a.IfName)
		return found, err
	}); err != nil {
		a.Log.Warn("the device has not come back: unplugged, or something keeps the pod's namespace alive",
			log.String(log.KeyDevice, s.Device), log.Error(err))
	}
}

// giveBackUnrecorded returns the device of an attachment without a record:
// upstream's, or one whose record is lost. The alias of CNI_IFNAME is
// its name then. Where the namespace is gone, the configured device is looked
// for among those that came home by themselves.
func giveBackUnrecorded(a *cniskel.Args) error {
	e, err := openHost()
	if err != nil {
		return err
	}
	defer e.close()
	if _, err := e.openRecorded(a.Netns, remembered{}); err != nil {
		return err
	}
	if e.pod == nil {
		var c struct {
			Device string `json:"device"`
		}
		_ = cniconf.Load(a.StdinData, &c) // what does not decode names no device
		return e.bringHome(c.Device, a)
	}
	l, err := e.pod.LinkByName(a.IfName)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, unless(err, rtnl.ErrNotFound), "look up %s in the pod", a.IfName)
	}
	if l.Alias == "" || cniconf.BadIfName(l.Alias) != "" {
		return nil // nothing says that it was lent
	}
	s := describe(l, l.Alias)
	s.Alias = ""
	return e.returnDevice(s, a.IfName, a.Log)
}

// bringHome gives hardware that has lost its name to a pod the name back.
func (e *ends) bringHome(own string, a *cniskel.Args) error {
	if own == "" {
		return nil
	}
	links, err := e.host.Links()
	if err != nil {
		return cnierr.Wrap(cnierr.CodeKernel, err, "list the host's devices")
	}
	for _, l := range links {
		if l.Alias == own && l.Name != own && l.Kind == "" {
			s := describe(l, own)
			s.Alias = ""
			return e.returnDevice(s, a.IfName, a.Log)
		}
	}
	return nil
}
