// SPDX-License-Identifier: Apache-2.0

// Package firewall is the chained plugin that admits a pod's traffic on the node,
// by eBPF, netfilter tables or firewalld. It owns the admit feature of its
// attachment's endpoint and the record's section "firewall". Programs, maps and
// devices belong to the loader, rules to pkg/netfilter. It never parses a key and
// ignores it: what no backend can do is an error that names the key (code 2).
//
// How an ADD runs:
//
//	parse        config.go    read and check all keys
//	requested    firewall.go  the addresses of this pod
//	admit        firewall.go  write the record, apply the job, complete the record
//	  prepare    choose.go    which backend admits the pod; prepare the job
//	             ebpf.go      have FORWARD call the admin chain, if one is named
//	  Apply      ebpf.go      the admit feature of the endpoint
//	             tables.go    rules, or a source of firewalld's zone
//
// DEL and GC let the backend remove what the record names (backend.go, del.go).
// Without a record all backends look.
package firewall
