// SPDX-License-Identifier: Apache-2.0

package e2etest

// Backend is a way to carry packets that a node can be told to use.
type Backend struct {
	Name string // as in attachment records
	Conf string // of /etc/sluice/config.json
}

// NetfilterBackends are the ways without eBPF.
func NetfilterBackends() []Backend {
	return []Backend{
		{"nftables", `{"backend":"nftables"}`},
		{"iptables-nft", `{"backend":"iptables","iptablesVariant":"nft"}`},
		{"iptables-legacy", `{"backend":"iptables","iptablesVariant":"legacy"}`},
	}
}

// SetBackend makes a backend the node's default.
func (w *World) SetBackend(b Backend) {
	w.T.Helper()
	w.Configure(b.Conf)
}
