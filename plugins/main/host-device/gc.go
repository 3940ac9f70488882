// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"context"
	"errors"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
)

// gc gives back what this network's records lend to attachments that the
// runtime no longer lists, then lets the IPAM plugin collect. The namespace is
// the recorded one, if it is still the same.
func (p *plugin) gc(ctx context.Context, a *cniskel.Args) error {
	return cniops.Collector{
		Section: Name, List: p.Records.List, IPAM: p.IPAM,
		Detach: func(ctx context.Context, call *cniskel.Args, c cniops.DelConf, rec *attachments.Record) error {
			return p.detach(ctx, call, c, rec.ID)
		},
	}.GC(ctx, a)
}

// status says whether the configuration is one that ADD accepts, and whether the
// device it names exists: on the host, or with a pod it was lent to. A runtime
// may call it without the device that it would give to ADD.
func (p *plugin) status(ctx context.Context, a *cniskel.Args) error {
	r, err := p.parseAny(a)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeUnavailable, err, "ADD would fail")
	}
	var errs []error
	switch {
	case r.unspecified() && r.Capabilities.DeviceID:
	case r.unspecified():
		_, err := p.parse(a)
		errs = append(errs, cnierr.Wrap(cnierr.CodeUnavailable, err, "ADD would fail"))
	case !r.dpdk:
		errs = append(errs, p.deviceStatus(r))
	}
	if r.ipamType != "" {
		errs = append(errs, p.IPAM.Status(ctx, a, r.ipamType))
	}
	return errors.Join(errs...)
}

// deviceStatus reports a device that is neither here nor lent.
func (p *plugin) deviceStatus(r *request) error {
	e, err := openHost()
	if err != nil {
		return err
	}
	defer e.close()
	_, _, err = p.find(e.host, r)
	if err == nil || p.lent(r) {
		return nil
	}
	return cnierr.Wrap(cnierr.CodeUnavailable, err, "ADD would fail")
}

// lent reports that some attachment has the device that r means.
func (p *plugin) lent(r *request) bool {
	records, err := p.Records.List("")
	if err != nil {
		return false
	}
	for _, rec := range records {
		var s section
		if ok, err := rec.Section(Name, &s); !ok || err != nil {
			continue
		}
		if r.means(s) {
			return true
		}
	}
	return false
}

// means reports that s is of the device that the configuration names.
func (r *request) means(s section) bool {
	switch {
	case r.Device != "":
		return s.Device == r.Device || s.Path == r.Device
	case r.hwAddr != nil:
		return s.MAC == r.hwAddr.String()
	case r.byPCI():
		return s.PCI == r.PCIBusID
	}
	return r.path() != "" && s.Path == r.path()
}
