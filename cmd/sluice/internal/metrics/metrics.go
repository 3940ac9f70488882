// SPDX-License-Identifier: Apache-2.0

// Package metrics puts what is known of a node into the terms of Prometheus.
//
// It reads nothing itself: "sluice metrics" looks at the node and fills Node. docs/observability.md lists the metrics. The names follow
// Prometheus' conventions, and the number of series does not grow with connections or destinations, and with pods only if Pods is asked for.
package metrics

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/pools"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/maps/conntrack"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/verbtimes"
)

// Connections counts connections of a kind (masquerade, hostport, plain) in a state.
type Connections struct{ Kind, State string }

// PortUse is how many ports an address of the node uses toward its busiest destination.
type PortUse struct {
	Address, Proto string
	InUse          int
}

// Attached counts attachments by a feature and the backend that does it.
type Attached struct{ Feature, Backend string }

// Pod is one attachment with a device in the eBPF datapath.
type Pod struct {
	Network, ContainerID, Interface string

	Traffic     loader.EndpointCounter
	Connections int // that it has in the tables
}

// Node is what a look at the node found. What is nil was not found, and has no series.
type Node struct {
	Version     string
	Status      *loader.Status // nil: nothing is loaded
	Backend     string         // what was decided, also if nothing is loaded; empty: nothing was
	Reason      string
	Netfilter   map[string]string // tables used where eBPF is not, by what was asked for
	Drops       map[drops.Reason]drops.Sum
	Connections map[Connections]int
	Counts      *conntrack.Counts // nil: the programs do not count connections
	HostPorts   map[string]int    // by protocol
	PortUse     []PortUse
	PortsTotal  int            // toward one destination, by one address and protocol
	Attachments map[string]int // by network
	Attached    map[Attached]int
	Pods        []Pod // nil: no series of pods
	Verbs       []verbtimes.Histogram
	Pools       []pools.Pool
	Failed      map[string]bool // whether a part of the look failed
}

// Write writes the node's metrics in the text format of Prometheus.
func Write(w io.Writer, n *Node) error {
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(&collector{n}); err != nil {
		return err
	}
	families, err := r.Gather()
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return encode(w, families)
}

func encode(w io.Writer, families []*dto.MetricFamily) error {
	e := expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := e.Encode(f); err != nil {
			return err
		}
	}
	return nil
}

// descs are the metrics by their names.
var descs = map[string]*prometheus.Desc{}

func describe(name, help string, labels ...string) string {
	descs[name] = prometheus.NewDesc(name, help, labels, nil)
	return name
}

// The metrics.
var (
	build       = describe("sluice_build_info", "Version of the sluice command. The value is 1.", "version")
	loaded      = describe("sluice_datapath_loaded", "Whether the eBPF datapath is loaded.")
	backend     = describe("sluice_backend_info", "Backend that the node decided for, and why. The value is 1.", "backend", "reason")
	tables      = describe("sluice_netfilter_info", "Netfilter tables used where eBPF is not, by what was asked for. The value is 1.", "asked", "tables")
	packets     = describe("sluice_forwarded_packets_total", "Packets of all pods since the maps were made, without dropped ones.", "direction")
	octets      = describe("sluice_forwarded_bytes_total", "Bytes of all pods since the maps were made, with Ethernet headers.", "direction")
	fast        = describe("sluice_fast_path_packets_total", "Packets of all pods that the fast path has forwarded.", "direction")
	dropped     = describe("sluice_dropped_packets_total", "Packets dropped since the maps were made, by reason and direction.", "reason", "direction")
	connections = describe("sluice_connections", "Connections in the tables, by kind and state.", "kind", "state")
	made        = describe("sluice_connections_made_total", "Entries made in the connection tables since the maps were, by who opened the connection.", "opener")
	ended       = describe("sluice_connections_ended_total", "TCP connections in the tables that ended since the maps were made, by how.", "by")
	evicted     = describe("sluice_connections_evicted_total", "Connections taken from attachments that had many, because the table was full.")
	restored    = describe("sluice_connections_restored_total", "Connections that the kernel evicted from a table, and whose reverse entry brought them back.")
	mapEntries  = describe("sluice_map_entries", "Entries in a map.", "map")
	mapMax      = describe("sluice_map_max_entries", "Entries that a map has room for.", "map")
	mapPressure = describe("sluice_map_pressure_ratio", "Part of a map that is in use, 0 to 1.", "map")
	hostPorts   = describe("sluice_hostports", "Published ports, by protocol.", "protocol")
	ports       = describe("sluice_masquerade_ports_in_use", "Ports of an address in use toward its busiest destination.", "address", "protocol")
	portsTotal  = describe("sluice_masquerade_ports", "Ports of one address toward one destination.")
	attachments = describe("sluice_attachments", "Attachments, by network.", "network")
	attached    = describe("sluice_attachments_by_backend", "Attachments by feature, and by the backend that does it.", "feature", "backend")
	endpoints   = describe("sluice_endpoints", "Pod devices in the eBPF datapath.")
	podPackets  = describe("sluice_pod_forwarded_packets_total", "Packets of a pod's device since it was enabled, without dropped ones.", "network", "container", "interface", "direction")
	podOctets   = describe("sluice_pod_forwarded_bytes_total", "Bytes of a pod's device since it was enabled, with Ethernet headers.", "network", "container", "interface", "direction")
	podConns    = describe("sluice_pod_connections", "Connections that a pod's attachment has in the tables.", "network", "container", "interface")
	programTime = describe("sluice_program_run_seconds_total", "Time in a program on all CPUs. Only with kernel.bpf_stats_enabled.", "program")
	programRuns = describe("sluice_program_runs_total", "Runs of a program on all CPUs. Only with kernel.bpf_stats_enabled.", "program")
	verbTime    = describe("sluice_cni_verb_duration_seconds", "Time of a CNI verb in a plugin's process since the boot.", "plugin", "verb", "result")
	poolUsed    = describe("sluice_ipam_addresses_used", "Addresses of a pool that pods of the node have, or that are kept for them.", "plugin", "pool", "family")
	poolSize    = describe("sluice_ipam_addresses", "Addresses that a pool of host-local has for pods of the node.", "plugin", "pool", "family")
	poolClaims  = describe("sluice_ipam_addresses_claimed", "Addresses of a pool of the cluster that the node has claimed.", "plugin", "pool", "family")
	poolScarce  = describe("sluice_ipam_pool_scarce", "Whether a pool of the cluster had few free addresses when the node last looked.", "plugin", "pool", "family")
	failed      = describe("sluice_look_failed", "Whether a part of the node could not be read.", "part")
)

type collector struct{ n *Node }

func (*collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
}

// sink sends the values of metrics.
type sink chan<- prometheus.Metric

func (s sink) gauge(name string, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(descs[name], prometheus.GaugeValue, v, labels...)
}

func (s sink) counter(name string, v uint64, labels ...string) {
	s <- prometheus.MustNewConstMetric(descs[name], prometheus.CounterValue, float64(v), labels...)
}

func (s sink) flag(name string, yes bool, labels ...string) {
	v := 0.0
	if yes {
		v = 1
	}
	s.gauge(name, v, labels...)
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s, n := sink(ch), c.n
	s.flag(build, true, n.Version)
	s.flag(loaded, n.Status != nil)
	if n.Backend != "" {
		s.flag(backend, true, n.Backend, n.Reason)
	}
	for asked, names := range n.Netfilter {
		s.flag(tables, true, asked, names)
	}
	for part, bad := range n.Failed {
		s.flag(failed, bad, part)
	}
	for network, count := range n.Attachments {
		s.gauge(attachments, float64(count), network)
	}
	for by, count := range n.Attached {
		s.gauge(attached, float64(count), by.Feature, by.Backend)
	}
	for i := range n.Verbs {
		s.verb(&n.Verbs[i])
	}
	for i := range n.Pools {
		s.pool(&n.Pools[i])
	}
	if n.Status != nil {
		s.datapath(n)
	}
}

func (s sink) pool(p *pools.Pool) {
	s.gauge(poolUsed, float64(p.Used), p.Plugin, p.Name, p.Family)
	if p.Size > 0 {
		s.gauge(poolSize, float64(p.Size), p.Plugin, p.Name, p.Family)
	}
	if p.Plugin == pools.Cluster {
		s.gauge(poolClaims, float64(p.Claims), p.Plugin, p.Name, p.Family)
		s.flag(poolScarce, p.Scarce, p.Plugin, p.Name, p.Family)
	}
}

// Directions of traffic.
const toPods, fromPods = "to_pods", "from_pods"

// datapath sends what only a loaded datapath has.
func (s sink) datapath(n *Node) {
	t := n.Status.Total
	s.counter(packets, t.RxPackets, toPods)
	s.counter(packets, t.TxPackets, fromPods)
	s.counter(octets, t.RxBytes, toPods)
	s.counter(octets, t.TxBytes, fromPods)
	s.counter(fast, t.RxFast, toPods)
	s.counter(fast, t.TxFast, fromPods)
	s.gauge(endpoints, float64(len(n.Status.Endpoints)))
	if n.Drops != nil {
		for r := drops.Reason(1); r < drops.Max; r++ { // a series from the first scrape on, so that rate() sees the first drop
			s.counter(dropped, n.Drops[r].ToPods, r.Name(), toPods)
			s.counter(dropped, n.Drops[r].FromPods, r.Name(), fromPods)
		}
	}
	if c := n.Counts; c != nil {
		s.counter(made, c.ByPod, "pod")
		s.counter(made, c.ByClient, "client")
		s.counter(ended, c.Fin, "fin")
		s.counter(ended, c.Rst, "rst")
		s.counter(evicted, c.Evicted)
		s.counter(restored, c.Restored)
	}
	for by, count := range n.Connections {
		s.gauge(connections, float64(count), by.Kind, by.State)
	}
	s.maps(n)
	for proto, count := range n.HostPorts {
		s.gauge(hostPorts, float64(count), proto)
	}
	s.gauge(portsTotal, float64(n.PortsTotal))
	for _, p := range n.PortUse {
		s.gauge(ports, float64(p.InUse), p.Address, p.Proto)
	}
	for i := range n.Pods {
		s.pod(&n.Pods[i])
	}
	for _, r := range n.Status.Runs {
		if r.Runs > 0 {
			s.counter(programRuns, r.Runs, r.Program)
			s <- prometheus.MustNewConstMetric(descs[programTime], prometheus.CounterValue, r.Time.Seconds(), r.Program)
		}
	}
}

// maps sends how full they are.
func (s sink) maps(n *Node) {
	for _, m := range n.Status.Maps {
		s.gauge(mapEntries, float64(m.Entries), m.Name)
		s.gauge(mapMax, float64(m.Max), m.Name)
		if fill, ok := m.Fill(); ok {
			s.gauge(mapPressure, fill, m.Name)
		}
	}
}

func (s sink) pod(p *Pod) {
	s.counter(podPackets, p.Traffic.RxPackets, p.Network, p.ContainerID, p.Interface, toPods)
	s.counter(podPackets, p.Traffic.TxPackets, p.Network, p.ContainerID, p.Interface, fromPods)
	s.counter(podOctets, p.Traffic.RxBytes, p.Network, p.ContainerID, p.Interface, toPods)
	s.counter(podOctets, p.Traffic.TxBytes, p.Network, p.ContainerID, p.Interface, fromPods)
	s.gauge(podConns, float64(p.Connections), p.Network, p.ContainerID, p.Interface)
}

func (s sink) verb(h *verbtimes.Histogram) {
	buckets := make(map[float64]uint64, len(h.Counts))
	var below uint64
	for i, b := range verbtimes.Bounds() {
		below += h.Counts[i]
		buckets[b.Seconds()] = below
	}
	s <- prometheus.MustNewConstHistogram(descs[verbTime], h.Count(), h.Sum.Seconds(), buckets, h.Plugin, h.Verb, string(h.Result))
}

// Names returns the names of all metrics, sorted.
func Names() []string { return slices.Sorted(maps.Keys(descs)) }
