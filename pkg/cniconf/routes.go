// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// Routes decodes a list of routes of a configuration. key names the list in
// errors, which have code 7. A route needs a destination.
func Routes(key string, list []json.RawMessage) ([]*types.Route, error) {
	var routes []*types.Route
	for i, raw := range list {
		key := fmt.Sprintf("%s[%d]", key, i)
		var r *types.Route
		if err := json.Unmarshal(raw, &r); err != nil {
			return nil, cnierr.Config(key, string(raw), err.Error())
		}
		if r == nil || r.Dst.IP == nil {
			return nil, cnierr.Config(key+".dst", "", "a route needs a destination")
		}
		routes = append(routes, r)
	}
	return routes, nil
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
