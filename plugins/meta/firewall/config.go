// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// Conf is the plugin's configuration, keys as the reference plugin has them.
// IptablesAdminChainName and FirewalldZone only mean something to netfilter
// back ends; the eBPF one accepts them so that a configuration need not change.
type Conf struct {
	cniconf.Common

	Backend                string `json:"backend"`
	IptablesAdminChainName string `json:"iptablesAdminChainName"`
	FirewalldZone          string `json:"firewalldZone"`
	IngressPolicy          string `json:"ingressPolicy"`
}

// parse decodes stdin and validates every key. Errors are CNI errors of code
// 2, 6 or 7 that name key and value.
func parse(stdin []byte) (*Conf, error) {
	conf := &Conf{}
	if err := cniconf.Load(stdin, conf); err != nil {
		return nil, err
	}
	if err := validateBackend(conf.Backend); err != nil {
		return nil, err
	}
	if err := validateIngressPolicy(conf.IngressPolicy); err != nil {
		return nil, err
	}
	return conf, nil
}

// validateBackend refuses unknown values, where the reference guesses.
func validateBackend(backend string) error {
	switch backend {
	case "", "auto", "ebpf":
		return nil
	case "iptables", "firewalld", "nftables":
		return cnierr.Unsupported("backend", backend, "only ebpf is built in")
	}
	return cnierr.Config("backend", backend, "must be auto, ebpf, iptables, firewalld or nftables")
}

func validateIngressPolicy(policy string) error {
	switch policy {
	case "", "open":
		return nil
	case "same-bridge", "isolated":
		return cnierr.Unsupported("ingressPolicy", policy, "the ebpf back end only has open")
	}
	return cnierr.Config("ingressPolicy", policy, "must be open, same-bridge or isolated")
}
