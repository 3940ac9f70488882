// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// probeAdvice says what helps against a probe's no. Where nothing is said, only
// another kernel does.
func probeAdvice(name string) string {
	switch name {
	case "capabilities":
		return "run it as root"
	case "bpffs":
		return "mount -t bpf bpffs /sys/fs/bpf"
	case "host mount namespace":
		return "run the doctor and the plugins on the node itself, not in a container with mounts of its own"
	case "sch_fq":
		return "modprobe sch_fq"
	case "clsact":
		return "modprobe -a sch_ingress cls_bpf"
	case "JIT":
		return "sysctl -w net.core.bpf_jit_enable=1"
	case "one packet at a time on a CPU":
		return "use a kernel without PREEMPT_RT, or one with CONFIG_PREEMPT_RT_NEEDS_BH_LOCK"
	case "lockdown":
		return "boot with lockdown=integrity or none, or set \"backend\" to \"nftables\" or \"iptables\" in " + nodeconf.DefaultPath
	}
	return "use a newer kernel"
}

// harmless are probes whose no costs nothing that anybody would miss.
var harmless = map[string]bool{
	"tcx links": true, "clsact": true, "sch_fq": true, "clock of the last tick": true, "fib lookup source address": true, "batch map operations": true, "netkit": true,
}

// socketNamespace is the probe whose no matters to pods without a host veth that have rules, and to no other pod.
const socketNamespace = "namespace of a packet's socket"

// ruledInside reports whether a pod without a host veth has rules.
func (f *Facts) ruledInside() bool {
	return f.Status != nil && slices.ContainsFunc(f.Status.Endpoints, func(e loader.EndpointStatus) bool {
		return e.Number != 0 && slices.Contains(e.Features, "admit")
	})
}

// checkProbes names every kernel feature with what its lack means. Without one
// that is required the datapath cannot run.
func checkProbes(f *Facts) []Finding {
	var out []Finding
	eBPF := f.Config.Backend == nodeconf.BackendAuto || f.Config.Backend == nodeconf.BackendEBPF
	for _, p := range f.Probes {
		n := Finding{Check: "kernel", Level: OK, Text: p.Name + ": " + string(p.Answer)}
		for _, more := range []string{p.Reason, p.Consequence} {
			if more != "" {
				n.Text += "; " + more
			}
		}
		switch {
		case p.Answer == loader.AnswerYes:
		case p.Answer == loader.AnswerUnclear || (harmless[p.Name] || p.Name == socketNamespace && !f.ruledInside()) && !p.Required:
			n.Level = Info
		case p.Required && f.Config.Backend == nodeconf.BackendEBPF:
			n.Level, n.Do = Problem, probeAdvice(p.Name)
		case eBPF:
			n.Level, n.Do = Warning, probeAdvice(p.Name)
		default: // the operator does not want it anyway
			n.Level = Info
		}
		out = append(out, n)
	}
	return out
}

// VethsForNetkit returns how many pods have veths although their configuration asks for netkit devices, by the reason that their ADDs
// have recorded.
func VethsForNetkit(records []*attachments.Record) map[string]int {
	out := make(map[string]int)
	for _, r := range records {
		for _, section := range r.Plugins {
			var s struct {
				NoNetkit string `json:"noNetkit"`
			}
			if json.Unmarshal(section.Data, &s) == nil && s.NoNetkit != "" {
				out[s.NoNetkit]++
			}
		}
	}
	return out
}

// checkNetkit names pods that did not get the devices that were asked for.
func checkNetkit(f *Facts) []Finding {
	pods := VethsForNetkit(f.Records)
	var out []Finding
	for _, why := range slices.Sorted(maps.Keys(pods)) {
		out = append(out, Finding{"netkit", Warning, fmt.Sprintf("%s asked for netkit devices and got veths: %s", count(pods[why], "attachment"), why),
			"use a kernel with netkit and add the pods again, or take the key out of the network configuration"})
	}
	return out
}

// checkBandwidth looks for what limits rates: fq, else a token bucket and IFB.
func checkBandwidth(f *Facts) []Finding {
	lacks := noFQ(f)
	if lacks && f.Config.Bandwidth == nodeconf.BandwidthEDT {
		return []Finding{{"bandwidth", Problem, "the configuration asks for limits by departure times (\"bandwidthBackend\": \"edt\"), which need sch_fq",
			"modprobe sch_fq, or set \"bandwidthBackend\" to \"auto\" in " + nodeconf.DefaultPath}}
	}
	if f.TBF == nil || !lacks && f.Config.Bandwidth != nodeconf.BandwidthTBF {
		return nil
	}
	n := Finding{"bandwidth", Info, fmt.Sprintf("pods with a limit cannot be added: %v, and there is no sch_fq either", f.TBF), ""}
	if inUse(f.Records, "bandwidth") || f.Config.Bandwidth == nodeconf.BandwidthTBF {
		n.Level, n.Do = Problem, "modprobe -a sch_tbf sch_ingress cls_u32 act_mirred ifb"
	}
	return []Finding{n}
}

func noFQ(f *Facts) bool {
	for _, p := range f.Probes {
		if p.Name == "sch_fq" {
			return p.Answer == loader.AnswerNo
		}
	}
	return false
}

func inUse(records []*attachments.Record, plugin string) bool {
	for _, r := range records {
		if _, ok := r.Plugins[plugin]; ok {
			return true
		}
	}
	return false
}

// checkSockets says whether the node's own processes can reach published ports.
func checkSockets(f *Facts) []Finding {
	const what = "the node's own processes do not reach published ports by 127.0.0.1, ::1 or a node address: "
	switch {
	case f.Config.CgroupRoot == nodeconf.CgroupOff:
		return []Finding{{"cgroup", Info, what + "\"cgroupRoot\" is \"off\" in " + nodeconf.DefaultPath, ""}}
	case f.Cgroup == "":
		return []Finding{{"cgroup", Warning, what + "cgroup v2 is not mounted and cannot be", "use another kernel: this one lacks CONFIG_CGROUPS"}}
	case f.Status == nil || f.Status.Local.Attached || !f.uses("publish"):
		return []Finding{{"cgroup", OK, "cgroup v2 at " + f.Cgroup, ""}}
	}
	return []Finding{{"cgroup", Problem, what + f.Status.Local.Reason, "add the pod with the port again; if that does not help, sluice sysdump has what to report"}}
}
