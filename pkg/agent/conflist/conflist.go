// SPDX-License-Identifier: Apache-2.0

// Package conflist makes the network configuration of a node from its pod CIDRs.
//
// pkg/agent writes it last and removes it first: a runtime that sees it starts pods. The package writes nothing, and decides nothing
// about the node.
package conflist

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"github.com/containernetworking/cni/libcni"

	"github.com/sluice-cni/sluice/pkg/agent/agentconf"
)

// list and what is in it are the keys that the agent writes. encoding/json escapes what is in them.
type list struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Plugins    []any  `json:"plugins"`
}

type iface struct {
	Type         string `json:"type"`
	Bridge       string `json:"bridge,omitempty"`
	IsGateway    bool   `json:"isGateway,omitempty"`
	HairpinMode  bool   `json:"hairpinMode,omitempty"`
	ForceAddress bool   `json:"forceAddress,omitempty"`
	IPMasq       bool   `json:"ipMasq"`
	MTU          int    `json:"mtu"`
	IPAM         ipam   `json:"ipam"`
}

type ipam struct {
	Type   string      `json:"type"`
	Ranges [][]ipRange `json:"ranges"`
	Routes []route     `json:"routes"`
}

type ipRange struct {
	Subnet netip.Prefix `json:"subnet"`
}

type route struct {
	Dst netip.Prefix `json:"dst"`
}

type chained struct {
	Type         string          `json:"type"`
	Capabilities map[string]bool `json:"capabilities,omitempty"`
	// NetworkPolicy has the plugin firewall give a pod what NetworkPolicies say of it.
	NetworkPolicy bool `json:"networkPolicy,omitempty"`
}

const minIPv6MTU = 1280 // RFC 8200, section 5: the kernel turns IPv6 off below

// Check says why no network can be made of these pod CIDRs.
func Check(cidrs []netip.Prefix) error {
	if len(cidrs) == 0 {
		return errors.New("the node has no podCIDR")
	}
	for i, p := range cidrs {
		if p.Addr().BitLen()-p.Bits() < 2 {
			return fmt.Errorf("podCIDR %s: has no room for a gateway and a pod", p)
		}
		for _, q := range cidrs[:i] {
			if p.Addr().Is4() == q.Addr().Is4() {
				return fmt.Errorf("podCIDRs %s and %s: are of one family", q, p)
			}
		}
	}
	return nil
}

// Build returns the configuration for a node with these pod CIDRs. mtu is that of pods. policies says that NetworkPolicies are enforced.
func Build(c agentconf.Network, policies bool, cidrs []netip.Prefix, mtu int) ([]byte, error) {
	if err := Check(cidrs); err != nil {
		return nil, err
	}
	main := iface{Type: string(c.Plugin), IPMasq: c.IPMasq, MTU: mtu, IPAM: ipam{Type: "host-local"}}
	if c.Plugin == agentconf.PluginBridge {
		// A pod that reaches itself by its Service needs the hairpin. The address of a podCIDR from before goes (docs/agent.md).
		main.Bridge, main.IsGateway, main.HairpinMode, main.ForceAddress = c.Bridge, true, true, true
	}
	for _, p := range cidrs {
		if p.Addr().Is6() && mtu < minIPv6MTU {
			return nil, fmt.Errorf("network.mtu: %d: podCIDR %s needs at least %d", mtu, p, minIPv6MTU)
		}
		everything := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if p.Addr().Is6() {
			everything = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
		main.IPAM.Ranges = append(main.IPAM.Ranges, []ipRange{{p}})
		main.IPAM.Routes = append(main.IPAM.Routes, route{everything})
	}
	l := list{CNIVersion: c.CNIVersion, Name: c.Name, Plugins: []any{main}}
	if c.PortMappings {
		l.Plugins = append(l.Plugins, chained{Type: "portmap", Capabilities: map[string]bool{"portMappings": true}})
	}
	if c.Bandwidth {
		l.Plugins = append(l.Plugins, chained{Type: "bandwidth", Capabilities: map[string]bool{"bandwidth": true}})
	}
	if c.Firewall {
		l.Plugins = append(l.Plugins, chained{Type: "firewall", NetworkPolicy: policies})
	}
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return nil, err
	}
	if _, err := libcni.NetworkConfFromBytes(text); err != nil { // what every runtime reads it with
		return nil, fmt.Errorf("check the network's configuration: %w", err)
	}
	return append(text, '\n'), nil
}

// Closed returns a configuration with which the network takes no new pods, and a runtime goes on with the DEL of those that it has. closed is
// false for content that is none of the network's.
func Closed(content []byte, network string) (text []byte, closed bool, err error) {
	var l map[string]any
	_ = json.Unmarshal(content, &l) // what is no object has no name
	if l["name"] != network {
		return nil, false, nil
	}
	plugins, _ := l["plugins"].([]any)
	if len(plugins) == 0 {
		return nil, false, nil
	}
	first, ok := plugins[0].(map[string]any)
	if !ok {
		return nil, false, nil
	}
	first["closed"] = true
	text, err = json.MarshalIndent(l, "", "  ")
	return append(text, '\n'), err == nil, err
}

// ForGC returns the network with every plugin that Build knows, and without addresses: for GC, whatever the configuration of the ADD was.
func ForGC(network string) (*libcni.NetworkConfigList, error) {
	l := list{CNIVersion: "1.1.0", Name: network}
	hostLocal := map[string]any{"type": "host-local"}
	for _, kind := range []agentconf.Plugin{agentconf.PluginPTP, agentconf.PluginBridge} {
		l.Plugins = append(l.Plugins, map[string]any{"type": kind, "ipam": hostLocal})
	}
	for _, kind := range []string{"portmap", "bandwidth", "firewall"} {
		l.Plugins = append(l.Plugins, chained{Type: kind})
	}
	text, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	return libcni.NetworkConfFromBytes(text)
}

// Another says that a runtime finds the configuration of another network in dir than the file at path.
func Another(dir, path string) (bool, error) {
	files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		return false, err
	}
	for _, f := range files {
		if f == path {
			continue
		}
		if content, err := os.ReadFile(f); err == nil && network(content) {
			return true, nil
		}
	}
	return false, nil
}

// network says that content is a list of plugins, or one plugin, of a network with a name.
func network(content []byte) bool {
	if l, err := libcni.NetworkConfFromBytes(content); err == nil && len(l.Plugins) > 0 {
		return true
	}
	c, err := libcni.NetworkPluginConfFromBytes(content)
	return err == nil && c.Network.Type != "" && c.Network.Name != ""
}

// Subnets returns the pod CIDRs that a configuration was made of. Other content has none.
func Subnets(content []byte) []netip.Prefix {
	var l struct {
		Plugins []struct {
			IPAM struct {
				Ranges [][]struct {
					Subnet string `json:"subnet"`
				} `json:"ranges"`
			} `json:"ipam"`
		} `json:"plugins"`
	}
	if json.Unmarshal(content, &l) != nil {
		return nil
	}
	var subnets []netip.Prefix
	for _, p := range l.Plugins {
		for _, set := range p.IPAM.Ranges {
			for _, r := range set {
				if subnet, err := netip.ParsePrefix(r.Subnet); err == nil {
					subnets = append(subnets, subnet)
				}
			}
		}
	}
	return subnets
}

// Outside returns the addresses of dir, host-local's directory of a network, that lie in none of the subnets. A missing directory
// has none.
func Outside(dir string, subnets []netip.Prefix) ([]netip.Addr, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, e := range entries {
		// host-local writes IPv6 addresses with ":" on Linux, and "_" elsewhere.
		a, err := netip.ParseAddr(strings.ReplaceAll(e.Name(), "_", ":"))
		if err != nil {
			continue
		}
		inside := false
		for _, p := range subnets {
			inside = inside || p.Contains(a)
		}
		if !inside {
			out = append(out, a)
		}
	}
	return out, nil
}
