// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// HookedProgram is a program on a device, whosever.
type HookedProgram struct {
	Name string // as the kernel or the filter calls it, may be empty
	ID   uint32 // 0: not a BPF program
	How  string // "tcx", "clsact", "xdp" or "netkit"
	Kind string // of a clsact filter: "bpf", "u32", ...
	Prio int    // of a clsact filter
	To   int    // of a u32 filter that redirects: the device
	Ours bool
}

// HookPrograms is everything that runs at one hook of a device, in the order in which it runs: tcx programs, then clsact filters.
type HookPrograms struct {
	Ifindex  int
	Hook     string // "ingress", "egress", "xdp", or "netkit" for what the pod's end of a netkit pair transmits
	Programs []HookedProgram
}

// Hooks lists what hangs on devices of the calling thread's network namespace. Hooks with nothing are left out, and so are
// devices that do not exist. It changes nothing.
func (d *Datapath) Hooks(indices []int) ([]HookPrograms, error) {
	h, err := rtnl.New()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	var out []HookPrograms
	for _, index := range indices {
		l, err := h.LinkByIndex(index)
		if errors.Is(err, rtnl.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		ours, err := d.pinnedNames(l)
		if err != nil {
			return nil, err
		}
		if l.XDP.Mode != "" {
			out = append(out, HookPrograms{index, hook.HowXDP, []HookedProgram{hookedProgram(l.XDP.ID, hook.HowXDP, ours)}})
		}
		if l.Kind == rtnl.KindNetkit {
			netkit, err := linkPrograms(index, bpfsys.NetkitPeer, hook.HowNetkit, ours)
			if err != nil {
				return nil, err
			}
			if len(netkit) > 0 {
				out = append(out, HookPrograms{index, hook.HowNetkit, netkit})
			}
		}
		for _, hk := range []hook.Hook{hook.FromUplink(), hook.ToUplink()} { // one for each direction
			at := HookPrograms{Ifindex: index, Hook: hk.Direction()}
			tcx, err := linkPrograms(index, hk.TCX(), hook.HowTCX, ours)
			if err != nil {
				return nil, err
			}
			filters, err := allFilters(h, index, hk)
			if err != nil {
				return nil, err
			}
			if at.Programs = append(tcx, filters...); len(at.Programs) > 0 {
				out = append(out, at)
			}
		}
	}
	return out, nil
}

// pinnedNames are the names of our programs on a device by their numbers, as our links say.
func (d *Datapath) pinnedNames(dev rtnl.Link) (map[uint32]string, error) {
	names := make(map[uint32]string)
	all := hook.All()
	if dev.Bare { // its programs have the places of those for Ethernet: the last name counts
		all = append(all, hook.OfL3Uplink()...)
	} else {
		all = append(all, hook.OfUplink(false)...)
	}
	for _, h := range all {
		l, err := bpfsys.OpenLink(d.tree.Paths.LinkPin(dev.Index, h))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("link of %s on device %d: %w", h.Program, dev.Index, err)
		}
		info, err := l.Info()
		if err = errors.Join(err, l.Close()); err != nil {
			return nil, fmt.Errorf("link of %s on device %d: %w", h.Program, dev.Index, err)
		}
		names[info.Program] = h.Program
	}
	return names, nil
}

// hookedProgram asks for the name of a program. One that has gone has none. The kernel answers who has CAP_SYS_ADMIN only, which the agent's
// container has not: there our links tell which programs are ours.
func hookedProgram(id uint32, how string, ours map[uint32]string) HookedProgram {
	p := HookedProgram{ID: id, How: how}
	prog, err := bpfsys.ProgramFromID(id)
	if err != nil {
		p.Name, p.Ours = ours[id]
		return p
	}
	defer prog.Close()
	if info, err := prog.Info(); err == nil {
		p.Name = info.Name
	}
	p.Ours = strings.HasPrefix(p.Name, hook.ProgramPrefix)
	return p
}

// linkPrograms are the programs of links at a place in their order; none on a kernel without such links, nor at the end of a netkit pair
// that is not the primary one.
func linkPrograms(index int, at bpfsys.AttachType, how string, ours map[uint32]string) ([]HookedProgram, error) {
	ids, err := bpfsys.DevicePrograms(index, at)
	switch {
	case errors.Is(err, bpfsys.ErrNotSupported), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EACCES):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list %s programs of device %d: %w", how, index, err)
	}
	var out []HookedProgram
	for _, id := range ids {
		out = append(out, hookedProgram(id, how, ours))
	}
	return out, nil
}

// allFilters are the filters of a direction by priority, of whatever kind.
func allFilters(h *rtnl.Handle, index int, at hook.Hook) ([]HookedProgram, error) {
	filters, err := attach.NoneIfGone(h.Filters(index, at.TCParent()))
	if err != nil {
		return nil, err
	}
	var out []HookedProgram
	for _, f := range filters {
		out = append(out, HookedProgram{How: hook.HowClsact, Kind: f.Kind, Prio: int(f.Priority), To: f.RedirectTo, Ours: hook.IsOurs(f), Name: f.Program, ID: f.ProgramID})
	}
	slices.SortStableFunc(out, func(a, b HookedProgram) int { return cmp.Compare(a.Prio, b.Prio) })
	return out, nil
}
