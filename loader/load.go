// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/pin"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfobj/elf"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
)

// load brings this build of the programs into force: for the first time, or in place of another build. The writers' lock is
// held. Every step can be repeated; the last one that counts is the rename that commits (see DESIGN.md, "Load and upgrade").
func (d *Datapath) load(ctx context.Context, k constants) error {
	raiseMemlock()
	report, err := d.decide(k)
	if err != nil {
		return err
	}
	if err := d.paths.make(); err != nil {
		return err
	}
	drawn := draw()
	drawn.fibSrc, drawn.coarse = report.yes(probeFIBSrc), report.yes(probeCoarse)
	if drawn.netns, err = d.netnsCookie(); err != nil {
		d.log.Warn("name the network namespace for programs", log.Error(err))
	}
	specs, err := d.specs(k, drawn, d.needed())
	if err != nil {
		return err
	}
	maps, err := d.openMaps(specs)
	if err != nil {
		return err
	}
	id := k.build()
	if err := d.loadPrograms(specs, maps, drawn, d.paths.freshDir(id)); err != nil {
		return d.refuse(k, report, err)
	}
	if err := d.fillAtLoad(k); err != nil {
		return err
	}
	if err := d.replaceAttached(ctx, d.paths.freshDir(id)); err != nil {
		return err
	}
	if err := d.paths.writeState(&state{
		Backend: backendEBPF, Reason: report.reason(), Build: id, Attach: d.modes(report), Probes: report, Config: k.status(),
	}); err != nil {
		return fmt.Errorf("write decision: %w", err)
	}
	if err := commit(d.paths.freshDir(id), d.paths.buildDir(id)); err != nil {
		return err
	}
	// A bpffs outlives network namespaces. With each that ends without Unload, as those of "ip netns" do, stay its maps, and
	// its links to the root cgroup, which takes 64.
	if err := d.collectNamespaces(ctx); err != nil {
		d.log.Warn("pins of network namespaces that are gone", log.Error(err))
	}
	d.log.Info("datapath loaded", log.String("build", id), log.String("pins", d.paths.dir), log.String("reason", report.reason()))
	return d.dropOtherBuilds(id)
}

// commit makes the fresh set of programs the one in force. What is left of a set of the same name, some of whose pins somebody
// removed, goes first: a directory cannot be renamed over one that is not empty.
func commit(fresh, committed string) error {
	if err := os.RemoveAll(committed); err != nil {
		return fmt.Errorf("commit programs: %w", err)
	}
	if err := os.Rename(fresh, committed); err != nil {
		return fmt.Errorf("commit programs: %w", err)
	}
	return nil
}

// objects is where programs come from, by the name of their program: those that every load verifies.
func objects() map[string]readObject {
	return map[string]readObject{
		elf.PodEgressProgSlPodEgress:      elf.LoadPodEgress,
		elf.PodIngressProgSlPodIngress:    elf.LoadPodIngress,
		elf.UplinkIngressProgSlUplIngress: elf.LoadUplinkIngress,
		elf.UplinkEgressProgSlUplEgress:   elf.LoadUplinkEgress,
		elf.EdtProgSlEdt:                  elf.LoadEdt,
		elf.XDPUplinkProgSlXdpUplink:      elf.LoadXDPUplink,
		sockObject:                        elf.LoadCgroupSock,
	}
}

type readObject func() (*ebpf.CollectionSpec, error)

// specs returns the collections of from with constants and map sizes set.
func (d *Datapath) specs(k constants, drawn drawn, from map[string]readObject) (map[string]*ebpf.CollectionSpec, error) {
	sizes, err := mapSizes(d.opts.Config.MapSizes)
	if err != nil {
		return nil, err
	}
	specs := make(map[string]*ebpf.CollectionSpec, len(from))
	for name, read := range from {
		spec, err := read()
		if err != nil {
			return nil, fmt.Errorf("read object of %s: %w", name, err)
		}
		if err := k.apply(spec, drawn); err != nil {
			return nil, fmt.Errorf("configure %s: %w", name, err)
		}
		if err := makeBare(spec, name); err != nil {
			return nil, err
		}
		for m, n := range sizes {
			if s, ok := spec.Maps[m]; ok {
				s.MaxEntries = n
			}
		}
		if p := spec.Programs[hookXDP().program]; p != nil && kernelAtLeast(5, 18) {
			p.Flags |= xdpFrags
		}
		specs[name] = spec
	}
	return specs, nil
}

// makeBare makes of an uplink's collection the one for devices without Ethernet header, if name is that one's program.
func makeBare(spec *ebpf.CollectionSpec, name string) error {
	if !slices.ContainsFunc(bareHooks(), func(h hook) bool { return h.program == name }) {
		return nil
	}
	for old, p := range spec.Programs {
		delete(spec.Programs, old)
		p.Name = name
		spec.Programs[name] = p
	}
	return spec.Variables[elf.UplinkIngressVarCfgL2Len].Set(uint32(0))
}

// openMaps returns the maps that all programs share: those that are pinned already, with all they hold, and new ones for the
// rest. The caller does not close them.
func (d *Datapath) openMaps(specs map[string]*ebpf.CollectionSpec) (map[string]*ebpf.Map, error) {
	shared := make(map[string]*ebpf.Map)
	for _, spec := range specs {
		for name, s := range spec.Maps {
			if s.Pinning != ebpf.PinByName || shared[name] != nil {
				continue
			}
			m, err := d.openOrMake(name, s)
			if err != nil {
				return nil, err
			}
			shared[name] = m
		}
	}
	return shared, nil
}

func (d *Datapath) openOrMake(name string, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := d.pinned(name)
	if err == nil {
		return m, compatible(m, spec)
	}
	if !errors.Is(err, ErrNotLoaded) {
		return nil, err
	}
	spec = spec.Copy()
	spec.Pinning = ebpf.PinNone
	m, err = ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("make map %s: %w", name, err)
	}
	if err := m.Pin(d.paths.mapPin(name)); err != nil {
		return nil, errors.Join(fmt.Errorf("pin map %s: %w", name, err), m.Close())
	}
	d.mu.Lock()
	d.maps[name] = m
	d.mu.Unlock()
	return m, nil
}

// compatible compares what decides about memory: a program that sees another layout than its writer would read garbage. Sizes
// may differ: the pinned map keeps its own until the next boot.
func compatible(m *ebpf.Map, spec *ebpf.MapSpec) error {
	if m.Type() == spec.Type && m.KeySize() == spec.KeySize && m.ValueSize() == spec.ValueSize && m.Flags() == spec.Flags {
		return nil
	}
	return fmt.Errorf("%w: map %s is %s with keys of %d and values of %d bytes, flags %#x; this build needs %s with %d and %d, flags %#x: remove it with \"sluice unload\" or by a reboot",
		ErrIncompatible, spec.Name, m.Type(), m.KeySize(), m.ValueSize(), m.Flags(), spec.Type, spec.KeySize, spec.ValueSize, spec.Flags)
}

// loadPrograms verifies the programs and pins the set in fresh, beside the one in force.
func (d *Datapath) loadPrograms(specs map[string]*ebpf.CollectionSpec, maps map[string]*ebpf.Map, drawn drawn, fresh string) (err error) {
	if err := os.RemoveAll(fresh); err != nil {
		return fmt.Errorf("remove programs of an interrupted load: %w", err)
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return fmt.Errorf("make directory of programs: %w", err)
	}
	if err := os.Symlink(drawn.String(), filepath.Join(fresh, drawnMark)); err != nil {
		return fmt.Errorf("note constants: %w", err)
	}
	for name, v := range verifyAll(specs, maps) {
		if v.err == nil {
			v.err = v.pin(fresh)
		}
		if v.err != nil && name == sockObject {
			d.log.Warn("the node's own processes will not reach host ports", log.Error(v.err))
			v.err = noSockets(fresh)
		}
		err = errors.Join(err, v.err)
	}
	return err
}

// verified is a collection that the kernel has accepted, or its refusal.
type verified struct {
	*ebpf.Collection
	err error
}

// verifyAll loads collections at the same time, for nearly all of it is the verifier's work in the kernel, which takes no lock
// there. Pinning is left to the caller: these goroutines run on any thread, and a path means something by the thread's mount
// namespace.
func verifyAll(specs map[string]*ebpf.CollectionSpec, maps map[string]*ebpf.Map) map[string]*verified {
	cache := btf.NewCache() // shared: decoding the kernel's types is the slow part beside
	out := make(map[string]*verified, len(specs))
	var group sync.WaitGroup
	for name, spec := range specs {
		v := new(verified)
		out[name] = v
		group.Go(func() { v.Collection, v.err = verify(name, spec, maps, cache) })
	}
	group.Wait()
	return out
}

// sockObject names the one object that has several programs, and that a node can do without.
const sockObject = "sl_cgroup_sock"

// noSockets replaces what there is of the programs for sockets in dir by a mark.
func noSockets(dir string) error {
	for _, h := range sockHooks() {
		if err := removeIfThere(filepath.Join(dir, h.program)); err != nil {
			return err
		}
	}
	return os.Mkdir(filepath.Join(dir, noSockDir), 0o700)
}

func verify(name string, spec *ebpf.CollectionSpec, maps map[string]*ebpf.Map, cache *btf.Cache) (*ebpf.Collection, error) {
	replace := make(map[string]*ebpf.Map)
	for m, s := range spec.Maps {
		if s.Pinning != ebpf.PinByName {
			continue
		}
		s.Pinning = ebpf.PinNone
		s.MaxEntries = maps[m].MaxEntries()
		replace[m] = maps[m]
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replace, Cache: cache})
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", name, err)
	}
	return coll, nil
}

// pin leaves the programs in dir.
func (v *verified) pin(dir string) error {
	defer v.Close()
	for name, prog := range v.Programs {
		if err := prog.Pin(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("pin %s: %w", name, err)
		}
	}
	return nil
}

// fillAtLoad writes what comes from the configuration and so changes only with it.
func (d *Datapath) fillAtLoad(k constants) error {
	m, err := d.pinned(mapNoMasq)
	if err != nil {
		return err
	}
	if err := endpoint.NewNoMasq(m).Replace(k.noMasq); err != nil {
		return fmt.Errorf("write nonMasqueradeCIDRs: %w", err)
	}
	return removeIfThere(d.paths.reserved) // the map may be new: what it holds is not known
}

// refuse turns the kernel's refusal to load into the decision that eBPF cannot run here, with the reason.
func (d *Datapath) refuse(k constants, report probes, cause error) error {
	if !refusal(cause) {
		return cause
	}
	report = append(report, Probe{Name: probeLoad, Answer: AnswerNo, Reason: cause.Error(), Consequence: noDatapath, Required: true})
	err := fmt.Errorf("the kernel refuses a program: %w", cause)
	werr := d.paths.writeState(&state{Backend: backendNone, Reason: err.Error(), Asked: d.asked(k), Probes: report})
	return errors.Join(fmt.Errorf("%w: %w", ErrUnavailable, err), werr)
}

// refusal reports whether err is the kernel's word on a program, not a mishap on the way.
func refusal(err error) bool {
	var verifier *ebpf.VerifierError
	return errors.As(err, &verifier) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.E2BIG)
}

// dropOtherBuilds removes the programs that nothing uses any more.
func (d *Datapath) dropOtherBuilds(id string) error {
	entries, err := names(d.paths.progs())
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e != buildPrefix+id {
			errs = append(errs, os.RemoveAll(d.paths.progs()+"/"+e))
		}
	}
	return errors.Join(errs...)
}

// committedDir returns where the programs in force are pinned.
func (d *Datapath) committedDir() (string, error) {
	id, ok := d.paths.committed()
	if !ok {
		return "", fmt.Errorf("%w: no programs at %s", ErrNotLoaded, d.paths.progs())
	}
	return d.paths.buildDir(id), nil
}

// programAt opens a pinned program. The caller must Close it. (ebpf.LoadPinnedProgram would also find out whether this kernel
// has names for programs, for which it reads the whole mount table: longer by the day a node has many pods.)
func programAt(dir, name string) (*ebpf.Program, error) {
	object, err := pin.Load(filepath.Join(dir, name), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: no program %s", ErrNotLoaded, name)
	}
	if err != nil {
		return nil, fmt.Errorf("open program %s: %w", name, err)
	}
	p, ok := object.(*ebpf.Program)
	if !ok {
		return nil, errors.Join(fmt.Errorf("open program %s: the pin is a %T", name, object), object.Close())
	}
	return p, nil
}

// raiseMemlock lifts RLIMIT_MEMLOCK where maps are charged to it (before 5.11). The programs of this process that follow
// inherit it, which is harmless; importing a package that does this at start-up would make every call of a plugin pay.
func raiseMemlock() {
	if kernelAtLeast(5, 11) {
		return
	}
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &unlimited, nil) // without it the load says what is missing
}
