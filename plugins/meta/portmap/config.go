// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"net/netip"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// Conf is the plugin's configuration, keys as upstream has them.
// Pointers tell an absent key from its zero value.
type Conf struct {
	cniconf.Common

	Backend              string   `json:"backend"`
	SNAT                 *bool    `json:"snat"`
	MasqAll              bool     `json:"masqAll"`
	MarkMasqBit          *int     `json:"markMasqBit"`
	ExternalSetMarkChain *string  `json:"externalSetMarkChain"`
	ConditionsV4         []string `json:"conditionsV4"`
	ConditionsV6         []string `json:"conditionsV6"`
	AllowedSources       []string `json:"allowedSources"` // Sluice only

	RuntimeConfig struct {
		PortMappings []PortMapping `json:"portMappings"`
	} `json:"runtimeConfig"`
}

// PortMapping is one entry of the portMappings capability.
type PortMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`

	// AllowedSources, of Sluice only, are the networks that may connect. They
	// replace the network's list for this mapping. An empty list means all.
	AllowedSources *[]string `json:"allowedSources"`
}

// settings are a Conf that has been found valid. All keys are parsed in it.
type settings struct {
	conf       *Conf
	snat       bool
	sources    []netip.Prefix       // who may connect where a mapping says nothing else
	conditions [2]conditions        // of IPv4, of IPv6
	mappings   [][]hostport.Mapping // of each portMapping one for each family, without the pod's address
	shadowed   []string             // mappings that an earlier one of the same request leaves without effect
}

// request is what an attachment asks for. It says nothing about which backend
// carries it out.
type request struct {
	*settings
	ref   attachments.ID
	addrs []netip.Prefix // all addresses of the pod on CNI_IFNAME
	ports []port

	before recordedPorts // with ADD: what the record says of an earlier ADD
}

// port is one port to publish.
type port struct {
	hostport.Mapping
	// ebpfUnsupported says why eBPF cannot publish the port (code 2). Nil: it can.
	ebpfUnsupported error
}

// parse decodes stdin and validates every key and every mapping, so that
// nothing can be refused after the first effect. Errors are CNI errors of code
// 2, 6 or 7 that name key and value.
func parse(stdin []byte) (*settings, error) {
	conf := &Conf{}
	if err := cniconf.Load(stdin, conf); err != nil {
		return nil, err
	}
	if err := conf.validate(); err != nil {
		return nil, err
	}
	sources, err := parseSources("allowedSources", conf.AllowedSources)
	if err != nil {
		return nil, err
	}
	s := &settings{conf: conf, snat: conf.SNAT == nil || *conf.SNAT, sources: sources}
	s.conditions[0] = parseConditions("conditionsV4", conf.ConditionsV4, true)
	s.conditions[1] = parseConditions("conditionsV6", conf.ConditionsV6, false)
	return s, s.parseMappings(conf.RuntimeConfig.PortMappings)
}

// parseChained is parse for a call that comes with a previous result.
func parseChained(a *cniskel.Args) (*settings, *types100.Result, error) {
	s, err := parse(a.StdinData)
	if err != nil {
		return nil, nil, err
	}
	prev, err := s.conf.Chained()
	return s, prev, err
}

// request is the request of a call for the pod that prev describes.
func (s *settings) request(a *cniskel.Args, prev *types100.Result) request {
	addrs := cniconf.PodAddrs(prev, a.IfName)
	return request{settings: s, ref: a.Ref(s.conf.Name), addrs: addrs, ports: s.ports(addrs)}
}

// with is the request with other ports.
func (r request) with(ports []port) request {
	r.ports = ports
	return r
}

func (c *Conf) validate() error {
	if err := validateBackend(c.Backend); err != nil {
		return err
	}
	if chain := c.ExternalSetMarkChain; chain != nil && !netfilter.ValidChainName(*chain) {
		return cnierr.Config("externalSetMarkChain", *chain, netfilter.ChainNameRule)
	}
	if bit := c.MarkMasqBit; bit != nil {
		if *bit < 0 || *bit > 31 {
			return cnierr.Config("markMasqBit", *bit, "must be 0-31")
		}
		if c.ExternalSetMarkChain != nil {
			return cnierr.Config("externalSetMarkChain", *c.ExternalSetMarkChain, "cannot be used together with markMasqBit")
		}
	}
	return c.validateWords()
}

// validateWords refuses words of one tool for a backend that is another.
func (c *Conf) validateWords() error {
	if c.Backend == netfilter.NameNFTables && c.ExternalSetMarkChain != nil {
		return cnierr.Config("externalSetMarkChain", *c.ExternalSetMarkChain, "is a chain of iptables: the nftables back end cannot call it")
	}
	for key, conditions := range map[string][]string{"conditionsV4": c.ConditionsV4, "conditionsV6": c.ConditionsV6} {
		dialect := (&Conf{ConditionsV4: conditions}).conditionDialect()
		other := c.Backend == netfilter.NameIPTables && dialect == netfilter.NameNFTables || c.Backend == netfilter.NameNFTables && dialect == netfilter.NameIPTables
		if other {
			return cnierr.Config(key, conditions, "is written for "+dialect+", not for "+c.Backend)
		}
		if slices.ContainsFunc(conditions, func(w string) bool { return strings.ContainsAny(w, "\n\r\x00;") }) {
			return cnierr.Config(key, conditions, "has a line break or a semicolon")
		}
	}
	if a, b := (&Conf{ConditionsV4: c.ConditionsV4}).conditionDialect(), (&Conf{ConditionsV4: c.ConditionsV6}).conditionDialect(); a != "" && b != "" && a != b {
		return cnierr.Config("conditionsV6", c.ConditionsV6, "is written for "+b+", conditionsV4 for "+a)
	}
	return nil
}

func validateBackend(name string) error {
	switch name {
	case "", backend.Auto, backend.EBPF, netfilter.NameIPTables, netfilter.NameNFTables:
		return nil
	}
	return cnierr.Config("backend", name, "must be auto, ebpf, iptables or nftables")
}

// conditionDialect is the tool that the configuration has words of, as upstream
// guesses it. It is empty for none.
func (c *Conf) conditionDialect() string {
	for _, words := range [][]string{c.ConditionsV4, c.ConditionsV6} {
		if len(words) == 0 {
			continue
		}
		if strings.HasPrefix(words[0], "-") || strings.HasPrefix(words[0], "!") {
			return netfilter.NameIPTables
		}
		return netfilter.NameNFTables
	}
	if c.ExternalSetMarkChain != nil {
		return netfilter.NameIPTables
	}
	return ""
}

// hasMappings reports whether a call has mappings. A configuration that cannot be
// read has none.
func hasMappings(stdin []byte) bool {
	var conf Conf
	_ = cniconf.Load(stdin, &conf)
	return slices.ContainsFunc(conf.RuntimeConfig.PortMappings, func(m PortMapping) bool { return m.HostPort > 0 })
}
