// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

//go:generate go run ../../../pkg/jsonobj/gen

// Conf is the plugin's configuration, keys as the reference plugin has them.
// Pointers tell an absent key from its zero value.
//
//jsonobj:object
type Conf struct {
	cniconf.Common

	Backend              string   `json:"backend"`
	SNAT                 *bool    `json:"snat"`
	MasqAll              bool     `json:"masqAll"`
	MarkMasqBit          *int     `json:"markMasqBit"`
	ExternalSetMarkChain *string  `json:"externalSetMarkChain"`
	ConditionsV4         []string `json:"conditionsV4"`
	ConditionsV6         []string `json:"conditionsV6"`
	AllowedSources       []string `json:"allowedSources"` // ours

	RuntimeConfig struct {
		PortMappings []PortMapping `json:"portMappings"`
	} `json:"runtimeConfig"`
}

// PortMapping is one entry of the portMappings capability.
//
//jsonobj:object
type PortMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`

	// AllowedSources is ours: networks that may connect. It replaces the
	// network's list for this mapping; an empty list means everybody.
	AllowedSources *[]string `json:"allowedSources"`
}

// request is a Conf that has been found valid.
type request struct {
	conf     *Conf
	snat     bool
	sources  []netip.Prefix // who may connect where a mapping says nothing else
	mappings []mapping
	shadowed []string // mappings that an earlier one of the same request leaves without effect
}

// parse decodes stdin and validates every key and every mapping, so that
// nothing can be refused after the first effect. Errors are CNI errors of code
// 2, 6 or 7 that name key and value.
func parse(stdin []byte) (*request, error) {
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
	r := &request{conf: conf, snat: conf.SNAT == nil || *conf.SNAT, sources: sources}
	return r, r.parseMappings(conf.RuntimeConfig.PortMappings)
}

func (c *Conf) validate() error {
	if err := validateBackend(c.Backend); err != nil {
		return err
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

// validateWords refuses words of one tool for a back end that is another.
func (c *Conf) validateWords() error {
	if c.Backend == netfilter.NameNFTables && c.ExternalSetMarkChain != nil {
		return cnierr.Config("externalSetMarkChain", *c.ExternalSetMarkChain, "is a chain of iptables: the nftables back end cannot call it")
	}
	for key, conditions := range map[string][]string{"conditionsV4": c.ConditionsV4, "conditionsV6": c.ConditionsV6} {
		speaks := (&Conf{ConditionsV4: conditions}).speaks()
		other := c.Backend == netfilter.NameIPTables && speaks == netfilter.NameNFTables || c.Backend == netfilter.NameNFTables && speaks == netfilter.NameIPTables
		if other {
			return cnierr.Config(key, conditions, "is written for "+speaks+", not for "+c.Backend)
		}
		if slices.ContainsFunc(conditions, func(w string) bool { return strings.ContainsAny(w, "\n\r\x00;") }) {
			return cnierr.Config(key, conditions, "has a line break or a semicolon")
		}
	}
	if a, b := (&Conf{ConditionsV4: c.ConditionsV4}).speaks(), (&Conf{ConditionsV4: c.ConditionsV6}).speaks(); a != "" && b != "" && a != b {
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
