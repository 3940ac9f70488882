// SPDX-License-Identifier: Apache-2.0

// Package agentconf reads the configuration of the node agent, /etc/sluice/agent.yaml.
//
// The file is YAML or JSON. A missing key means its default. An unknown key, a key that is given twice, or a value that cannot be used
// is a *nodeconf.Error that names both. The package decides nothing about the node, and of ours it imports only pkg/nodeconf.
package agentconf

import (
	_ "embed"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// DefaultPath is where the configuration lives.
const DefaultPath = "/etc/sluice/agent.yaml"

// Schema is the JSON Schema of the file. TestSchema keeps it and Parse of one mind.
//
//go:embed schema.json
var Schema []byte

// Routing says who makes the routes to pods of other nodes.
type Routing string

// The ways to route.
const (
	RoutingNative    Routing = "native"    // a third party: a cloud, BGP
	RoutingHostGW    Routing = "host-gw"   // routes by node addresses, on one segment
	RoutingVXLAN     Routing = "vxlan"     // the kernel's VXLAN, flannel's wire format
	RoutingWireGuard Routing = "wireguard" // the kernel's WireGuard
)

// Plugin is the interface plugin of the network.
type Plugin string

// The plugins that the agent can write a network for.
const (
	PluginPTP    Plugin = "ptp"
	PluginBridge Plugin = "bridge"
)

// Config is the agent's configuration, validated, with defaults filled in.
type Config struct {
	Routing            Routing        `json:"routing"`
	Network            Network        `json:"network"`
	ClusterCIDRs       []netip.Prefix `json:"clusterCIDRs"` // pods of the whole cluster
	ServiceCIDRs       []netip.Prefix `json:"serviceCIDRs"`
	NonMasqueradeCIDRs []netip.Prefix `json:"nonMasqueradeCIDRs"` // besides those above
	Paths              Paths          `json:"paths"`
	VXLAN              VXLAN          `json:"vxlan"`
	WireGuard          WireGuard      `json:"wireguard"`
	Health             Health         `json:"health"`
	Garbage            Garbage        `json:"garbage"`
	Observe            Observe        `json:"observe"`
	RuntimeEndpoint    string         `json:"runtimeEndpoint"` // path of the CRI socket; empty: the known places
	IPAM               IPAM           `json:"ipam"`
	NetworkPolicy      NetworkPolicy  `json:"networkPolicy"`
}

// Network is what the agent writes into the conflist.
type Network struct {
	Name         string `json:"name"`
	File         string `json:"file"` // its name in Paths.ConfDir
	CNIVersion   string `json:"cniVersion"`
	Plugin       Plugin `json:"plugin"`
	Bridge       string `json:"bridge"` // device, with PluginBridge
	MTU          int    `json:"mtu"`    // 0: the uplink's, less what the overlay adds
	IPMasq       bool   `json:"ipMasq"`
	PortMappings bool   `json:"portMappings"`
	Bandwidth    bool   `json:"bandwidth"`
	Firewall     bool   `json:"firewall"`
}

// Paths are directories of the node as the runtime sees them. The agent sees them below HostPrefix.
type Paths struct {
	BinDir     string `json:"binDir"`
	ConfDir    string `json:"confDir"`
	HostPrefix string `json:"hostPrefix"`
}

// Bin is where the agent finds BinDir.
func (p Paths) Bin() string { return p.On(p.BinDir) }

// Conf is where the agent finds ConfDir.
func (p Paths) Conf() string { return p.On(p.ConfDir) }

// On returns where the agent finds a path of the node.
func (p Paths) On(path string) string { return filepath.Join("/", p.HostPrefix, path) }

// VXLAN is the device of RoutingVXLAN.
type VXLAN struct {
	VNI    uint32 `json:"vni"`
	Port   uint16 `json:"port"`
	Device string `json:"device"`
}

// WireGuard is the device of RoutingWireGuard.
type WireGuard struct {
	Port        uint16   `json:"port"`
	Device      string   `json:"device"`
	KeyRotation Duration `json:"keyRotation"`
}

// Health is where the agent answers /healthz, /readyz and /metrics.
type Health struct {
	Address    string `json:"address"`    // IP address and port; empty: nowhere
	PodMetrics bool   `json:"podMetrics"` // series for each pod in /metrics
}

// Observe is where the agent serves Hubble's API.
type Observe struct {
	Enabled bool       `json:"enabled"`
	Socket  string     `json:"socket"`  // path of the Unix socket, which is root's
	Address string     `json:"address"` // IP address and port, with mutual TLS; empty: the socket alone
	TLS     ObserveTLS `json:"tls"`
	MaxRate uint32     `json:"maxRate"` // events a second
	Sample  uint32     `json:"sample"`  // one of so many connections
}

// ObserveTLS are paths of files, which the agent reads again when they change.
type ObserveTLS struct {
	Cert     string `json:"cert"`
	Key      string `json:"key"`
	ClientCA string `json:"clientCA"` // authority of the clients' certificates
}

// Garbage says how often the agent looks for pods that neither the API server nor the runtime knows.
type Garbage struct {
	Interval Duration `json:"interval"` // 0: never
}

// IPAM is about the kubeconfig that sluice-ipam needs for cluster-wide addresses.
type IPAM struct {
	// ServiceAccount is NAMESPACE/NAME of the one whose token the kubeconfig has; its namespace has the pools. Empty: the agent
	// writes no kubeconfig.
	ServiceAccount string `json:"serviceAccount"`
}

// NetworkPolicy says whether the node enforces NetworkPolicy objects.
type NetworkPolicy struct {
	Enabled bool `json:"enabled"` // needs Network.Firewall
}

// Duration is a time.Duration as Go writes it: "5m", "720h".
type Duration time.Duration

// MarshalText returns the shortest way to write d.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what Go's ParseDuration reads.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = Duration(v)
	return err
}

// Default returns the configuration of a node without a file.
func Default() *Config {
	return &Config{
		Routing: RoutingHostGW,
		Network: Network{
			Name: "sluice", File: "10-sluice.conflist", CNIVersion: "1.0.0", Plugin: PluginPTP, Bridge: "cni0",
			IPMasq: true, PortMappings: true, Bandwidth: true, Firewall: true,
		},
		ClusterCIDRs: []netip.Prefix{}, ServiceCIDRs: []netip.Prefix{}, NonMasqueradeCIDRs: []netip.Prefix{},
		Paths:     Paths{BinDir: "/opt/cni/bin", ConfDir: "/etc/cni/net.d"},
		VXLAN:     VXLAN{VNI: 1, Port: 8472, Device: "flannel.1"},
		WireGuard: WireGuard{Port: 51820, Device: "sluice-wg", KeyRotation: Duration(720 * time.Hour)},
		Health:    Health{Address: "127.0.0.1:9879"},
		Garbage:   Garbage{Interval: Duration(5 * time.Minute)},
		Observe:   Observe{Socket: "/run/sluice/hubble.sock", MaxRate: 1000, Sample: 1},
	}
}

// maxSize is far more than 3 lists of 1024 networks take.
const maxSize = 1 << 20

// Load reads the file at path. A missing file is an error: the operator named it.
func Load(path string) (*Config, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the agent's configuration: %w", err)
	}
	if info.Size() > maxSize {
		return nil, fmt.Errorf("read the agent's configuration: %s has %d bytes, at most %d", path, info.Size(), maxSize)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the agent's configuration: %w", err)
	}
	return parse(raw, path)
}
