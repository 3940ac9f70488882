// SPDX-License-Identifier: Apache-2.0

// Package routes keeps the routes from this node to the pods of the other nodes.
// The node agent calls it with the facts of Node objects. It does not talk to the API server, and no packet waits for it.
// It changes only routes of its own protocol number and devices with its own alias.
// docs/routing.md describes the modes, docs/dev/adr/0036-routes-between-nodes.md the decisions.
package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/log"
)

// Modes.
const (
	ModeNative    = "native"    // a third party routes between the nodes
	ModeHostGW    = "host-gw"   // routes via the other nodes' addresses, on one segment
	ModeVXLAN     = "vxlan"     // a kernel VXLAN device, in flannel's format
	ModeWireGuard = "wireguard" // kernel WireGuard devices
)

// Modes returns the names of all modes, the default first.
func Modes() []string { return []string{ModeHostGW, ModeNative, ModeVXLAN, ModeWireGuard} }

// Protocol is the number that the kernel keeps with each route of this package (RTPROT_*). It says which routes are Sluice's,
// also after a restart. No protocol of <linux/rtnetlink.h>, of iproute2's rt_protos or of FRR has it.
const Protocol = 115

// Annotation keys of Sluice. Those of flannel are in flannel.go.
const (
	// AnnotationMode names the mode in which the node's agent runs.
	AnnotationMode = "sluice-cni.io/routing"
	// AnnotationWireGuard holds the node's public keys.
	AnnotationWireGuard = "sluice-cni.io/wireguard"
)

// Node is what a Node object says of a node. All of it may come from a node that an attacker controls.
type Node struct {
	Name        string
	PodCIDRs    []netip.Prefix // spec.podCIDRs
	InternalIPs []netip.Addr   // status.addresses of type InternalIP, in their order
	Annotations map[string]string
	// Created is metadata.creationTimestamp. Of two nodes that claim one address, the older has it. A zero time counts as young.
	Created time.Time
}

// Router keeps the routes of one mode. Calls must not overlap. The first call fixes the network namespace: that of its thread.
type Router interface {
	// Sync makes the kernel's state what self and others say, and writes differences only. Calling it twice changes nothing.
	// A node whose facts cannot be used gets no routes, or none of that family. The error then holds a NodeError for it,
	// and everything else is done nevertheless. See NodeErrors.
	Sync(ctx context.Context, self Node, others []Node) (Wanted, error)
	// MTU is what pods can send through an uplink of that MTU. It depends on the families of the last Sync's self.
	MTU(uplink int) int
	// Remove removes all routes, devices and keys that this package has made, of whatever mode.
	Remove(ctx context.Context) error
}

// Wanted is what the agent has to do after a Sync, also after one with errors.
type Wanted struct {
	// SelfAnnotations must be on this node's object. An empty value means that the annotation must not be there.
	SelfAnnotations map[string]string
	// Resync says that devices have come or gone, so that the datapath has to look at the node again, as "sluice resync" does.
	// Until it has, hostPorts do not answer at a new device.
	Resync bool
	// Again is the time after which Sync must be called even if no node has changed. 0: no need.
	Again time.Duration
}

// Config has the settings of all modes. The zero value of a field means the default.
type Config struct {
	// ClusterCIDRs hold all pod CIDRs of the cluster. If there are any of a family, no other pod CIDR of it gets a route.
	ClusterCIDRs []netip.Prefix
	// ServiceCIDRs never get a route.
	ServiceCIDRs []netip.Prefix
	VXLAN        VXLAN
	WireGuard    WireGuard
	// StateDir holds the WireGuard keys: /var/lib/sluice.
	StateDir string
}

// VXLAN has the settings of the mode vxlan.
type VXLAN struct {
	VNI    int    // 1
	Port   int    // 8472
	Device string // flannel.1; the IPv6 device's name follows from it
}

// WireGuard has the settings of the mode wireguard.
type WireGuard struct {
	Port        int           // 51820; the second device has the next port
	Device      string        // sluice-wg; the second device has "1" behind it
	KeyRotation time.Duration // 720h
}

// NodeError says why a node has no routes, or not all of them.
type NodeError struct {
	Node   string
	Reason string // "key: value: what is wrong; what to do"
}

func (e *NodeError) Error() string { return "node " + e.Node + ": " + e.Reason }

// NodeErrors returns the errors of single nodes in what Sync has returned, and the rest.
func NodeErrors(err error) (nodes []*NodeError, rest error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var others []error
		for _, e := range joined.Unwrap() {
			n, r := NodeErrors(e)
			nodes, others = append(nodes, n...), append(others, r)
		}
		return nodes, errors.Join(others...)
	}
	var one *NodeError
	if errors.As(err, &one) {
		return []*NodeError{one}, nil
	}
	return nil, err
}

// New returns the router of a mode. An error names the key and the value. logger may be nil.
func New(mode string, cfg Config, logger *log.Logger) (Router, error) {
	cfg.setDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = log.NewNop()
	}
	b := base{cfg: cfg, log: logger.Named("routes")}
	switch mode {
	case ModeNative:
		return router{&native{b}}, nil
	case ModeHostGW:
		return router{&hostGW{b}}, nil
	case ModeVXLAN:
		return router{&vxlan{base: b}}, nil
	case ModeWireGuard:
		return router{&wireGuard{base: b, now: time.Now}}, nil
	}
	return nil, fmt.Errorf("routing: %q: unknown mode; use one of %s", mode, strings.Join(Modes(), ", "))
}

// mode is what the routers do each in their own way.
type mode interface {
	name() string
	shared() *base
	open() error
	// sync does what Router.Sync says, in the namespace of open's first call. It adds to w.
	sync(self Node, others []Node, w *Wanted) error
	MTU(uplink int) int
	Remove(ctx context.Context) error
}

// router is the Router of a mode.
type router struct{ mode }

func (r router) Sync(_ context.Context, self Node, others []Node) (w Wanted, err error) {
	w.SelfAnnotations = annotations(r.name(), self)
	b := r.shared()
	devices := b.devices
	if err = r.open(); err == nil {
		err = r.sync(self, others, &w)
	}
	w.Resync = b.devices != devices
	return w, err
}

func (c *Config) setDefaults() {
	orDefault(&c.VXLAN.VNI, 1)
	orDefault(&c.VXLAN.Port, 8472)
	orDefault(&c.VXLAN.Device, "flannel.1")
	orDefault(&c.WireGuard.Port, 51820)
	orDefault(&c.WireGuard.Device, "sluice-wg")
	orDefault(&c.WireGuard.KeyRotation, 720*time.Hour)
	orDefault(&c.StateDir, "/var/lib/sluice")
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// longestDevice leaves room for what the second device of a mode has in its name: "-v6" or "1".
const longestDevice = 12

func (c *Config) check() error {
	switch {
	case c.VXLAN.VNI < 1 || c.VXLAN.VNI >= 1<<24:
		return fmt.Errorf("vxlan.vni: %d: not a VXLAN network identifier; use 1 to 16777215", c.VXLAN.VNI)
	case c.VXLAN.Port < 1 || c.VXLAN.Port > 65535:
		return fmt.Errorf("vxlan.port: %d: not a port; use 1 to 65535", c.VXLAN.Port)
	case c.WireGuard.Port < 1 || c.WireGuard.Port > 65534:
		return fmt.Errorf("wireguard.port: %d: this port and the next one are needed; use 1 to 65534", c.WireGuard.Port)
	case c.WireGuard.KeyRotation < shortestRotation:
		return fmt.Errorf("wireguard.keyRotation: %s: too short for nodes to learn the keys; use at least %s", c.WireGuard.KeyRotation, shortestRotation)
	}
	for _, d := range []struct{ key, name string }{{"vxlan.device", c.VXLAN.Device}, {"wireguard.device", c.WireGuard.Device}} {
		if !isDeviceName(d.name) {
			return fmt.Errorf("%s: %q: not a device name; use at most %d letters, digits, dots, dashes and underscores", d.key, d.name, longestDevice)
		}
	}
	for _, l := range []struct {
		key  string
		list []netip.Prefix
	}{{"clusterCIDRs", c.ClusterCIDRs}, {"serviceCIDRs", c.ServiceCIDRs}} {
		for _, p := range l.list {
			if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() {
				return fmt.Errorf("%s: %s: not a network; write the network's first address", l.key, p)
			}
		}
	}
	return nil
}

func isDeviceName(s string) bool {
	const allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_"
	return s != "" && len(s) <= longestDevice && s != "." && s != ".." && strings.Trim(s, allowed) == ""
}

// firstOf returns the first address of a family, invalid if there is none.
func firstOf(addrs []netip.Addr, v4 bool) netip.Addr {
	if i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return a.Is4() == v4 }); i >= 0 {
		return addrs[i]
	}
	return netip.Addr{}
}

func familyName(v4 bool) string {
	if v4 {
		return "IPv4"
	}
	return "IPv6"
}
