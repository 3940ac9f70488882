// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"encoding/json"
	"net"
	"strings"

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

	MultiQueue     bool            `json:"multiQueue"`
	MTU            int             `json:"mtu"`
	MAC            string          `json:"mac"`
	Owner          *uint32         `json:"owner"`
	Group          *uint32         `json:"group"`
	SELinuxContext string          `json:"selinuxContext"`
	Bridge         string          `json:"bridge"`
	DNS            types.DNS       `json:"dns"`
	IPAM           json.RawMessage `json:"ipam"`
}

// request is a validated call.
type request struct {
	conf
	args     *cniskel.Args
	ref      attachments.ID
	ipamType string           // empty: layer 2 only
	mac      net.HardwareAddr // nil: the kernel chooses
}

// parse decodes and validates everything that can be validated without looking
// at the kernel. Errors name key and value.
func parse(a *cniskel.Args) (*request, error) {
	r := &request{args: a}
	if err := cniconf.Load(a.StdinData, &r.conf); err != nil {
		return nil, err
	}
	r.ref = a.Ref(r.Name)
	var err error
	if r.ipamType, err = ipam.Type(r.IPAM); err != nil {
		return nil, err
	}
	if r.mac, err = r.wantedMAC(); err != nil {
		return nil, err
	}
	if err := cniops.CheckMTU(r.MTU); err != nil {
		return nil, err
	}
	if r.Bridge != "" {
		if why := cniconf.BadIfName(r.Bridge); why != "" {
			return nil, cnierr.Config("bridge", r.Bridge, why)
		}
	}
	if strings.ContainsAny(r.SELinuxContext, "\x00\n") {
		return nil, cnierr.Config("selinuxContext", r.SELinuxContext, "not a label")
	}
	return r, cniops.CheckResult(r.ipamType, r.Version())
}

// wantedMAC looks in all the places of the main plugins but one: args.cni is
// not read, as by the upstream plugin.
func (r *request) wantedMAC() (net.HardwareAddr, error) {
	c := r.Common
	c.Args = nil
	return cniops.MAC(r.args, &c, r.MAC)
}
