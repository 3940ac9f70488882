// SPDX-License-Identifier: Apache-2.0

package agentconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// Parse decodes and validates a configuration. Errors are of type *nodeconf.Error, with File "agent configuration".
func Parse(raw []byte) (*Config, error) { return parse(raw, "agent configuration") }

func parse(raw []byte, file string) (*Config, error) {
	c := Default()
	text, err := yaml.YAMLToJSONStrict(raw)
	if err != nil {
		return nil, &nodeconf.Error{File: file, Why: err.Error()}
	}
	if bytes.Equal(bytes.TrimSpace(text), []byte("null")) { // an empty file, or comments alone
		return c, nil
	}
	given := values{}
	err = given.read("", text, c.fields())
	if err == nil {
		err = c.check(given)
	}
	var wrong *nodeconf.Error
	switch {
	case err == nil:
		return c, nil
	case errors.As(err, &wrong):
		wrong.File = file
		return nil, wrong
	}
	return nil, &nodeconf.Error{File: file, Why: err.Error()}
}

// setter decodes and checks the value of one key. Its error says what is wrong with the value.
type setter func(raw json.RawMessage) error

// fields are the keys of an object: each has a setter, or fields of its own.
type fields map[string]any

func (c *Config) fields() fields {
	n, p, v, w, o := &c.Network, &c.Paths, &c.VXLAN, &c.WireGuard, &c.Observe
	return fields{
		"routing": oneOf(&c.Routing, RoutingNative, RoutingHostGW, RoutingVXLAN, RoutingWireGuard),
		"network": fields{
			"name":         text(&n.Name, networkName),
			"file":         text(&n.File, conflistName),
			"cniVersion":   oneOf(&n.CNIVersion, "1.0.0", "1.1.0"),
			"plugin":       oneOf(&n.Plugin, PluginPTP, PluginBridge),
			"bridge":       text(&n.Bridge, deviceName),
			"mtu":          mtu(&n.MTU),
			"ipMasq":       boolean(&n.IPMasq),
			"portMappings": boolean(&n.PortMappings),
			"bandwidth":    boolean(&n.Bandwidth),
			"firewall":     boolean(&n.Firewall),
		},
		"clusterCIDRs":       networks(&c.ClusterCIDRs),
		"serviceCIDRs":       networks(&c.ServiceCIDRs),
		"nonMasqueradeCIDRs": networks(&c.NonMasqueradeCIDRs),
		"paths": fields{
			"binDir":     text(&p.BinDir, directory),
			"confDir":    text(&p.ConfDir, directory),
			"hostPrefix": text(&p.HostPrefix, optional(directory)),
		},
		"vxlan": fields{
			"vni":    integer(&v.VNI, 1, 1<<24-1),
			"port":   integer(&v.Port, 1, math.MaxUint16),
			"device": text(&v.Device, routeDevice),
		},
		"wireguard": fields{
			"port":        integer(&w.Port, 1, math.MaxUint16-1), // a second device has the next one
			"device":      text(&w.Device, routeDevice),
			"keyRotation": duration(&w.KeyRotation, minRotation),
		},
		"health":  fields{"address": text(&c.Health.Address, optional(listenAddress)), "podMetrics": boolean(&c.Health.PodMetrics)},
		"garbage": fields{"interval": durationOrNever(&c.Garbage.Interval, minInterval)},
		"observe": fields{
			"enabled": boolean(&o.Enabled),
			"socket":  text(&o.Socket, directory),
			"address": text(&o.Address, optional(listenAddress)),
			"tls": fields{
				"cert":     text(&o.TLS.Cert, optional(directory)),
				"key":      text(&o.TLS.Key, optional(directory)),
				"clientCA": text(&o.TLS.ClientCA, optional(directory)),
			},
			"maxRate": integer(&o.MaxRate, 1, maxEventRate),
			"sample":  integer(&o.Sample, 1, math.MaxUint32),
		},
		"runtimeEndpoint": text(&c.RuntimeEndpoint, optional(socketPath)),
		"ipam":            fields{"serviceAccount": text(&c.IPAM.ServiceAccount, optional(serviceAccount))},
		"networkPolicy":   fields{"enabled": boolean(&c.NetworkPolicy.Enabled)},
	}
}

// values are the keys that the file has, with their values; "network.mtu" is one inside another.
type values map[string]json.RawMessage

// read decodes the object that raw is. The same file always reports the same mistake.
func (v values) read(path string, raw json.RawMessage, known fields) error {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil || keys == nil {
		if path == "" {
			return errors.New("not an object of keys")
		}
		return &nodeconf.Error{Key: path, Value: string(raw), Why: "want an object"}
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		full := key
		if path != "" {
			full = path + "." + key
		}
		v[full] = keys[key]
		switch f := known[key].(type) {
		case setter:
			if err := f(keys[key]); err != nil {
				return v.wrong(full, err)
			}
		case fields:
			if err := v.read(full, keys[key], f); err != nil {
				return err
			}
		default:
			return &nodeconf.Error{Key: "key", Value: fmt.Sprintf("%q", full), Why: "unknown key"}
		}
	}
	return nil
}

// wrong names the key and the value that the file has.
func (v values) wrong(key string, why error) error {
	return &nodeconf.Error{Key: key, Value: string(v[key]), Why: why.Error()}
}

// maxNetworks is what the datapath has room for (docs/configuration.md, nonMasqueradeCIDRs).
const maxNetworks = 1024

// check looks at keys together.
func (c *Config) check(given values) error {
	if c.Network.Plugin != PluginBridge && c.Network.Bridge != Default().Network.Bridge {
		return given.wrong("network.bridge", fmt.Errorf("only with plugin: %s", PluginBridge))
	}
	if c.NetworkPolicy.Enabled && !c.Network.Firewall {
		return given.wrong("networkPolicy.enabled", errors.New("needs network.firewall: true: that plugin gives a pod its policies"))
	}
	if n := len(c.ClusterCIDRs) + len(c.ServiceCIDRs) + len(c.NonMasqueradeCIDRs); n > maxNetworks {
		return fmt.Errorf("clusterCIDRs, serviceCIDRs and nonMasqueradeCIDRs have %d networks, at most %d together", n, maxNetworks)
	}
	if o := c.Observe; o.Enabled && o.Address != "" {
		for _, f := range [][2]string{{"cert", o.TLS.Cert}, {"key", o.TLS.Key}, {"clientCA", o.TLS.ClientCA}} {
			if f[1] == "" {
				return given.wrong("observe.address", fmt.Errorf("needs observe.tls.%s: without it all who reach the address would see the pods' traffic", f[0]))
			}
		}
	}
	for i, s := range c.ServiceCIDRs {
		if j := slices.IndexFunc(c.ClusterCIDRs, s.Overlaps); j >= 0 {
			return given.wrong("serviceCIDRs", fmt.Errorf("%s overlaps %s of clusterCIDRs", c.ServiceCIDRs[i], c.ClusterCIDRs[j]))
		}
	}
	return nil
}

// Exempt returns the destinations that see the pods' own addresses: all three lists, each network once.
func (c *Config) Exempt() []netip.Prefix {
	var all []netip.Prefix
	for _, p := range slices.Concat(c.ClusterCIDRs, c.ServiceCIDRs, c.NonMasqueradeCIDRs) {
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}
