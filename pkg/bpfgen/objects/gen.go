// SPDX-License-Identifier: Apache-2.0

// Package objects holds the compiled BPF objects and what bpf2go generates to load them.
// Only this file, mktypes.go, mkbuild.go and the test are written by hand.
//
// Run it as "make generate": the Makefile names the compiler and its flags in
// BPF2GO_CC and BPF2GO_CFLAGS. The compiler runs one directory up, since the objects
// hold the paths of their sources as seen from where it runs: from here they would
// be other objects, of another Build.
package objects

//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -type sl_tuple -type sl_ct_entry -type sl_addr -type sl_endpoint -type sl_endpoint_stats -type sl_pod_mac -type sl_tunnel_port -type sl_uplink -type sl_bare -type sl_cidr -type sl_podns_device -type sl_parent_key -type sl_parent_pod -type sl_parent_kind -type sl_parent_flag -type sl_policy -type sl_rule -type sl_dev_policy -type sl_np_segment -type sl_np_addr -type sl_np_peer -type sl_np_cidr -type sl_np_chunk -type sl_np_bits -type sl_np_set -type sl_np_policy -type sl_np_pod -type sl_np_device -type sl_rule_flag -type sl_policy_flag -type sl_hostport_key -type sl_hostport -type sl_allowed_source -type sl_socklb_key -type sl_socklb_entry -type sl_edt_limit -type sl_edt_cidr -type sl_edt_flag -type sl_ct_flag -type sl_ct_side -type sl_endpoint_flag -type sl_hostport_flag -type sl_drop_reason -type sl_drop_direction -type sl_ct_count -type sl_event -type sl_event_lease -type sl_event_state -type sl_drop_key -type sl_program -type sl_fast_path Types ../../bpf/types.bpf.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types FromPod ../../bpf/from_pod.bpf.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types ToPod ../../bpf/to_pod.bpf.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types FromUplink ../../bpf/from_uplink.bpf.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types ToUplink ../../bpf/to_uplink.bpf.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types NsEgress ../../bpf/podns_egress.bpf.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types NsIngress ../../bpf/podns_ingress.bpf.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types SockLB ../../bpf/socklb.bpf.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types Edt ../../bpf/edt.bpf.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types XDPDenylist ../../bpf/xdp_denylist.bpf.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types MACCheck ../../bpf/mac_check.bpf.c
//go:generate go -C .. tool bpf2go -output-dir objects -target bpfel -no-global-types Parent ../../bpf/parent.bpf.c
//go:generate go run mktypes.go
//go:generate go run mkbuild.go
