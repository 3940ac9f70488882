//go:build ignore
/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * No programs. Names every struct and enum that Go needs, so that bpf2go writes each of them once
 * (pkg/bpfgen).
 */
#include "lib/base/compiler.h"
#include "lib/base/config_types.h"
#include "lib/base/lpm.h"
#include "lib/base/tuple.h"
#include "lib/conntrack/conntrack_types.h"
#include "lib/drop/drop_event_types.h"
#include "lib/drop/drop_reasons.h"
#include "lib/edt/edt_types.h"
#include "lib/endpoint/endpoint_types.h"
#include "lib/endpoint/podns_device_types.h"
#include "lib/hostport/hostport_types.h"
#include "lib/policy/network_policy_types.h"
#include "lib/policy/policy_types.h"
#include "lib/socklb/socklb_types.h"

struct sl_tuple *t_tuple __attribute__((unused));
struct sl_ct_entry *t_ct_entry __attribute__((unused));
struct sl_addr *t_addr __attribute__((unused));
struct sl_endpoint *t_endpoint __attribute__((unused));
struct sl_endpoint_stats *t_endpoint_stats __attribute__((unused));
struct sl_pod_mac *t_pod_mac __attribute__((unused));
struct sl_tunnel_port *t_tunnel_port __attribute__((unused));
struct sl_uplink *t_uplink __attribute__((unused));
enum sl_bare *t_bare __attribute__((unused));
struct sl_cidr *t_cidr __attribute__((unused));
struct sl_policy *t_policy __attribute__((unused));
struct sl_rule *t_rule __attribute__((unused));
struct sl_dev_policy *t_dev_policy __attribute__((unused));
struct sl_np_segment *t_np_segment __attribute__((unused));
struct sl_np_addr *t_np_addr __attribute__((unused));
struct sl_np_peer *t_np_peer __attribute__((unused));
struct sl_np_cidr *t_np_cidr __attribute__((unused));
struct sl_np_chunk *t_np_chunk __attribute__((unused));
struct sl_np_bits *t_np_bits __attribute__((unused));
struct sl_np_set *t_np_set __attribute__((unused));
struct sl_np_policy *t_np_policy __attribute__((unused));
struct sl_np_pod *t_np_pod __attribute__((unused));
struct sl_np_device *t_np_device __attribute__((unused));
enum sl_rule_flag *t_rule_flag __attribute__((unused));
enum sl_policy_flag *t_policy_flag __attribute__((unused));
struct sl_podns_device *t_podns_device __attribute__((unused));
struct sl_parent_key *t_parent_key __attribute__((unused));
struct sl_parent_pod *t_parent_pod __attribute__((unused));
enum sl_parent_kind *t_parent_kind __attribute__((unused));
enum sl_parent_flag *t_parent_flag __attribute__((unused));
struct sl_hostport_key *t_hostport_key __attribute__((unused));
struct sl_hostport *t_hostport __attribute__((unused));
struct sl_allowed_source *t_allowed_source __attribute__((unused));
struct sl_socklb_key *t_socklb_key __attribute__((unused));
struct sl_socklb_entry *t_socklb_entry __attribute__((unused));
struct sl_edt_limit *t_edt_limit __attribute__((unused));
struct sl_edt_cidr *t_edt_cidr __attribute__((unused));
enum sl_edt_flag *t_edt_flag __attribute__((unused));
enum sl_ct_flag *t_ct_flag __attribute__((unused));
enum sl_ct_side *t_ct_side __attribute__((unused));
enum sl_endpoint_flag *t_endpoint_flag __attribute__((unused));
enum sl_hostport_flag *t_hostport_flag __attribute__((unused));
struct sl_event *t_event __attribute__((unused));
struct sl_event_lease *t_event_lease __attribute__((unused));
struct sl_event_state *t_event_state __attribute__((unused));
struct sl_drop_key *t_drop_key __attribute__((unused));
enum sl_program *t_program __attribute__((unused));
enum sl_drop_reason *t_drop_reason __attribute__((unused));
enum sl_drop_direction *t_drop_direction __attribute__((unused));
enum sl_ct_count *t_ct_count __attribute__((unused));
enum sl_fast_path *t_fast_path __attribute__((unused));
