// SPDX-License-Identifier: Apache-2.0

package static

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
)

// netConf is what the plugin reads of a network configuration: an IPAM plugin
// gets the whole configuration of the interface plugin that calls it.
type netConf struct {
	cniconf.Common
	IPAM *ipamConf `json:"ipam"`
}

type ipamConf struct {
	Addresses []struct {
		Address string `json:"address"`
		// Not read: programs that encode upstream's structure write the address a second time, decoded, under this name.
		Decoded json.RawMessage `json:"Address"`
		Gateway string          `json:"gateway"`
	} `json:"addresses"`
	Routes []json.RawMessage `json:"routes"`
	DNS    types.DNS         `json:"dns"`
}

// config is a validated configuration.
type config struct {
	version string
	addrs   []address
	routes  []*types.Route
	dns     types.DNS
}

// address is one address, with its own bits kept and its subnet's length.
type address struct {
	key     string // where it comes from, for errors
	prefix  netip.Prefix
	gateway netip.Addr // invalid: none
}

// load decodes and validates the configuration of a call. Addresses come from
// the configuration and, behind those, from CNI_ARGS; args.cni.ips replaces
// both, and runtimeConfig.ips replaces all three.
func load(a *cniskel.Args) (*config, error) {
	var n netConf
	if err := cniconf.Load(a.StdinData, &n); err != nil {
		return nil, err
	}
	if n.IPAM == nil {
		return nil, cnierr.New(cnierr.CodeConfig, `missing key "ipam"`, "")
	}
	c := &config{version: n.Version(), dns: n.IPAM.DNS}
	later, err := laterSources(&n)
	if err != nil {
		return nil, err
	}
	if len(later) == 0 && !cniconf.Awaits(a.StdinData, a.ContainerID, "ips") { // else they are replaced, and may be placeholders
		for i, e := range n.IPAM.Addresses {
			if err := c.configured(fmt.Sprintf("ipam.addresses[%d]", i), e.Address, e.Gateway); err != nil {
				return nil, err
			}
		}
	}
	if err := c.fromCNIArgs(a.Args); err != nil {
		return nil, err
	}
	for _, from := range later {
		if err := c.replace(from); err != nil {
			return nil, err
		}
	}
	if c.routes, err = cniconf.Routes("ipam.routes", n.IPAM.Routes); err != nil {
		return nil, err
	}
	return c, c.validate()
}

func (c *config) configured(key, addr, gateway string) error {
	if err := c.append(key+".address", addr); err != nil {
		return err
	}
	if gateway == "" {
		return nil
	}
	gw, err := cniconf.ParseAddr(key+".gateway", gateway)
	c.addrs[len(c.addrs)-1].gateway = gw
	return err
}

func (c *config) append(key, text string) error {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return cnierr.Config(key, text, "not an address with a prefix length (CIDR notation)")
	}
	c.addrs = append(c.addrs, address{key: key, prefix: p})
	return nil
}

// fromCNIArgs appends the addresses of IP, and gives each of them the gateway of
// GATEWAY that its subnet contains. Addresses of the configuration keep theirs, as
// with upstream's program.
func (c *config) fromCNIArgs(args string) error {
	configured := len(c.addrs)
	var gateways []netip.Addr
	err := cniconf.ParseArgs(args, map[string]func(string) error{
		"IP": func(list string) error {
			for _, s := range split(list) {
				if err := c.append("IP", s); err != nil {
					return err
				}
			}
			return nil
		},
		"GATEWAY": func(list string) error {
			for _, s := range split(list) {
				gw, err := cniconf.ParseAddr("GATEWAY", s)
				if err != nil {
					return err
				}
				gateways = append(gateways, gw)
			}
			return nil
		},
		"MAC": cniconf.IgnoreArg,
	})
	if err != nil {
		return err
	}
	for _, gw := range gateways { // GATEWAY may stand before IP
		for i := configured; i < len(c.addrs); i++ {
			if c.addrs[i].prefix.Contains(gw) {
				c.addrs[i].gateway = gw
			}
		}
	}
	return nil
}

// split is strings.Split by comma, but nothing for nothing.
func split(list string) []string {
	if list == "" {
		return nil
	}
	items := strings.Split(list, ",")
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
	}
	return items
}

// source is a list of addresses that replaces those of earlier sources.
type source struct {
	key string
	ips []string
}

// laterSources are the lists that replace what the configuration and CNI_ARGS say, in
// their order. What they say has to be valid, as with upstream, also if the other one
// replaces it.
func laterSources(n *netConf) (out []source, _ error) {
	type requested struct {
		IPs []string `json:"ips"`
	}
	var args struct {
		CNI requested `json:"cni"`
	}
	var runtime requested
	if err := cniconf.DecodeSection("args", n.Args, &args); err != nil {
		return nil, err
	}
	if err := cniconf.DecodeSection("runtimeConfig", n.RuntimeConfig, &runtime); err != nil {
		return nil, err
	}
	for _, s := range []source{{"args.cni.ips", args.CNI.IPs}, {"runtimeConfig.ips", runtime.IPs}} {
		if len(s.ips) > 0 {
			out = append(out, s)
		}
	}
	return out, nil
}

func (c *config) replace(from source) error {
	c.addrs = nil
	for i, s := range from.ips {
		if err := c.append(fmt.Sprintf("%s[%d]", from.key, i), s); err != nil {
			return err
		}
	}
	return nil
}

// validate refuses what no interface could be given.
func (c *config) validate() error {
	perFamily, seen := map[bool]int{}, make(map[netip.Addr]bool, len(c.addrs))
	for _, e := range c.addrs {
		if e.prefix.Addr().IsUnspecified() || e.prefix.Addr().IsMulticast() {
			return cnierr.Config(e.key, e.prefix.String(), "no interface can have this address")
		}
		if seen[e.prefix.Addr()] {
			return cnierr.Config(e.key, e.prefix.String(), "the address is given twice")
		}
		seen[e.prefix.Addr()] = true
		if e.gateway.IsValid() && e.gateway.Is4() != e.prefix.Addr().Is4() {
			return cnierr.Config(e.key, e.prefix.String(), "its gateway "+e.gateway.String()+" is of the other family")
		}
		perFamily[e.prefix.Addr().Is4()]++
	}
	if (c.version == "0.1.0" || c.version == "0.2.0") && (perFamily[true] > 1 || perFamily[false] > 1) {
		return cnierr.New(cnierr.CodeConfig, "CNI version "+c.version+" does not support more than 1 address per family", "")
	}
	return nil
}
