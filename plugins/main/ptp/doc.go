// SPDX-License-Identifier: Apache-2.0

// Package ptp is the main plugin that connects a pod with the node by a veth pair
// and nothing else: the node routes to each pod's address, and is its gateway. It
// owns the pair, the gateway address and the route on the host veth, and the
// record's section "ptp", by which DEL and GC work alone. It must not open the
// datapath without ipMasq.
//
// How an ADD runs (add.go; a failed step rolls back all steps before it):
//
//	parse          ptp.go   read and check the configuration
//	prepare        add.go   open both namespaces, refuse what cannot work
//	begin          add.go   write the intent into the attachment record
//	makeVeth       add.go   make the pair
//	allocate       add.go   ask the IPAM plugin, plan addresses and routes (net.go)
//	configureHost  net.go   gateway address and routes of the host veth, forwarding
//	configurePod   net.go   addresses and routes of the pod
//	masqueradePod  add.go   hand the pod to internal/masquerade, with ipMasq
//	waitUp         add.go   wait until the host veth carries frames
//	serveClient    add.go   without ipMasq, let the pod use hostPorts of the node
//	complete       add.go   complete the record, make the result
package ptp
