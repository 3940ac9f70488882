// SPDX-License-Identifier: Apache-2.0

// Package conf reads the configuration of cluster-wide addresses: whereabouts' keys, its flat file, CNI_ARGS and the
// keys of Sluice. It accepts what whereabouts 0.9 accepts, and names key and value of what it refuses (code 7).
//
// The plugin and its store program use it. It must not talk to a store.
package conf

import (
	"encoding/json"
	"errors"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// The types under which a configuration names the plugin.
const (
	Type        = "sluice-ipam"
	Whereabouts = "whereabouts"
)

// Stores of pools.
const (
	Kubernetes = "kubernetes"
	Etcd       = "etcd"
)

// DefaultBlockSize is how many addresses a node claims at a time.
const DefaultBlockSize = 32

// MaxBlockSize bounds the key block_size: one request to the store changes a block.
const MaxBlockSize = 1024

// MaxEtcdBlock is the same with etcd: a transaction has at most 128 operations, if the server's default is left as it is.
const MaxEtcdBlock = 120

// DefaultDataDir is where a node keeps what it has claimed.
const DefaultDataDir = "/var/lib/cni/sluice-ipam"

// Config is a validated configuration, and what the call adds to it.
type Config struct {
	Name     string         `json:"name"` // of the CNI network
	Version  string         `json:"version"`
	Network  string         `json:"network,omitempty"` // network_name
	Ranges   []pool.Range   `json:"ranges"`
	Keys     []string       `json:"keys"` // of each range, where the configuration has it
	Routes   []*types.Route `json:"-"`
	DNS      types.DNS      `json:"-"`
	Static   []Address      `json:"-"`
	Gateway  netip.Addr     `json:"-"`
	Wanted   []Request      `json:"-"`
	Warnings []string       `json:"-"` // what whereabouts ignores without a word

	// Persistent says that addresses may be kept for owners that outlive their pods.
	Persistent bool   `json:"-"`
	Claim      string `json:"-"` // the IPAMClaim that the call names

	Overlapping   bool   `json:"overlapping"`
	NodeSliceSize string `json:"nodeSliceSize,omitempty"`
	BlockSize     int    `json:"blockSize"`
	DataDir       string `json:"dataDir"`
	ConfPath      string `json:"confPath,omitempty"` // configuration_path
	LogFile       string `json:"logFile,omitempty"`
	LogLevel      string `json:"logLevel,omitempty"`

	Backend    string     `json:"backend"`
	Kubeconfig string     `json:"kubeconfig,omitempty"`
	Etcd       EtcdConfig `json:"etcd"`

	PodNamespace string `json:"-"`
	PodName      string `json:"-"`
	PodUID       string `json:"-"`

	lowest bool // of each range
}

// EtcdConfig says how etcd is reached.
type EtcdConfig struct {
	Endpoints []string `json:"endpoints,omitempty"`
	Username  string   `json:"username,omitempty"`
	Password  string   `json:"password,omitempty"`
	KeyFile   string   `json:"keyFile,omitempty"`
	CertFile  string   `json:"certFile,omitempty"`
	CAFile    string   `json:"caFile,omitempty"`
}

// Address is an address of the configuration that no pool has.
type Address struct {
	Prefix  netip.Prefix
	Gateway netip.Addr
}

// Request is an address that the caller asked for, and where.
type Request struct {
	Addr   netip.Addr
	Prefix netip.Prefix // as written, if it was
	Key    string
}

// PodRef is whereabouts' name of the pod, or empty.
func (c *Config) PodRef() string {
	if c.PodName == "" {
		return ""
	}
	return c.PodNamespace + "/" + c.PodName
}

// PoolName returns the name of the pool of a range. node is set where each node has a slice.
func (c *Config) PoolName(node, cidr string) string { return pool.Name(c.Network, node, cidr) }

// netConf is what the plugin reads of a network configuration: an IPAM plugin gets the whole configuration of the
// interface plugin that calls it.
type netConf struct {
	cniconf.Common
	IPAM *ipamConf `json:"ipam"`
	// Under this name OVN-Kubernetes and KubeVirt's webhook look for it, beside the section of the addresses.
	Persistent bool `json:"allowPersistentIPs"`
}

type ipamConf struct {
	Type          string            `json:"type"`
	Routes        []json.RawMessage `json:"routes"`
	Addresses     []addressConf     `json:"addresses"`
	IPRanges      []rangeConf       `json:"ipRanges"`
	Exclude       []string          `json:"exclude"`
	DNS           types.DNS         `json:"dns"`
	Range         string            `json:"range"`
	RangeStart    string            `json:"range_start"`
	RangeEnd      string            `json:"range_end"`
	Gateway       string            `json:"gateway"`
	NetworkName   string            `json:"network_name"`
	NodeSliceSize string            `json:"node_slice_size"`
	Overlapping   *bool             `json:"enable_overlapping_ranges"`

	Datastore    string         `json:"datastore"`
	Kubernetes   kubernetesConf `json:"kubernetes"`
	EtcdHost     string         `json:"etcd_host"`
	EtcdUsername string         `json:"etcd_username"`
	EtcdPassword string         `json:"etcd_password"`
	EtcdKeyFile  string         `json:"etcd_key_file"`
	EtcdCertFile string         `json:"etcd_cert_file"`
	EtcdCAFile   string         `json:"etcd_ca_cert_file"`

	ConfigurationPath string `json:"configuration_path"`
	LogFile           string `json:"log_file"`
	LogLevel          string `json:"log_level"`

	// Read, so that a value of the wrong kind is refused as whereabouts refuses it, and not used: there is no lease,
	// and reconciliation follows events.
	LeaseDuration int    `json:"leader_lease_duration"`
	RenewDeadline int    `json:"leader_renew_deadline"`
	RetryPeriod   int    `json:"leader_retry_period"`
	Cron          string `json:"reconciler_cron_expression"`
	SleepForRace  int    `json:"sleep_for_race"`

	// Sluice's.
	BlockSize   *int   `json:"block_size"`
	LowestFirst *bool  `json:"lowest_first"`
	DataDir     string `json:"data_dir"`
}

type kubernetesConf struct {
	Kubeconfig string `json:"kubeconfig"`
	APIRoot    string `json:"k8s_api_root"`
}

type addressConf struct {
	Address string `json:"address"`
	Gateway string `json:"gateway"`
}

type rangeConf struct {
	Range      string   `json:"range"`
	RangeStart string   `json:"range_start"`
	RangeEnd   string   `json:"range_end"`
	Exclude    []string `json:"exclude"`
}

// ErrNoPlace marks a configuration that says nothing of where the addresses are kept.
var ErrNoPlace = errors.New("no store")

// Load decodes and validates the configuration of a call. When something is wrong that DEL and GC can do without, it
// returns the error together with a Config that says where the node keeps its addresses.
func Load(a *cniskel.Args) (*Config, error) {
	var n netConf
	if err := cniconf.Load(a.StdinData, &n); err != nil {
		return nil, err
	}
	if n.IPAM == nil {
		return nil, cnierr.New(cnierr.CodeConfig, `missing key "ipam"`, "")
	}
	c := &Config{Name: n.Name, Version: n.Version(), DataDir: DefaultDataDir, BlockSize: DefaultBlockSize, Overlapping: true}
	if n.IPAM.Type != Type && n.IPAM.Type != Whereabouts {
		return nil, cnierr.Config("ipam.type", n.IPAM.Type, "this plugin is "+Type+" and "+Whereabouts)
	}
	overlapping := n.IPAM.Overlapping // of the flat file it does not count, as with whereabouts
	if err := n.IPAM.fillFromFile(); err != nil {
		return c, err
	}
	n.IPAM.Overlapping = overlapping
	if err := c.plain(n.IPAM); err != nil {
		return c, err
	}
	if err := c.store(n.IPAM); err != nil {
		return c, err
	}
	if err := c.ranges(n.IPAM); err != nil {
		return c, err
	}
	var err error
	if c.Routes, err = cniconf.Routes("ipam.routes", n.IPAM.Routes); err != nil {
		return c, err
	}
	if err := c.static(n.IPAM); err != nil {
		return c, err
	}
	if err := c.call(a.Args, &n); err != nil {
		return c, err
	}
	if err := c.persistent(&n); err != nil {
		return c, err
	}
	return c, c.checkVersion()
}

// plain takes over what needs no reading.
func (c *Config) plain(i *ipamConf) error {
	c.Network, c.NodeSliceSize, c.DNS = i.NetworkName, i.NodeSliceSize, i.DNS
	c.LogFile, c.LogLevel, c.ConfPath = i.LogFile, i.LogLevel, i.ConfigurationPath
	if i.Overlapping != nil {
		c.Overlapping = *i.Overlapping
	}
	if i.DataDir != "" {
		c.DataDir = i.DataDir
	}
	if i.BlockSize != nil {
		if *i.BlockSize < 1 || *i.BlockSize > MaxBlockSize {
			return cnierr.Config("ipam.block_size", *i.BlockSize, "a block has 1 to 1024 addresses; 1 takes them one by one")
		}
		c.BlockSize = *i.BlockSize
	}
	if i.Gateway != "" {
		gw, err := parseAddr(i.Gateway)
		if err != nil {
			return cnierr.Config("ipam.gateway", i.Gateway, "not an IP address")
		}
		c.Gateway = gw
	}
	return nil
}

// persistent checks what addresses that are kept need: objects of Kubernetes, and a pool for each range.
func (c *Config) persistent(n *netConf) error {
	c.Persistent = n.Persistent
	if c.Claim != "" && !c.Persistent {
		return cnierr.Config("ipam-claim-reference", c.Claim, "the network keeps no addresses; its configuration needs \"allowPersistentIPs\": true")
	}
	if c.Persistent && c.Backend != Kubernetes {
		return cnierr.Config("allowPersistentIPs", true, "only Kubernetes tells whether a pod comes again; leave it out with etcd")
	}
	for i, r := range c.Ranges {
		for _, other := range c.Ranges[:i] {
			if c.Persistent && r.CIDR == other.CIDR {
				return cnierr.Config(c.Keys[i]+".range", r.CIDR, "two ranges of one network keep their addresses in one pool; leave allowPersistentIPs out, or one of them")
			}
		}
	}
	return nil
}

// checkVersion: before 0.3.0 a result has one address of each family.
func (c *Config) checkVersion() error {
	if c.Version != "0.1.0" && c.Version != "0.2.0" {
		return nil
	}
	n := map[bool]int{}
	for _, r := range c.Ranges {
		n[r.CIDR.Addr().Is4()]++
	}
	for _, a := range c.Static {
		n[a.Prefix.Addr().Is4()]++
	}
	if n[true] > 1 || n[false] > 1 {
		return cnierr.Config("cniVersion", c.Version, "it does not support more than 1 address per family")
	}
	return nil
}
