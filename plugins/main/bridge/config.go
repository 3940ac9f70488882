// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"encoding/json"
	"net"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
	"github.com/sluice-cni/sluice/plugins/main/internal/ipam"
	"github.com/sluice-cni/sluice/plugins/main/internal/masquerade"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
)

const (
	defaultBridge = "cni0"
	maxVLAN       = 4094
)

// conf is the network configuration; README.md describes the keys.
type conf struct {
	cniconf.Common
	masquerade.Conf
	veth.PairConf

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
	args     *cniskel.Args
	ref      attachments.ID
	ipamType string           // empty: layer 2 only
	mac      net.HardwareAddr // wanted by the caller; nil: the kernel chooses
	trunk    []rtnl.VLAN      // tagged VLANs, ascending, merged
}

// vlanAware reports that the bridge must filter VLANs. An empty vlanTrunk asks
// for it too, as in the upstream plugin.
func (r *request) vlanAware() bool { return r.VLAN != 0 || r.VLANTrunk != nil }

// masquerade reports that ipMasq has something to act on.
func (r *request) masquerade() bool { return r.IPMasq && r.ipamType != "" }

func (r *request) checkMasquerade() error { return r.Validate() }

// parse decodes and validates everything that can be validated without looking
// at the kernel. Errors name key and value.
func parse(a *cniskel.Args) (*request, error) {
	r := &request{args: a}
	if err := cniconf.Load(a.StdinData, &r.conf); err != nil {
		return nil, err
	}
	r.ref = a.Ref(r.Name)
	if r.Bridge == "" {
		r.Bridge = defaultBridge
	}
	r.IsGateway = r.IsGateway || r.IsDefaultGateway
	for _, step := range []func() error{
		r.parseIPAM, r.parseMAC, r.parseTrunk, r.checkBridge, r.checkNumbers, r.checkPairs, r.ValidatePair, r.checkMasquerade, r.checkResult,
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

func (r *request) parseMAC() (err error) {
	r.mac, err = cniops.MAC(r.args, &r.Common, "")
	return err
}

func (r *request) checkBridge() error {
	if why := cniconf.BadIfName(r.Bridge); why != "" {
		return cnierr.Config("bridge", r.Bridge, why)
	}
	return nil
}

// useBridge takes the existing bridge for the one of the configuration, which may
// name it by an alternative name. What follows from the name follows from the
// kernel's: two networks with two names of one bridge share its VLAN gateways.
func (r *request) useBridge(br rtnl.Link) error {
	if br.Index != 0 {
		r.Bridge = br.Name
	}
	if name := r.vlanGatewayName(); r.IsGateway && r.VLAN != 0 && cniconf.BadIfName(name) != "" {
		return cnierr.Config("bridge", r.Bridge, "the VLAN gateway's name "+name+" has more than 15 characters")
	}
	return nil
}

func (r *request) checkNumbers() error {
	if err := cniops.CheckMTU(r.MTU); err != nil {
		return err
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

func (r *request) checkResult() error { return cniops.CheckResult(r.ipamType, r.Version()) }

func (r *request) vlanGatewayName() string { return vlanGatewayName(r.Bridge, r.VLAN) }
