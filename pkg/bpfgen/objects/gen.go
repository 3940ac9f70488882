// SPDX-License-Identifier: Apache-2.0

// Package objects holds the compiled BPF objects and what bpf2go generates to load them.
// Only this file, mktypes.go, mkbuild.go and the test are written by hand.
//
// Run it as "make generate": the Makefile names the compiler and its flags in
// BPF2GO_CC and BPF2GO_CFLAGS. The compiler runs one directory up, since the objects
// hold the paths of their sources as seen from where it runs: from here they would
// be other objects, of another Build.
package objects

//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -type sl_tuple -type sl_flow -type sl_addr -type sl_endpoint -type sl_endpoint_stats -type sl_uplink -type sl_cidr -type sl_own_device -type sl_policy -type sl_rule -type sl_policed -type sl_rule_flag -type sl_policy_flag -type sl_hostport_key -type sl_hostport -type sl_source -type sl_peer_key -type sl_peer -type sl_edt -type sl_edt_net -type sl_edt_flag -type sl_flow_flag -type sl_endpoint_flag -type sl_hostport_flag -type sl_drop_reason -type sl_event -type sl_event_wish -type sl_event_cpu -type sl_drop_key -type sl_program -type sl_fast_path Types ../../bpf/types.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types PodEgress ../../bpf/tc_pod_egress.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types PodIngress ../../bpf/tc_pod_ingress.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types UplinkIngress ../../bpf/tc_uplink_ingress.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types UplinkEgress ../../bpf/tc_uplink_egress.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types OwnEgress ../../bpf/tc_own_egress.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types OwnIngress ../../bpf/tc_own_ingress.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types CgroupSock ../../bpf/cgroup_sock.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types Edt ../../bpf/tc_edt.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types XDPUplink ../../bpf/xdp_uplink.c
//go:generate go run mktypes.go
//go:generate go run mkbuild.go
