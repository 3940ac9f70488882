// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// Conf is the plugin's configuration, keys as the reference plugin has them.
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
}

// request is a Conf that has been found valid.
type request struct {
	conf     *Conf
	snat     bool
	mappings []mapping
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
	mappings, err := parseMappings(conf.RuntimeConfig.PortMappings)
	if err != nil {
		return nil, err
	}
	return &request{
		conf:     conf,
		snat:     conf.SNAT == nil || *conf.SNAT,
		mappings: mappings,
	}, nil
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
	if c.MasqAll {
		return cnierr.Unsupported("masqAll", c.MasqAll, "the ebpf back end cannot masquerade every source yet")
	}
	if len(c.ConditionsV4) > 0 {
		return cnierr.Unsupported("conditionsV4", c.ConditionsV4, "the ebpf back end has no match conditions yet")
	}
	if len(c.ConditionsV6) > 0 {
		return cnierr.Unsupported("conditionsV6", c.ConditionsV6, "the ebpf back end has no match conditions yet")
	}
	return nil
}

func validateBackend(backend string) error {
	switch backend {
	case "", "auto", "ebpf":
		return nil
	case "iptables", "nftables":
		return cnierr.Unsupported("backend", backend, "only ebpf is built in")
	}
	return cnierr.Config("backend", backend, "must be auto, ebpf, iptables or nftables")
}
