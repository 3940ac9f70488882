// SPDX-License-Identifier: Apache-2.0

// Package bridge is the main plugin that attaches a pod to a Linux bridge with a
// veth pair: addresses from an IPAM plugin, and optionally the bridge as gateway,
// VLANs, a source MAC check and masquerading. It owns the bridge that it makes,
// the veth pair, the gateway addresses and the record's section "bridge", by
// which DEL and GC work alone. It must not load the datapath without ipMasq or macspoofchk.
//
// How an ADD runs (add.go, one step a line; a failed step rolls back all steps
// before it):
//
//	parse         config.go      read and check the configuration
//	prepare       add.go         open both namespaces, refuse what cannot work
//	begin         add.go         write the intent into the attachment record
//	makeBridge    device.go      make the bridge, or check the one that exists
//	makeVeth      device.go      make the pair, host veth on the bridge
//	setPort       device.go      hairpin mode, isolation, VLANs of the port
//	spoofCheck    spoof*.go      eBPF or nftables against foreign source MACs
//	allocate      ipam.go        ask the IPAM plugin for addresses
//	configurePod  pod.go         addresses and routes of the pod
//	gateways      gateway.go     the bridge's own addresses, forwarding
//	masqueradePod add.go         hand the pod to internal/masquerade, with ipMasq
//	waitUp        device.go      wait until the port forwards frames
//	serveClients  add.go         let pods on a new bridge use hostPorts of the node
//	complete      add.go         complete the record, make the result
//
// Masquerading is by eBPF or by netfilter tables, see internal/masquerade. DEL
// and GC (del.go, gc.go) need neither the pod's namespace nor prevResult nor a
// configuration that ADD would accept.
package bridge
