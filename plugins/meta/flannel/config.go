// SPDX-License-Identifier: Apache-2.0

package flannel

import (
	"encoding/json"
	"maps"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// Defaults of the node.
const (
	DefaultSubnetFile = "/run/flannel/subnet.env"
	DefaultDataDir    = "/var/lib/cni/flannel"
)

// object is a JSON object whose values are passed on as they are.
type object = map[string]json.RawMessage

type config struct {
	cniconf.Common
	SubnetFile string `json:"subnetFile"`
	DataDir    string `json:"dataDir"`
	Delegate   object `json:"delegate"`
	IPAM       object `json:"ipam"`

	raw object
}

func load(stdin []byte) (*config, error) {
	c := &config{}
	if err := cniconf.Load(stdin, c); err != nil {
		return nil, err
	}
	if err := cniconf.Load(stdin, &c.raw); err != nil {
		return nil, err
	}
	if c.SubnetFile == "" {
		c.SubnetFile = DefaultSubnetFile
	}
	if c.DataDir == "" {
		c.DataDir = DefaultDataDir
	}
	return c, nil
}

// delegateType is the plugin to delegate to.
func (c *config) delegateType() (string, error) { return typeOf(c.Delegate, "delegate.type", "bridge") }

func typeOf(o object, key, absent string) (string, error) {
	raw, ok := o["type"]
	if !ok {
		return absent, nil
	}
	var kind string
	if json.Unmarshal(raw, &kind) != nil || kind == "" {
		return "", cnierr.Config(key, string(raw), "it must be the name of a plugin")
	}
	return kind, nil
}

// bareConf is the delegate's configuration without what flanneld says.
func (c *config) bareConf() (object, string, error) {
	for _, key := range []string{"name", "ipam"} {
		if v, ok := c.Delegate[key]; ok {
			return nil, "", cnierr.Config("delegate."+key, string(v), "flannel sets it; the ipam section belongs beside delegate")
		}
	}
	kind, err := c.delegateType()
	if err != nil {
		return nil, "", err
	}
	ipamType, err := typeOf(c.IPAM, "ipam.type", "host-local")
	if err != nil {
		return nil, "", err
	}
	conf := object{}
	maps.Copy(conf, c.Delegate)
	conf["name"], conf["type"] = quoted(c.Name), quoted(kind)
	if c.CNIVersion != "" {
		conf["cniVersion"] = quoted(c.CNIVersion)
	}
	if len(c.RuntimeConfig) > 0 {
		conf["runtimeConfig"] = c.RuntimeConfig
	}
	ipam := object{}
	maps.Copy(ipam, c.IPAM)
	ipam["type"] = quoted(ipamType)
	conf["ipam"], err = encode(ipam)
	return conf, kind, err
}

// delegateConf is the whole configuration of the delegate and its type. What
// the operator set wins over what flanneld says, but for the address ranges.
func (c *config) delegateConf() (object, string, error) {
	conf, kind, err := c.bareConf()
	if err != nil {
		return nil, "", err
	}
	s, err := readSubnets(c.SubnetFile)
	if err != nil {
		return nil, "", err
	}
	defaults := map[string]any{"ipMasq": !s.ipMasq, "mtu": s.mtu}
	if kind == "bridge" {
		defaults["isGateway"] = true
	}
	for key, v := range defaults {
		if _, set := conf[key]; !set {
			if conf[key], err = encode(v); err != nil {
				return nil, "", err
			}
		}
	}
	conf["ipam"], err = c.ipam(conf["ipam"], s)
	return conf, kind, err
}

// ipam is the IPAM section with this node's ranges and a route to each network
// of the cluster.
func (c *config) ipam(bare json.RawMessage, s *subnets) (json.RawMessage, error) {
	type subnet struct {
		Subnet string `json:"subnet"`
	}
	type route struct {
		Dst string `json:"dst"`
	}
	var routes []any
	if err := cniconf.DecodeSection("ipam.routes", c.IPAM["routes"], &routes); err != nil {
		return nil, err
	}
	for _, n := range s.networks {
		routes = append(routes, route{n.String()})
	}
	var ranges [][]subnet
	for _, own := range s.own {
		ranges = append(ranges, []subnet{{own.String()}})
	}
	var ipam object
	if err := cniconf.DecodeSection("ipam", bare, &ipam); err != nil {
		return nil, err
	}
	for key, v := range map[string]any{"routes": routes, "ranges": ranges} {
		raw, err := encode(v)
		if err != nil {
			return nil, err
		}
		ipam[key] = raw
	}
	return encode(ipam)
}

// quoted is s as a JSON string.
func quoted(s string) json.RawMessage {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string has a JSON form
	}
	return b
}

func encode(v any) (json.RawMessage, error) {
	b, err := json.Marshal(v)
	return b, cnierr.Wrap(cnierr.CodeDecode, err, "encode the delegate's configuration")
}

// merge sets the keys of more that have a value.
func merge(conf []byte, more object) ([]byte, error) {
	var o object
	if err := cniconf.DecodeSection("saved configuration", conf, &o); err != nil {
		return nil, err
	}
	for key, v := range more {
		if len(v) > 0 && string(v) != `""` {
			o[key] = v
		}
	}
	return encode(o)
}
