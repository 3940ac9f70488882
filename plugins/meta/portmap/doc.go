// SPDX-License-Identifier: Apache-2.0

// Package portmap is the chained plugin that publishes ports of a pod on the node
// (the portMappings capability), by eBPF or by netfilter tables. It owns the
// hostPort entries of its attachment, the publish feature of the attachment's
// endpoint and the record's section "portmap". Programs and maps belong to the
// loader, rules to pkg/netfilter. It never parses a key and ignores it: what no
// backend can do is an error that names the key (code 2).
//
// How an ADD runs:
//
//	parse          config.go      read and check all keys, each exactly once
//	request        config.go      the ports of this pod, with its addresses
//	assign         assign.go      which backend publishes which port; prepare the jobs
//	publish        portmap.go     write the record, apply the jobs, complete the record
//	  Apply        ebpf.go        endpoint and hostPort entries
//	               tables.go      rules, route_localnet
//
// DEL and GC take the ports out that the record names (record.go), by the backend
// that the record names for each. Without a record all backends look. CHECK splits
// the request as the record says, and each backend compares its part.
package portmap
