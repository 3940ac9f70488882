// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/json"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/policy"
	"github.com/sluice-cni/sluice/plugins/internal/backend"
)

// Conf is the plugin's configuration, keys as the upstream plugin has them. Every
// backend calls the chain of IptablesAdminChainName. FirewalldZone chooses firewalld
// where it runs, unless the configuration or the node names another backend.
type Conf struct {
	cniconf.Common

	Backend                string `json:"backend"`
	IptablesAdminChainName string `json:"iptablesAdminChainName"`
	FirewalldZone          string `json:"firewalldZone"`
	IngressPolicy          string `json:"ingressPolicy"`

	// Rules is Sluice's; see package policy.
	Rules json.RawMessage `json:"rules"`
	// NetworkPolicy is Sluice's: what the node agent has found out of Kubernetes' objects restricts the pod too.
	NetworkPolicy bool `json:"networkPolicy"`

	policy *policy.Policy // IngressPolicy and Rules, parsed
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
	var err error
	if conf.policy, err = policy.Parse(conf.IngressPolicy, conf.Rules); err != nil {
		return nil, policyError(err)
	}
	if c := conf.IptablesAdminChainName; c != "" && !netfilter.ValidChainName(c) {
		return nil, cnierr.Config("iptablesAdminChainName", c, netfilter.ChainNameRule)
	}
	if z := conf.FirewalldZone; len(z) > maxZone || !utf8.ValidString(z) || strings.ContainsFunc(z, badInZone) {
		return nil, cnierr.Config("firewalldZone", z, "is not the name of a zone: at most 64 bytes, without spaces and control characters")
	}
	return conf, nil
}

// maxZone is more than firewalld takes for a zone's name, 17.
const maxZone = 64

func badInZone(c rune) bool { return unicode.IsSpace(c) || unicode.IsControl(c) }

// validateBackend refuses unknown values, where upstream guesses.
func validateBackend(name string) error {
	switch name {
	case "", backend.Auto, backend.EBPF, netfilter.NameIPTables, netfilter.NameFirewalld, netfilter.NameNFTables:
		return nil
	}
	return cnierr.Config("backend", name, "must be auto, ebpf, iptables, firewalld or nftables")
}

// policyError names the key and the value as all errors of a configuration do.
func policyError(err error) error {
	var e *policy.Error
	if errors.As(err, &e) {
		return cnierr.Config(e.Key, e.Value, e.Why)
	}
	return err
}

// tables is the name of the tables to select. A named admin chain is one of iptables:
// the administrator's rules are there, whatever else the node uses.
func (c *Conf) tables(name string) string {
	if name == backend.Auto && c.IptablesAdminChainName != "" {
		return netfilter.NameIPTables
	}
	return name
}

// onlyEBPF is a key of the configuration that no other backend has, with its value; empty if there is none.
func (c *Conf) onlyEBPF() (key, value string) {
	switch {
	case c.policy.Restricts():
		return "rules", string(c.Rules)
	case c.NetworkPolicy:
		return networkPolicyKey, "true"
	}
	return "", ""
}

const networkPolicyKey = "networkPolicy"

// pod is the pod that CNI_ARGS names, where NetworkPolicy needs to know.
func (c *Conf) pod(args string) (loader.NetworkPolicyPod, error) {
	var pod loader.NetworkPolicyPod
	if !c.NetworkPolicy {
		return pod, nil
	}
	err := cniconf.ParseArgs(args, map[string]func(string) error{
		"K8S_POD_UID": cniconf.StoreArg(&pod.UID), "K8S_POD_NAMESPACE": cniconf.StoreArg(&pod.Namespace),
		"K8S_POD_NAME": cniconf.IgnoreArg, "K8S_POD_INFRA_CONTAINER_ID": cniconf.IgnoreArg, "IP": cniconf.IgnoreArg, "GATEWAY": cniconf.IgnoreArg, "MAC": cniconf.IgnoreArg,
	})
	if err == nil && (pod.UID == "" || pod.Namespace == "") {
		err = cnierr.Config(networkPolicyKey, "true", "needs K8S_POD_UID and K8S_POD_NAMESPACE in CNI_ARGS, as Kubernetes' runtimes give them")
	}
	return pod, err
}

// isolates reports whether the ingressPolicy keeps pods apart.
func (c *Conf) isolates() bool { return c.policy.Mode != policy.ModeOpen }
