// SPDX-License-Identifier: Apache-2.0

// Package nodeconf reads the node-wide defaults of the suite, /etc/sluice/config.json.
//
// The file is the operator's. The node agent writes one key of it, through WithNonMasquerade. A missing file means the defaults. An unknown key or a value that
// cannot be used is an Error that names both, so that a spelling mistake never silently means the default. The package
// imports only pkg/log of ours; what a value does to the kernel is decided by the loader.
package nodeconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"sort"
)

// DefaultPath is where the configuration lives.
const DefaultPath = "/etc/sluice/config.json"

// Backend says what carries the packets.
type Backend string

// The backends. BackendAuto takes eBPF where the probes allow it.
const (
	BackendAuto     Backend = "auto"
	BackendEBPF     Backend = "ebpf"
	BackendNFTables Backend = "nftables"
	BackendIPTables Backend = "iptables"

	// BackendFirewalld is for the firewall plugin only.
	BackendFirewalld Backend = "firewalld"
)

// Variant is one of the two kernel interfaces of iptables.
type Variant string

// The variants. VariantAuto takes the one whose tables the node uses.
const (
	VariantAuto   Variant = "auto"
	VariantNFT    Variant = "nft"
	VariantLegacy Variant = "legacy"
)

// Bandwidth says by what rates are limited.
type Bandwidth string

// The ways to limit rates. BandwidthAuto takes EDT where the kernel has sch_fq and the datapath runs.
const (
	BandwidthAuto Bandwidth = "auto"
	BandwidthEDT  Bandwidth = "edt"
	BandwidthTBF  Bandwidth = "tbf"
)

// FastPath says which packets may skip the host's stack.
type FastPath string

// The modes of the fast path.
const (
	FastPathEstablished FastPath = "established" // once the first packet went through the slow path
	FastPathImmediate   FastPath = "immediate"   // and those of a hostPort from the first on
	FastPathOff         FastPath = "off"         // none
)

// Attach says by what our programs hang on devices.
type Attach string

// The ways to attach. AttachAuto takes tcx on uplinks where the kernel has it (6.6) and clsact filters on pod devices: a tcx
// attachment waits for an RCU grace period in the kernel, twice at ADD and twice at DEL, which is longer than all the rest.
const (
	AttachAuto   Attach = "auto"
	AttachTCX    Attach = "tcx"
	AttachClsact Attach = "clsact"
)

// Conflicts says what becomes of a hostPort on which a socket of the node waits.
type Conflicts string

// What ADD does about such a hostPort. It takes the socket's traffic unless it is refused.
const (
	ConflictsAllow  Conflicts = "allow"
	ConflictsWarn   Conflicts = "warn" // and publish it
	ConflictsRefuse Conflicts = "refuse"
)

// CgroupAuto and CgroupOff are the values of CgroupRoot that are no path.
const (
	CgroupAuto = "auto" // where cgroup v2 is mounted
	CgroupOff  = "off"  // nowhere: the node's own processes do not reach hostPorts
)

// Defaults of the values that have one.
const (
	DefaultAdmitMark = 0x1000
	DefaultBPFFS     = "/sys/fs/bpf"
	DefaultRelearn   = 5

	// Pods publish ranges of a thousand ports and more, by TCP and by UDP. In both families these mappings take half of the map of
	// hostPorts at its default size, so that one attachment alone does not fill it.
	DefaultHostPortsPerAttachment = 4096
	// A sixteenth of the map of allowed sources: sixteen attachments together do not fill it.
	DefaultAllowedSourcesPerAttachment = 1024
)

// PortRange is an inclusive range of ports. First is at least 1 and at most Last.
type PortRange struct{ First, Last uint16 }

// String returns "first-last".
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// MapSizes are the numbers of entries of the maps that an operator may size. Zero means the loader's default. Sizes
// take effect when the maps are made, that is once per boot.
type MapSizes struct {
	Conntrack          uint32 `json:"conntrack,omitempty"`
	ConntrackUnassured uint32 `json:"conntrackUnassured,omitempty"`
	Endpoints          uint32 `json:"endpoints,omitempty"`
	HostPorts          uint32 `json:"hostPorts,omitempty"`
	NetworkPolicy      uint32 `json:"networkPolicy,omitempty"` // addresses of the cluster's pods and nodes
}

// Log is where and how much the plugins log.
type Log struct {
	Level string `json:"level,omitempty"` // debug, info, warn (default), error
	File  string `json:"file,omitempty"`  // absolute path, besides stderr
}

// Config is the node's configuration, validated, with defaults filled in.
type Config struct {
	Backend Backend
	// Firewall is the backend of the firewall plugin where it is to be another: also BackendFirewalld. Empty: Backend.
	Firewall Backend
	// IPTables is the variant of iptables that netfilter backends use.
	IPTables  Variant
	Bandwidth Bandwidth
	Uplinks   []string // names; empty: found by address and route
	FastPath  FastPath
	// Relearn is how long a connection takes the fast path before the stack has to see it again, in seconds; 0: for ever.
	Relearn   uint32
	AntiSpoof bool
	AdmitMark uint32 // bits or-ed into the mark of packets of admitted pods; 0: none
	// SNATPorts are the source ports of masqueraded connections whose own port is not free, at most two ranges; empty: what
	// net.ipv4.ip_local_port_range and the NodePorts leave.
	SNATPorts          []PortRange
	NonMasqueradeCIDRs []netip.Prefix
	MapSizes           MapSizes
	// HostPortsPerAttachment is how many port mappings one attachment may have with eBPF, whatever families they are for.
	HostPortsPerAttachment int
	// AllowedSourcesPerAttachment is how many networks the allowlists of one attachment's hostPorts may have. Equal lists count once.
	AllowedSourcesPerAttachment int
	HostPortConflicts           Conflicts
	BPFFS                       string
	CgroupRoot                  string // cgroup v2 directory whose sockets reach hostPorts, or CgroupAuto, or CgroupOff
	Attach                      Attach
	Log                         Log
}

// Error names the key and the value that cannot be used. Plugins report it with CNI error code 7.
type Error struct {
	File  string
	Key   string
	Value string
	Why   string
}

// Error returns the sentence for the operator.
func (e *Error) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("%s: %s", e.File, e.Why)
	}
	return fmt.Sprintf("%s: invalid %s %s: %s", e.File, e.Key, e.Value, e.Why)
}

// Default returns the configuration of a node without a file.
func Default() *Config {
	return &Config{
		Backend: BackendAuto, IPTables: VariantAuto, Bandwidth: BandwidthAuto, FastPath: FastPathEstablished, Relearn: DefaultRelearn, AntiSpoof: true, AdmitMark: DefaultAdmitMark,
		HostPortsPerAttachment: DefaultHostPortsPerAttachment, AllowedSourcesPerAttachment: DefaultAllowedSourcesPerAttachment, HostPortConflicts: ConflictsWarn,
		BPFFS: DefaultBPFFS, CgroupRoot: CgroupAuto, Attach: AttachAuto,
	}
}

// EBPFRefused returns an error that names the backend if the node asks for another one than eBPF. A network may ask for eBPF nevertheless.
func (c *Config) EBPFRefused() error {
	if c.Backend == BackendAuto || c.Backend == BackendEBPF {
		return nil
	}
	return fmt.Errorf("the node configuration asks for the backend %q", c.Backend)
}

// Load reads the file at path. A missing file yields the defaults; anything wrong in it is an *Error.
func Load(path string) (*Config, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Default(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read node configuration: %w", err)
	}
	c, err := Parse(raw)
	var bad *Error
	if errors.As(err, &bad) {
		bad.File = path
	}
	return c, err
}

// Parse decodes and validates a configuration. Errors are of type *Error, with File unset to "node configuration".
func Parse(raw []byte) (*Config, error) {
	c := Default()
	if len(bytes.TrimSpace(raw)) == 0 {
		return c, nil
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(raw, &keys); err != nil {
		return nil, &Error{File: "node configuration", Why: "not a JSON object: " + err.Error()}
	}
	names := make([]string, 0, len(keys))
	for k := range keys {
		names = append(names, k)
	}
	sort.Strings(names) // the same file always reports the same mistake
	for _, k := range names {
		known, err := set(c, k, keys[k])
		if !known {
			return nil, &Error{File: "node configuration", Key: "key", Value: fmt.Sprintf("%q", k), Why: "unknown key"}
		}
		if err != nil {
			return nil, &Error{File: "node configuration", Key: k, Value: string(keys[k]), Why: err.Error()}
		}
	}
	return c, nil
}
