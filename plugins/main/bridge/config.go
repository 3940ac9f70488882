// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"encoding/json"
	"net"
	"strings"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/nl"
	"github.com/sluice-cni/sluice/pkg/store"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
	"github.com/sluice-cni/sluice/plugins/main/internal/masquerade"
)

const (
	defaultBridge = "cni0"

	// Bounds of an Ethernet device's MTU, in bytes; the kernel refuses others.
	minMTU = 68
	maxMTU = 65535

	maxVLAN  = 4094
	ifNameSz = 16
)

// conf is the network configuration; README.md describes the keys.
type conf struct {
	cniconf.Common
	masquerade.Conf

	Bridge             string      `json:"bridge"`
	IsGateway          bool        `json:"isGateway"`
	IsDefaultGateway   bool        `json:"isDefaultGateway"`
	ForceAddress       bool        `json:"forceAddress"`
	MTU                int         `json:"mtu"`
	HairpinMode        bool        `json:"hairpinMode"`
	PromiscMode        bool        `json:"promiscMode"`
	VLAN               int         `json:"vlan"`
	VLANTrunk          []trunkItem `json:"vlanTrunk"`
	PreserveVLAN       bool        `json:"preserveDefaultVlan"`
	MACSpoofChk        bool        `json:"macspoofchk"`
	EnableDAD          bool        `json:"enabledad"`
	DisableContainerIf bool        `json:"disableContainerInterface"`
	PortIsolation      bool        `json:"portIsolation"`
	DNS                types.DNS   `json:"dns"`

	IPAM json.RawMessage `json:"ipam"`
}

// trunkItem is one entry of vlanTrunk: an id, a range, or both.
type trunkItem struct {
	ID    *int `json:"id"`
	MinID *int `json:"minID"`
	MaxID *int `json:"maxID"`
}

// request is a validated call.
type request struct {
	conf
	args     *cniplugin.Args
	ref      store.Ref
	ipamType string           // empty: layer 2 only
	mac      net.HardwareAddr // wanted by the caller; nil: the kernel chooses
	trunk    []nl.VLAN        // tagged VLANs, ascending, merged
}

// vlanAware reports that the bridge must filter VLANs. An empty vlanTrunk asks
// for it too, as in the reference plugin.
func (r *request) vlanAware() bool { return r.VLAN != 0 || r.VLANTrunk != nil }

// masquerade reports that ipMasq has something to act on.
func (r *request) masquerade() bool { return r.IPMasq && r.ipamType != "" }

func (r *request) checkMasquerade() error { return r.Validate() }

// parse decodes and validates everything that can be validated without looking
// at the kernel. Errors name key and value.
func parse(a *cniplugin.Args) (*request, error) {
	r := &request{args: a}
	if err := cniconf.Load(a.StdinData, &r.conf); err != nil {
		return nil, err
	}
	r.ref = store.Ref{Network: r.Name, ContainerID: a.ContainerID, IfName: a.IfName}
	if r.Bridge == "" {
		r.Bridge = defaultBridge
	}
	r.IsGateway = r.IsGateway || r.IsDefaultGateway
	for _, step := range []func() error{
		r.parseIPAM, r.parseMAC, r.parseTrunk, r.checkBridge, r.checkNumbers, r.checkPairs, r.checkMasquerade, r.checkResult,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *request) parseIPAM() (err error) {
	r.ipamType, err = ipam.Type(r.IPAM)
	return err
}

// parseMAC finds the wanted address; the last of the three places wins.
func (r *request) parseMAC() error {
	if err := cniconf.ParseArgs(r.args.Args, map[string]func(string) error{
		"MAC": func(s string) error { return r.setMAC("MAC", s) },
	}); err != nil {
		return err
	}
	var args struct {
		CNI struct {
			MAC string `json:"mac"`
		} `json:"cni"`
	}
	if err := cniconf.Section("args", r.Args, &args); err != nil {
		return err
	}
	if err := r.setMAC("args.cni.mac", args.CNI.MAC); err != nil {
		return err
	}
	var rt struct {
		MAC string `json:"mac"`
	}
	if err := cniconf.Section("runtimeConfig", r.RuntimeConfig, &rt); err != nil {
		return err
	}
	return r.setMAC("runtimeConfig.mac", rt.MAC)
}

func (r *request) setMAC(key, s string) (err error) {
	if s == "" {
		return nil
	}
	r.mac, err = cniconf.ParseMAC(key, s)
	return err
}

func (r *request) checkBridge() error {
	if why := badIfName(r.Bridge); why != "" {
		return cnierr.Config("bridge", r.Bridge, why)
	}
	if name := r.vlanGatewayName(); r.IsGateway && r.VLAN != 0 && len(name) >= ifNameSz {
		return cnierr.Config("bridge", r.Bridge, "the VLAN gateway's name "+name+" has more than 15 characters")
	}
	return nil
}

// badIfName says why s cannot name a network device, with an empty answer for a
// name that can.
func badIfName(s string) string {
	switch {
	case len(s) >= ifNameSz:
		return "an interface name has at most 15 characters"
	case s == "." || s == "..":
		return "not an interface name"
	case strings.ContainsFunc(s, func(c rune) bool { return c == '/' || c == ':' || c == '%' || unicode.IsSpace(c) || c == 0 }):
		return "an interface name has no slash, colon, percent sign or white space"
	}
	return ""
}

func (r *request) checkNumbers() error {
	if r.MTU != 0 && (r.MTU < minMTU || r.MTU > maxMTU) {
		return cnierr.Config("mtu", r.MTU, "must be 0 or 68 to 65535")
	}
	if r.VLAN < 0 || r.VLAN > maxVLAN {
		return cnierr.Config("vlan", r.VLAN, "must be 0 to 4094")
	}
	return nil
}

func (r *request) checkPairs() error {
	if r.HairpinMode && r.PromiscMode {
		return cnierr.Config("hairpinMode", true, "cannot be used together with promiscMode")
	}
	if r.DisableContainerIf && r.ipamType != "" {
		return cnierr.Config("disableContainerInterface", true, "cannot be used together with ipam")
	}
	return nil
}

// checkResult refuses a result that the configuration's version cannot carry
// before anything is made. With IPAM there will be an address, which every
// version can.
func (r *request) checkResult() error {
	if r.ipamType != "" {
		return nil
	}
	_, err := cniconf.Convert(&types100.Result{Interfaces: []*types100.Interface{{Name: r.Bridge}}}, r.Version())
	return err
}

func (r *request) vlanGatewayName() string { return vlanGatewayName(r.Bridge, r.VLAN) }

// dnsIsSet reports that the configuration has its own DNS settings, which then
// replace the IPAM plugin's entirely; an empty list counts.
func dnsIsSet(d types.DNS) bool {
	return d.Nameservers != nil || d.Search != nil || d.Options != nil || d.Domain != ""
}
