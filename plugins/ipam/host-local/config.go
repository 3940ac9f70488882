// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/ipalloc"
)

// DefaultDataDir is where the upstream plugin keeps its reservations.
const DefaultDataDir = "/var/lib/cni/networks"

// netConf is what host-local reads of a network configuration: an IPAM plugin
// gets the whole configuration of the interface plugin that calls it.
type netConf struct {
	cniconf.Common
	IPAM *ipamConf `json:"ipam"`
}

type ipamConf struct {
	rangeConf                    // one range, as configurations were written first
	Ranges     [][]rangeConf     `json:"ranges"`
	Routes     []json.RawMessage `json:"routes"`
	DataDir    string            `json:"dataDir"`
	ResolvConf string            `json:"resolvConf"`
}

type rangeConf struct {
	Subnet     string `json:"subnet"`
	RangeStart string `json:"rangeStart"`
	RangeEnd   string `json:"rangeEnd"`
	Gateway    string `json:"gateway"`
}

type runtimeConf struct {
	IPRanges [][]rangeConf `json:"ipRanges"`
	IPs      []string      `json:"ips"`
}

// config is a validated configuration.
type config struct {
	network    string
	version    string
	dataDir    string
	resolvConf string
	sets       []ipalloc.Set
	keys       []string // of each set, where the configuration has it
	routes     []*types.Route
	requested  []request
}

// request is an address that the caller asked for, and where.
type request struct {
	addr netip.Addr
	key  string
}

// errTooManyAddresses marks a configuration whose cniVersion has no room for
// its addresses.
var errTooManyAddresses = errors.New("more addresses than the CNI version can hold")

// errNoRange marks a configuration without ranges: the runtime may give them,
// but to ADD, CHECK and DEL only.
var errNoRange = errors.New("no range to allocate from")

// load decodes and validates the configuration of a call. When only the ranges,
// routes or requests are wrong, it returns the error together with a config
// that says where the reservations are: DEL and GC need no more.
func load(a *cniskel.Args) (*config, error) {
	var n netConf
	if err := cniconf.Load(a.StdinData, &n); err != nil {
		return nil, err
	}
	if n.IPAM == nil {
		return nil, cnierr.New(cnierr.CodeConfig, `missing key "ipam"`, "")
	}
	c := &config{network: n.Name, version: n.Version(), dataDir: n.IPAM.DataDir, resolvConf: n.IPAM.ResolvConf}
	if c.dataDir == "" {
		c.dataDir = DefaultDataDir
	}
	var rc runtimeConf
	if err := cniconf.DecodeSection("runtimeConfig", n.RuntimeConfig, &rc); err != nil {
		return c, err
	}
	if err := c.loadRanges(&n, &rc); err != nil {
		return c, err
	}
	var err error
	if c.routes, err = cniconf.Routes("ipam.routes", n.IPAM.Routes); err != nil {
		return c, err
	}
	return c, c.loadRequests(a.Args, &n, &rc)
}

// loadRanges collects the sets in the order of the result's addresses: those of
// the runtime, then the single range, then the list. The runtime's do not
// replace the others.
func (c *config) loadRanges(n *netConf, rc *runtimeConf) error {
	if err := c.addSets("runtimeConfig.ipRanges", rc.IPRanges); err != nil {
		return err
	}
	if n.IPAM.Subnet != "" {
		r, err := n.IPAM.parse("ipam")
		if err != nil {
			return err
		}
		c.sets, c.keys = append(c.sets, ipalloc.Set{r}), append(c.keys, "ipam.subnet")
	}
	if err := c.addSets("ipam.ranges", n.IPAM.Ranges); err != nil {
		return err
	}
	if len(c.sets) == 0 {
		return cnierr.Wrap(cnierr.CodeConfig, errNoRange, "invalid ipam.ranges \"\": give ipam.ranges, ipam.subnet or runtimeConfig.ipRanges")
	}
	for i, s := range c.sets {
		for j, o := range c.sets[:i] {
			if a, b, ok := s.Overlaps(o); ok {
				return cnierr.Config(c.keys[i], a.String(), "overlaps with range "+b.String()+" of "+c.keys[j])
			}
		}
	}
	return c.checkVersion()
}

// checkVersion: before 0.3.0 a result has one address of each family.
func (c *config) checkVersion() error {
	if c.version != "0.1.0" && c.version != "0.2.0" {
		return nil
	}
	n := map[bool]int{}
	for _, s := range c.sets {
		if n[s.Is4()]++; n[s.Is4()] > 1 {
			return cnierr.Wrap(cnierr.CodeConfig, errTooManyAddresses,
				"CNI version %s does not support more than 1 address per family", c.version)
		}
	}
	return nil
}

func (c *config) addSets(key string, sets [][]rangeConf) error {
	for i, list := range sets {
		var set ipalloc.Set
		for j := range list {
			r, err := list[j].parse(fmt.Sprintf("%s[%d][%d]", key, i, j))
			if err != nil {
				return err
			}
			set = append(set, r)
		}
		setKey := fmt.Sprintf("%s[%d]", key, i)
		if err := set.Validate(); err != nil {
			return cnierr.Config(setKey, set.String(), err.Error())
		}
		c.sets, c.keys = append(c.sets, set), append(c.keys, setKey)
	}
	return nil
}

func (r *rangeConf) parse(key string) (ipalloc.Range, error) {
	var out ipalloc.Range
	if r.Subnet != "" {
		p, err := netip.ParsePrefix(r.Subnet)
		if err != nil {
			return out, cnierr.Config(key+".subnet", r.Subnet, "not an address range in CIDR notation")
		}
		out.Subnet = p
	}
	for _, f := range []struct {
		name, text string
		into       *netip.Addr
	}{{"rangeStart", r.RangeStart, &out.Start}, {"rangeEnd", r.RangeEnd, &out.End}, {"gateway", r.Gateway, &out.Gateway}} {
		if f.text == "" {
			continue
		}
		a, err := parseAddr(f.text)
		if err != nil {
			return out, cnierr.Config(key+"."+f.name, f.text, "not an IP address")
		}
		*f.into = a
	}
	out, err := out.Complete()
	var field *ipalloc.FieldError
	if errors.As(err, &field) {
		return out, cnierr.Config(key+"."+field.Field, field.Value, field.Why)
	}
	return out, err
}

// parseAddr parses an address without a zone; IPv4 in IPv6 notation is IPv4.
func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err == nil && a.Zone() != "" {
		err = fmt.Errorf("address %s has a zone", s)
	}
	return a.Unmap(), err
}

// loadRequests collects the addresses that were asked for. All sources count;
// none overrides another. A prefix length is allowed and ignored.
func (c *config) loadRequests(cniArgs string, n *netConf, rc *runtimeConf) error {
	asked := make(map[netip.Addr]bool)
	add := func(key, text string) error {
		ip, _, _ := strings.Cut(text, "/")
		a, err := parseAddr(ip)
		if err != nil || (ip != text && !validCIDR(text)) {
			return cnierr.Config(key, text, "not an IP address")
		}
		if asked[a] {
			return nil
		}
		asked[a] = true
		c.requested = append(c.requested, request{addr: a, key: key})
		return nil
	}
	err := cniconf.ParseArgs(cniArgs, map[string]func(string) error{
		"IP": func(s string) error {
			if s == "" { // as when it is not there
				return nil
			}
			return add("CNI_ARGS IP", s)
		},
		"MAC": cniconf.IgnoreArg,
	})
	if err != nil {
		return err
	}
	var args struct {
		CNI struct {
			IPs []string `json:"ips"`
		} `json:"cni"`
	}
	if err := cniconf.DecodeSection("args", n.Args, &args); err != nil {
		return err
	}
	for i, s := range args.CNI.IPs {
		if err := add(fmt.Sprintf("args.cni.ips[%d]", i), s); err != nil {
			return err
		}
	}
	for i, s := range rc.IPs {
		if err := add(fmt.Sprintf("runtimeConfig.ips[%d]", i), s); err != nil {
			return err
		}
	}
	return nil
}

func validCIDR(s string) bool {
	_, _, err := net.ParseCIDR(s)
	return err == nil
}
