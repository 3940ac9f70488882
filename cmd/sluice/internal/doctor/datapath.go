// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/orphans"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// checkDatapath says whether the programs are loaded, and if not, whether they
// should be.
func checkDatapath(f *Facts) []Finding {
	const name = "datapath"
	switch b := f.Config.Backend; {
	case f.Status != nil:
		return []Finding{{name, OK, fmt.Sprintf("eBPF is loaded (build %s), %d pods", f.Status.Build, len(f.Status.Endpoints)), ""}}
	case f.Decision != nil && f.Decision.Backend == "none":
		n := Finding{name, Warning, "eBPF was refused on this node: " + f.Decision.Reason + "; netfilter does the work", "see the lines on the kernel above"}
		if b == nodeconf.BackendEBPF {
			n.Level, n.Text = Problem, "eBPF was refused on this node: "+f.Decision.Reason
		}
		return []Finding{n}
	case backedBy(f.Records, "ebpf") > 0:
		return []Finding{{name, Problem, fmt.Sprintf("nothing is loaded, but %s use it: their published ports, masquerading and admission do not work", count(backedBy(f.Records, "ebpf"), "attachment")),
			"delete and add these pods again; the first ADD loads the programs"}}
	case b == nodeconf.BackendNFTables || b == nodeconf.BackendIPTables:
		return []Finding{{name, OK, "nothing is loaded: the configuration asks for " + string(b), ""}}
	}
	return []Finding{{name, OK, "nothing is loaded yet: the first ADD does that", ""}}
}

// checkOwners names a directory of pins, or of the node's state, that another
// user can change: the plugins refuse it.
func checkOwners(f *Facts) []Finding {
	if f.Owners == nil {
		return nil
	}
	return []Finding{{"owners", Problem, "no pod can be added: " + f.Owners.Error(), "do what the line says, as root"}}
}

// checkMounts names mount namespaces with pins that this one does not see, as of
// a runtime in a container.
func checkMounts(f *Facts) []Finding {
	var out []Finding
	for _, p := range f.Places {
		if p.PID != 0 {
			out = append(out, Finding{"mounts", Warning,
				fmt.Sprintf("a datapath of this network namespace is pinned at %s, in the mount namespace of process %d; this command looks at %s", p.Path, p.PID, f.Places[0].Path),
				"share the node's bpffs with that process, or run this command in its mount namespace: nsenter -m -t " + strconv.Itoa(p.PID)})
		}
	}
	return out
}

// checkPrograms looks for programs that are missing on a device, or of another
// build than the one that is loaded.
func checkPrograms(f *Facts) []Finding {
	if f.Status == nil {
		return nil
	}
	var out []Finding
	all := 0
	for _, d := range f.Status.Devices {
		if d.Name == "" { // gone with its pod: what is left of that is another check's
			continue
		}
		for _, p := range d.Programs {
			all++
			what := fmt.Sprintf("%s %s has no program %s at its %s: ", d.Role, d.Name, p.Name, p.Hook)
			switch {
			case p.OK:
			case p.ID != 0:
				out = append(out, Finding{"programs", Warning, strings.Replace(what, "has no", "has an older", 1) + "an upgrade was interrupted", "add a pod: the next ADD puts one set of programs on every device"})
			case d.Role == "uplink":
				out = append(out, Finding{"programs", Problem, what + "published ports and masquerading do not work there", "sluice resync"})
			default:
				out = append(out, Finding{"programs", Problem, what + "its traffic is neither checked nor translated", "delete and add the pod again"})
			}
		}
	}
	if len(out) == 0 && all > 0 {
		out = []Finding{{"programs", OK, fmt.Sprintf("%s attached where they should be", count(all, "program")), ""}}
	}
	return out
}

// checkUplinks names devices that carry traffic out and have no programs.
func checkUplinks(f *Facts) []Finding {
	if f.Status == nil {
		return nil
	}
	var out []Finding
	for _, s := range f.Status.Skipped {
		n := Finding{"uplinks", Warning, fmt.Sprintf("%s is no uplink (%s): published ports and masquerading do not work by it", s.Name, s.Why), "publish and route by another device"}
		if strings.Contains(s.Why, "does not exist") {
			n.Do = "correct \"uplinks\" in " + nodeconf.DefaultPath
		}
		out = append(out, n)
	}
	out = append(out, unseen(f)...)
	uplinks := 0
	for _, d := range f.Status.Devices {
		if d.Role == "uplink" {
			uplinks++
		}
	}
	if uplinks == 0 {
		out = append(out, Finding{"uplinks", Warning, "no device is an uplink: nothing from outside reaches a pod", "give a device an address and a route, or set \"uplinks\" in " + nodeconf.DefaultPath + ", then sluice resync"})
	}
	return out
}

// unseen names what has changed on the node since the last verb looked at it: nothing watches between two verbs.
func unseen(f *Facts) []Finding {
	level := Info // without pods nothing is missing yet
	if len(f.Status.Endpoints) > 0 {
		level = Problem
	}
	var out []Finding
	for _, u := range f.Status.Unseen {
		name := cmp.Or(u.Name, fmt.Sprintf("ifindex %d", u.Ifindex))
		text := fmt.Sprintf("%s is an uplink that no verb has seen yet: published ports and masquerading do not work by it", name)
		switch {
		case u.Gone:
			text = fmt.Sprintf("%s has left %s, which no verb has seen yet: a pod that asks for it still gets the ports published on this node", u.Addr, name)
		case u.Addr.IsValid():
			text = fmt.Sprintf("%s of %s is an address of the node that no verb has seen yet: published ports do not answer at it", u.Addr, name)
		}
		out = append(out, Finding{"uplinks", level, text, "sluice resync, and the same from what changes devices or addresses while pods run"})
	}
	return out
}

// nearlyFull is the share of a map from which on it is said.
const nearlyFull = 0.9

// checkMaps looks for maps without room.
func checkMaps(f *Facts) []Finding {
	if f.Status == nil {
		return nil
	}
	var out []Finding
	for _, m := range f.Status.Maps {
		if fill, ok := m.Fill(); !ok || fill < nearlyFull {
			continue
		}
		text, what := fmt.Sprintf("the map %s has %d of %d entries: ", m.Name, m.InUse, m.Max), "its size is fixed: take out what is not needed"
		if key := m.SizeKey(); key != "" {
			what = fmt.Sprintf("raise %q in \"mapSizes\" of %s, then sluice unload on a drained node", key, nodeconf.DefaultPath)
		} else if m.Name == "sl_uplinks" {
			what = fmt.Sprintf("its size is fixed: name the devices that carry traffic out in \"uplinks\" of %s", nodeconf.DefaultPath)
		}
		if m.Evicts() {
			out = append(out, Finding{"maps", Warning, text + "idle connections are forgotten early", what})
		} else {
			out = append(out, Finding{"maps", Problem, text + "an ADD will be refused", what})
		}
	}
	return out
}

// checkOthers names what others have attached to the devices that we use, and
// says who sees a packet first.
func checkOthers(f *Facts) []Finding {
	var out []Finding
	for _, h := range f.Hooks {
		ours := -1
		for i, p := range h.Programs {
			if p.Ours {
				ours = i
			}
		}
		for i, p := range h.Programs {
			// What leads to an intermediate device is a limit of the bandwidth plugin, ours or upstream's.
			if p.Ours || orphans.IsIFB(f.Links[p.To]) {
				continue
			}
			out = append(out, otherProgram(f, h, p, i < ours))
		}
	}
	return out
}

// checkQueues names pods with a queue of a third party at the host veth, which the fast path passes by: a limit that is one does
// not hold. Sluice's own bandwidth plugin marks the pods that it limits, and their packets pass the queue.
func checkQueues(f *Facts) []Finding {
	if f.Status == nil || f.Config.FastPath == nodeconf.FastPathOff {
		return nil
	}
	const do = "swap bandwidth for Sluice's, or set \"fastPath\" to \"off\" in " + nodeconf.DefaultPath
	var out []Finding
	for _, e := range f.Status.Endpoints {
		name := cmp.Or(f.Links[e.HostIfindex], fmt.Sprintf("ifindex %d", e.HostIfindex))
		if kind := f.Queues[e.HostIfindex]; kind != "" && !slices.Contains(e.Features, "queue-rx") {
			out = append(out, Finding{"queues", Problem, fmt.Sprintf("%s has a queue (%s) of a third party, and packets to the pod by the fast path do not pass it: what it limits is not limited", name, kind), do})
		}
		if to, ok := f.redirectedTo(e.HostIfindex); ok && !slices.Contains(e.Features, "queue-tx") {
			out = append(out, Finding{"queues", Problem, fmt.Sprintf("what comes from the pod at %s is to go to %s, and packets from the pod by the fast path do not: what that limits is not limited", name, to), do})
		}
	}
	return out
}

// redirectedTo returns the intermediate device that a filter of a third party sends the packets of a host veth to.
func (f *Facts) redirectedTo(index int) (string, bool) {
	for _, h := range f.Hooks {
		for _, p := range h.Programs {
			if h.Ifindex == index && h.Hook == "ingress" && !p.Ours && orphans.IsIFB(f.Links[p.To]) {
				return f.Links[p.To], true
			}
		}
	}
	return "", false
}

func otherProgram(f *Facts, h loader.HookPrograms, p loader.HookedProgram, before bool) Finding {
	what := p.Kind + " filter"
	if p.ID != 0 {
		what = fmt.Sprintf("program #%d", p.ID)
		if p.Name != "" {
			what = fmt.Sprintf("program %s (#%d)", p.Name, p.ID)
		}
	}
	where := fmt.Sprintf("%s, %s: %s of somebody else by %s", cmp.Or(f.Links[h.Ifindex], fmt.Sprintf("ifindex %d", h.Ifindex)), h.Hook, what, p.How)
	see := fmt.Sprintf("bpftool prog show id %d", p.ID)
	if p.ID == 0 {
		see = fmt.Sprintf("tc filter show dev %s %s", f.Links[h.Ifindex], h.Hook)
	}
	const name = "other-programs"
	switch {
	case p.How == "xdp":
		return Finding{name, Info, where + "; it sees packets before everything else and may drop or redirect them", see + " tells more if packets are missing"}
	case before:
		return Finding{name, Warning, where + " runs before ours: what it drops, redirects or accepts for good, ours never sees", see + "; attach it behind ours if published ports or masquerading fail"}
	}
	return Finding{name, Info, where + " runs after ours: it does not see packets of the fast path", "set \"fastPath\" to \"off\" in " + nodeconf.DefaultPath + " if it must see all"}
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
