// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/jsonobj"
)

// Routes decodes a list of routes of a configuration. key names the list in
// errors, which have code 7. A route needs a destination.
func Routes(key string, list []json.RawMessage) ([]*types.Route, error) {
	var routes []*types.Route
	for i, raw := range list {
		key := fmt.Sprintf("%s[%d]", key, i)
		r, err := decodeRoute(raw)
		if err != nil {
			return nil, cnierr.Config(key, string(raw), err.Error())
		}
		if r == nil || r.Dst.IP == nil {
			return nil, cnierr.Config(key+".dst", "", "a route needs a destination")
		}
		routes = append(routes, r)
	}
	return routes, nil
}

// decodeRoute is json.Unmarshal for the library's type, which it reaches by way of
// three others; only what is not plain goes that way.
func decodeRoute(raw json.RawMessage) (r *types.Route, err error) {
	if p := (plainRoute{}); jsonobj.Decode("route", raw, &p) == nil {
		if r := p.parse(); r != nil {
			return r, nil
		}
	}
	err = json.Unmarshal(raw, &r)
	return r, err // the caller names the key
}

// plainRoute is a route whose addresses are text still.
//
//jsonobj:object
type plainRoute struct {
	Dst      string `json:"dst"`
	GW       string `json:"gw"`
	MTU      int    `json:"mtu"`
	AdvMSS   int    `json:"advmss"`
	Priority int    `json:"priority"`
	Table    *int   `json:"table"`
	Scope    *int   `json:"scope"`
}

// parse parses the addresses. It returns nil if there is an error to report, or no destination.
func (p *plainRoute) parse() *types.Route {
	dst, err := types.ParseCIDR(p.Dst)
	if err != nil {
		return nil
	}
	r := &types.Route{Dst: *dst, MTU: p.MTU, AdvMSS: p.AdvMSS, Priority: p.Priority, Table: p.Table, Scope: p.Scope}
	if p.GW != "" {
		if r.GW = net.ParseIP(p.GW); r.GW == nil {
			return nil
		}
	}
	return r
}

// ParseAddr parses the IP address given under a key. IPv4 in IPv6 notation is
// IPv4; an address with a zone is an error (code 7), like what is none.
func ParseAddr(key, s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, cnierr.Config(key, s, "not an IP address")
	}
	if a.Zone() != "" {
		return netip.Addr{}, cnierr.Config(key, s, "an address with a zone cannot be used here")
	}
	return a.Unmap(), nil
}
