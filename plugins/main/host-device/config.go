// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"encoding/json"
	"net"
	"path"
	"strings"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
)

// conf is the network configuration; README.md describes the keys.
type conf struct {
	cniconf.Common

	Device       string          `json:"device"`
	HWAddr       string          `json:"hwaddr"`
	KernelPath   string          `json:"kernelpath"`
	PCIBusID     string          `json:"pciBusID"`
	DPDKMode     bool            `json:"DPDKMode"`
	DNS          types.DNS       `json:"dns"`
	IPAM         json.RawMessage `json:"ipam"`
	Capabilities struct {
		DeviceID bool `json:"deviceID"`
	} `json:"capabilities"`
}

// request is a validated call.
type request struct {
	conf
	args     *cniskel.Args
	ref      attachments.ID
	ipamType string // empty: no addresses
	hwAddr   net.HardwareAddr
	aux      string // device of the auxiliary bus
	dpdk     bool
}

// parse decodes and validates a call, down to which device is meant. Errors
// name key and value.
func (p *plugin) parse(a *cniskel.Args) (*request, error) {
	r, err := p.parseAny(a)
	if err != nil {
		return nil, err
	}
	if r.unspecified() {
		return nil, cnierr.New(cnierr.CodeConfig, "missing key: one of device, hwaddr, kernelpath, pciBusID or runtimeConfig.deviceID must name the device", "")
	}
	return r, cniops.CheckResult(r.ipamType, r.Version())
}

func (r *request) unspecified() bool {
	return r.Device == "" && r.HWAddr == "" && r.KernelPath == "" && r.PCIBusID == "" && r.aux == ""
}

// byPCI reports that pciBusID is the key that counts.
func (r *request) byPCI() bool {
	return r.Device == "" && r.hwAddr == nil && r.KernelPath == "" && r.PCIBusID != ""
}

// path returns what the device was found by when that is no name, address or
// PCI address.
func (r *request) path() string {
	switch {
	case r.Device != "":
		return r.Device // an alternative name, maybe
	case r.KernelPath != "":
		return r.KernelPath
	}
	return r.aux
}

// parseAny is parse for a call that may lack the device.
func (p *plugin) parseAny(a *cniskel.Args) (*request, error) {
	r := &request{args: a}
	if err := cniconf.Load(a.StdinData, &r.conf); err != nil {
		return nil, err
	}
	r.ref = a.Ref(r.Name)
	var err error
	if r.ipamType, err = ipam.Type(r.IPAM); err != nil {
		return nil, err
	}
	for _, step := range []func() error{r.checkKeys, func() error { return r.takeDeviceID(p.sys) }, func() error { return r.findDriver(p.sys) }} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// checkKeys validates the key that names the device. The first one counts, as with
// upstream, and those after it need not be valid.
func (r *request) checkKeys() (err error) {
	switch {
	case r.Device != "":
		if why := cniconf.BadLinkName(r.Device); why != "" {
			return cnierr.Config("device", r.Device, why)
		}
	case r.HWAddr != "":
		if r.hwAddr, err = net.ParseMAC(r.HWAddr); err != nil {
			return cnierr.Config("hwaddr", r.HWAddr, "not a hardware address")
		}
	case r.KernelPath != "":
		if !strings.HasPrefix(path.Clean(r.KernelPath), "/sys/devices/") {
			return cnierr.Config("kernelpath", r.KernelPath, "must be a path below /sys/devices/")
		}
		if strings.ContainsFunc(r.KernelPath, unicode.IsControl) {
			return cnierr.Config("kernelpath", r.KernelPath, "must have no control characters")
		}
	}
	return nil
}

// takeDeviceID puts what the runtime's device plugin chose in the place of
// pciBusID. Which bus it means is found by looking.
func (r *request) takeDeviceID(s sysfs) error {
	var runtime struct {
		DeviceID string `json:"deviceID"`
	}
	if err := cniconf.DecodeSection("runtimeConfig", r.RuntimeConfig, &runtime); err != nil {
		return err
	}
	id := runtime.DeviceID
	if id == "" {
		why := badID(r.PCIBusID)
		if r.Capabilities.DeviceID && r.args.ContainerID == "" && (why != "" || !s.has(pciDevices, r.PCIBusID)) {
			r.PCIBusID, why = "", "" // a placeholder: STATUS has no runtimeConfig
		}
		if why != "" {
			return cnierr.Config("pciBusID", r.PCIBusID, why)
		}
		return nil
	}
	if why := badID(id); why != "" {
		return cnierr.Config("runtimeConfig.deviceID", id, why)
	}
	switch {
	case s.has(pciDevices, id):
		r.PCIBusID = id
	case s.has(auxDevices, id):
		r.PCIBusID, r.aux = "", id
	default:
		return cnierr.Config("runtimeConfig.deviceID", id, "no such device on the PCI and auxiliary buses")
	}
	return nil
}

// findDriver decides on DPDK mode. Where a PCI device is given, its driver
// decides; else the configuration's word counts.
func (r *request) findDriver(s sysfs) (err error) {
	r.dpdk = r.DPDKMode
	if r.PCIBusID == "" {
		return nil
	}
	if !s.has(pciDevices, r.PCIBusID) {
		return cnierr.Config("pciBusID", r.PCIBusID, "no such device on the PCI bus")
	}
	r.dpdk, err = s.inUserspace(r.PCIBusID)
	return cnierr.Wrap(cnierr.CodeKernel, err, "find the driver of pciBusID %q", r.PCIBusID)
}
