// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	utilnet "k8s.io/utils/net"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// ranges collects the single range and then the list, as whereabouts does.
func (c *Config) ranges(i *ipamConf) error {
	c.lowest = i.LowestFirst != nil && *i.LowestFirst
	list, keys := i.IPRanges, make([]string, len(i.IPRanges))
	for n := range list {
		keys[n] = fmt.Sprintf("ipam.ipRanges[%d]", n)
		for _, f := range []struct{ name, value string }{{"range_start", list[n].RangeStart}, {"range_end", list[n].RangeEnd}} {
			if f.value != "" {
				if _, err := parseAddr(f.value); err != nil {
					return cnierr.Config(keys[n]+"."+f.name, f.value, "not an IP address")
				}
			}
		}
	}
	if i.Range != "" {
		list = append([]rangeConf{{i.Range, i.RangeStart, i.RangeEnd, i.Exclude}}, list...)
		keys = append([]string{"ipam"}, keys...)
	}
	for n := range list {
		r, err := c.parseRange(keys[n], &list[n])
		if err != nil {
			return err
		}
		for o, other := range c.Ranges {
			if r.CIDR == other.CIDR && r.First == other.First && r.Last == other.Last {
				return cnierr.Config(keys[n]+".range", list[n].Range, "the same range as "+c.Keys[o])
			}
		}
		c.Ranges, c.Keys = append(c.Ranges, r), append(c.Keys, keys[n])
	}
	return nil
}

// parseRange reads "CIDR" or "FIRST-LAST/BITS". Start and end that do not lie in the range are ignored, as whereabouts
// ignores them, with a warning.
func (c *Config) parseRange(key string, conf *rangeConf) (pool.Range, error) {
	var r pool.Range
	text, start, end := conf.Range, conf.RangeStart, conf.RangeEnd
	if first, last, ok := strings.Cut(text, "-"); ok {
		a, err := parseAddr(first)
		if err != nil {
			return r, cnierr.Config(key+".range", text, "it does not begin with an IP address")
		}
		p, err := parsePrefix(last)
		if err != nil {
			return r, cnierr.Config(key+".range", text, "it does not end with an address in CIDR notation")
		}
		if !p.Contains(a) {
			return r, cnierr.Config(key+".range", text, first+" is not in "+p.Masked().String())
		}
		text, start, end = last, a.String(), p.Addr().String()
	}
	p, err := parsePrefix(text)
	if err != nil {
		return r, cnierr.Config(key+".range", conf.Range, "not a range in CIDR notation")
	}
	r.CIDR = p.Masked()
	first, last, ok := pool.Usable(r.CIDR)
	if !ok {
		return r, cnierr.Config(key+".range", conf.Range, "too small: it has no usable address")
	}
	r.First, r.Last, r.Lowest = first, last, c.lowest
	c.bound(key+".range_start", start, &r, &r.First)
	c.bound(key+".range_end", end, &r, &r.Last)
	for n, e := range conf.Exclude {
		p, err := parseExclude(e)
		if err != nil {
			return r, cnierr.Config(fmt.Sprintf("%s.exclude[%d]", key, n), e, "neither an address nor a range in CIDR notation")
		}
		r.Exclude = append(r.Exclude, p)
	}
	if c.Gateway.IsValid() && r.CIDR.Contains(c.Gateway) {
		r.Gateway = c.Gateway
	}
	if _, _, ok := r.Bounds(); !ok {
		return r, cnierr.Config(key+".range_start", start, "more than 2^63 addresses behind the start of "+r.CIDR.String())
	}
	return r, nil
}

// bound narrows a range by an address that lies in it.
func (c *Config) bound(key, text string, r *pool.Range, into *netip.Addr) {
	if text == "" {
		return
	}
	a, err := parseAddr(text)
	if err == nil && a.Is4() == r.First.Is4() && !a.Less(r.First) && !r.Last.Less(a) {
		*into = a
		return
	}
	if err != nil || a != r.CIDR.Addr() { // the network's own address is a common way to say "from the start"
		c.Warnings = append(c.Warnings, fmt.Sprintf("%s %q is not usable in the range, and ignored as whereabouts does", key, text))
	}
}

func parseExclude(s string) (netip.Prefix, error) {
	p, err := parsePrefix(s)
	if err == nil {
		return p.Masked(), nil
	}
	a, err := parseAddr(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(a, a.BitLen()), nil
}

// static collects the addresses that no pool has.
func (c *Config) static(i *ipamConf) error {
	for n, a := range i.Addresses {
		key := fmt.Sprintf("ipam.addresses[%d]", n)
		p, err := parsePrefix(a.Address)
		if err != nil {
			return cnierr.Config(key+".address", a.Address, "not an address with a prefix length (CIDR notation)")
		}
		s := Address{Prefix: p}
		if a.Gateway != "" {
			if s.Gateway, err = parseAddr(a.Gateway); err != nil {
				return cnierr.Config(key+".gateway", a.Gateway, "not an IP address")
			}
		}
		c.Static = append(c.Static, s)
	}
	return nil
}

// claimKey names the IPAMClaim of an interface, as an element of Multus' annotation does.
const claimKey = "ipam-claim-reference"

// callConf is what a call says in args.cni or in runtimeConfig.
type callConf struct {
	IPs   []string `json:"ips"`
	Claim string   `json:"ipam-claim-reference"`
}

// call reads what belongs to the call: CNI_ARGS, args.cni.ips and runtimeConfig.ips. All sources count.
func (c *Config) call(cniArgs string, n *netConf) error {
	var gateways []netip.Addr
	err := cniconf.ParseArgs(cniArgs, map[string]func(string) error{
		"IP": func(s string) error { return c.request("CNI_ARGS IP", s) },
		"GATEWAY": func(s string) error {
			for _, g := range split(s) {
				gw, err := parseAddr(g)
				if err != nil {
					return cnierr.Config("CNI_ARGS GATEWAY", g, "not an IP address")
				}
				gateways = append(gateways, gw)
			}
			return nil
		},
		claimKey:                     cniconf.StoreArg(&c.Claim),
		"K8S_POD_NAMESPACE":          cniconf.StoreArg(&c.PodNamespace),
		"K8S_POD_NAME":               cniconf.StoreArg(&c.PodName),
		"K8S_POD_UID":                cniconf.StoreArg(&c.PodUID),
		"K8S_POD_INFRA_CONTAINER_ID": cniconf.IgnoreArg,
		"MAC":                        cniconf.IgnoreArg,
	})
	if err != nil {
		return err
	}
	for _, gw := range gateways {
		for i := range c.Static {
			if c.Static[i].Prefix.Contains(gw) {
				c.Static[i].Gateway = gw
			}
		}
	}
	var args struct {
		CNI callConf `json:"cni"`
	}
	var runtime callConf
	if err := cniconf.DecodeSection("args", n.Args, &args); err != nil {
		return err
	}
	if err := cniconf.DecodeSection("runtimeConfig", n.RuntimeConfig, &runtime); err != nil {
		return err
	}
	for _, claim := range []string{args.CNI.Claim, runtime.Claim} {
		if c.Claim != "" && claim != "" && claim != c.Claim {
			return cnierr.Config(claimKey, claim, "the call names the IPAMClaim "+c.Claim+" too")
		}
		c.Claim = cmp.Or(c.Claim, claim)
	}
	for i, s := range args.CNI.IPs {
		if err := c.request(fmt.Sprintf("args.cni.ips[%d]", i), s); err != nil {
			return err
		}
	}
	for i, s := range runtime.IPs {
		if err := c.request(fmt.Sprintf("runtimeConfig.ips[%d]", i), s); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) request(key, list string) error {
	for _, s := range split(list) {
		r := Request{Key: key}
		var err error
		if strings.Contains(s, "/") {
			r.Prefix, err = parsePrefix(s)
			r.Addr = r.Prefix.Addr()
		} else {
			r.Addr, err = parseAddr(s)
		}
		if err != nil {
			return cnierr.Config(key, s, "not an IP address")
		}
		twice := false
		for _, have := range c.Wanted {
			twice = twice || have.Addr == r.Addr
		}
		if !twice {
			c.Wanted = append(c.Wanted, r)
		}
	}
	return nil
}

// split is strings.Split by comma, but nothing for nothing.
func split(list string) []string {
	if strings.TrimSpace(list) == "" {
		return nil
	}
	items := strings.Split(list, ",")
	for i := range items {
		items[i] = strings.TrimSpace(items[i])
	}
	return items
}

// parseAddr accepts leading zeros, as whereabouts does.
func parseAddr(s string) (netip.Addr, error) {
	a, ok := netip.AddrFromSlice(utilnet.ParseIPSloppy(s))
	if !ok {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	return a.Unmap(), nil
}

// parsePrefix keeps the bits of the host.
func parsePrefix(s string) (netip.Prefix, error) {
	ip, network, err := utilnet.ParseCIDRSloppy(s)
	if err != nil {
		return netip.Prefix{}, err
	}
	a, _ := netip.AddrFromSlice(ip)
	bits, size := network.Mask.Size()
	if a = a.Unmap(); a.BitLen() != size {
		return netip.Prefix{}, fmt.Errorf("%q mixes the families", s)
	}
	return netip.PrefixFrom(a, bits), nil
}

// Distribute gives each range at most one of the addresses that were asked for: the first one in its network. One that
// no range takes is an error, as is one that a range never hands out; both before anything is taken. Without ranges,
// what is asked for becomes part of Static, as with whereabouts.
func (c *Config) Distribute() ([]netip.Addr, error) {
	wanted := make([]netip.Addr, len(c.Ranges))
	for _, w := range c.Wanted {
		if len(c.Ranges) == 0 {
			if !w.Prefix.IsValid() {
				return nil, cnierr.Config(w.Key, w.Addr.String(), "without a range, an address needs a prefix length")
			}
			c.Static = append(c.Static, Address{Prefix: w.Prefix})
			continue
		}
		contained, taken := false, false
		for i := range c.Ranges {
			if !c.Ranges[i].CIDR.Contains(w.Addr) {
				continue
			}
			if why := c.Ranges[i].Refuses(w.Addr); why != "" {
				return nil, cnierr.Config(w.Key, w.Addr.String(), why)
			}
			contained = true
			if !wanted[i].IsValid() {
				wanted[i], taken = w.Addr, true
				break
			}
		}
		switch {
		case !contained:
			return nil, cnierr.Config(w.Key, w.Addr.String(), "the address is in none of the ranges")
		case !taken:
			return nil, cnierr.Config(w.Key, w.Addr.String(), "another requested address uses its range already")
		}
	}
	return wanted, nil
}
