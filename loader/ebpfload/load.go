// SPDX-License-Identifier: Apache-2.0

// Package ebpfload is the loadapi.Loader of a process that has the compiled objects: it asks the kernel, verifies programs and pins
// them. Nothing else of the loader sees the eBPF library.
package ebpfload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfgen/objects"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

// InProcess is the Loader of this process.
type InProcess struct{}

var _ loadapi.Loader = InProcess{}

// Programs of an uplink without Ethernet header: those of one with it, by another constant and another name.
const (
	l3Ingress = "sl_from_l3dev"
	l3Egress  = "sl_to_l3dev"
)

// Programs of a device with clients on this node, likewise.
const (
	clientIngress = "sl_from_clients"
	clientEgress  = "sl_to_clients"
)

type readObject func() (*ebpf.CollectionSpec, error)

// read is where programs come from, by the names of Order.Objects.
var read = map[string]readObject{
	objects.FromPodProgSlFromPod:         objects.LoadFromPod,
	objects.ToPodProgSlToPod:             objects.LoadToPod,
	objects.FromUplinkProgSlFromUplink:   objects.LoadFromUplink,
	objects.ToUplinkProgSlToUplink:       objects.LoadToUplink,
	l3Ingress:                            objects.LoadFromUplink,
	l3Egress:                             objects.LoadToUplink,
	clientIngress:                        objects.LoadFromUplink,
	clientEgress:                         objects.LoadToUplink,
	objects.NsEgressProgSlNsEgress:       objects.LoadNsEgress,
	objects.NsIngressProgSlNsIngress:     objects.LoadNsIngress,
	objects.EdtProgSlEdt:                 objects.LoadEdt,
	objects.XDPDenylistProgSlXdpDenylist: objects.LoadXDPDenylist,
	objects.MACCheckProgSlMacCheck:       objects.LoadMACCheck,
	objects.ParentProgSlParent:           objects.LoadParent,
	loadapi.SockLB:                       objects.LoadSockLB,
}

// Pin implements loadapi.Loader. Programs that are pinned when it fails stay: the directory is no set of programs before the
// caller says so.
func (InProcess) Pin(_ context.Context, o loadapi.LoadRequest) (loadapi.LoadResult, error) {
	var done loadapi.LoadResult
	if o.Build != bpfgen.Build {
		return done, fmt.Errorf("programs of build %.12s are asked for, and this program has those of %.12s: %w", o.Build, bpfgen.Build, loadapi.ErrOtherRelease)
	}
	raiseMemlock()
	maps := make(shared)
	defer maps.close()
	collections, nf, err := loadAll(o, maps)
	if err != nil {
		return done, err
	}
	done.NoTranslations = nf.noTuples()
	var errs []error
	for name, v := range collections {
		if v.err == nil {
			v.err = v.pin(o.Dir)
		}
		if v.err != nil && name == loadapi.SockLB {
			done.NoSockLB, v.err = v.err.Error(), nil
		}
		errs = append(errs, v.err)
	}
	err = errors.Join(errs...)
	if refusal(err) {
		err = fmt.Errorf("%w: %w", loadapi.ErrRefused, err)
	}
	return done, err
}

// configure reads all objects and sets constants and map sizes.
func configure(o loadapi.LoadRequest) (map[string]*ebpf.CollectionSpec, error) {
	specs := make(map[string]*ebpf.CollectionSpec, len(o.Objects))
	for _, name := range o.Objects {
		spec, err := configureOne(o, name)
		if err != nil {
			return nil, err
		}
		specs[name] = spec
	}
	return specs, nil
}

// configureOne reads the object of that name and sets constants and map sizes.
func configureOne(o loadapi.LoadRequest, name string) (*ebpf.CollectionSpec, error) {
	object, ok := read[name]
	if !ok {
		return nil, fmt.Errorf("there is no program %q", name)
	}
	spec, err := object()
	if err != nil {
		return nil, fmt.Errorf("read object of %s: %w", name, err)
	}
	if err := errors.Join(apply(spec, o.Constants), makeVariant(spec, name)); err != nil {
		return nil, fmt.Errorf("configure %s: %w", name, err)
	}
	for m, n := range o.Sizes {
		if s, ok := spec.Maps[m]; ok {
			s.MaxEntries = n
		}
	}
	if p := spec.Programs[objects.XDPDenylistProgSlXdpDenylist]; p != nil && bpfsys.KernelAtLeast(5, 18) {
		p.Flags |= unix.BPF_F_XDP_HAS_FRAGS // without it drivers refuse a program on devices with a large MTU
	}
	return spec, nil
}

// apply writes the constants into spec. A name that the object does not have is an error, so that C and Go cannot drift apart.
func apply(spec *ebpf.CollectionSpec, c loadapi.Constants) error {
	var errs []error
	set := func(name string, value any) {
		v, ok := spec.Variables[name]
		if !ok {
			errs = append(errs, fmt.Errorf("the object has no constant %s", name))
			return
		}
		errs = append(errs, v.Set(value))
	}
	set(objects.FromPodVarCfgFastPath, c.FastPath)
	set(objects.FromPodVarCfgRelearn, c.Relearn)
	set(objects.FromPodVarCfgAntiSpoof, oneIf(c.AntiSpoof))
	set(objects.FromPodVarCfgAdmitMark, c.AdmitMark)
	set(objects.FromPodVarCfgFibSrc, oneIf(c.FIBSrc))
	set(objects.FromPodVarCfgCoarseClock, oneIf(c.Coarse))
	set(objects.FromPodVarCfgSkNetns, oneIf(c.SkNetns))
	set(objects.FromPodVarCfgNetkit, oneIf(c.Netkit))
	set(objects.FromPodVarCfgNetnsCookie, c.NetnsCookie)
	set(objects.FromPodVarCfgSnatMin1, uint32(c.SNAT[0][0]))
	set(objects.FromPodVarCfgSnatMax1, uint32(c.SNAT[0][1]))
	set(objects.FromPodVarCfgSnatMin2, uint32(c.SNAT[1][0]))
	set(objects.FromPodVarCfgSnatMax2, uint32(c.SNAT[1][1]))
	set(objects.FromPodVarCfgSnatSecret, c.SNATSecret)
	set(objects.FromPodVarCfgTcpLiberal, oneIf(c.TCPLiberal))
	set(objects.FromPodVarCfgCbCookie1, c.CBCookie[0])
	set(objects.FromPodVarCfgCbCookie2, c.CBCookie[1])
	return errors.Join(errs...)
}

func oneIf(b bool) uint32 {
	if b {
		return 1
	}
	return 0
}

// makeVariant makes of an uplink's collection the one for devices without Ethernet header, or for those with clients on this node, if name is
// that one's program.
func makeVariant(spec *ebpf.CollectionSpec, name string) error {
	set := func(variable string, value uint32) error { return spec.Variables[variable].Set(value) }
	var err error
	switch name {
	case l3Ingress, l3Egress:
		err = set(objects.FromUplinkVarCfgL2Len, 0)
	case clientIngress, clientEgress: // never on the fast path: the verifier need not look at it
		err = errors.Join(set(objects.FromUplinkVarCfgClients, 1), set(objects.FromUplinkVarCfgFastPath, uint32(bpfgen.TypesSlFastPathSL_FAST_OFF)))
	default:
		return nil
	}
	for old, p := range spec.Programs {
		delete(spec.Programs, old)
		p.Name = name
		spec.Programs[name] = p
	}
	return err
}

// shared are the maps that programs have in common, by name.
type shared map[string]*ebpf.Map

func (s shared) close() {
	for _, m := range s {
		_ = m.Close()
	}
}

// open adds the maps of spec: those that are pinned in dir already, with all they hold, and new ones for the rest.
func (s shared) open(dir string, spec *ebpf.CollectionSpec) error {
	for name, m := range spec.Maps {
		if m.Pinning != ebpf.PinByName || s[name] != nil {
			continue
		}
		opened, err := openOrMake(filepath.Join(dir, name), m)
		if err != nil {
			return err
		}
		s[name] = opened
	}
	return nil
}

func openOrMake(path string, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err == nil {
		if err := compatible(m, spec); err != nil {
			return nil, errors.Join(err, m.Close())
		}
		return m, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open map %s: %w", spec.Name, err)
	}
	spec = spec.Copy()
	spec.Pinning = ebpf.PinNone
	if m, err = ebpf.NewMap(spec); err != nil {
		return nil, fmt.Errorf("make map %s: %w", spec.Name, err)
	}
	if err := m.Pin(path); err != nil {
		return nil, errors.Join(fmt.Errorf("pin map %s: %w", spec.Name, err), m.Close())
	}
	return m, nil
}

// compatible compares what decides about memory: a program that sees another layout than its writer would read garbage. Sizes
// may differ: the pinned map keeps its own until the next boot.
func compatible(m *ebpf.Map, spec *ebpf.MapSpec) error {
	flags := m.Flags()
	if m.Type() == ebpf.DevMapHash {
		flags &^= unix.BPF_F_RDONLY_PROG // the kernel adds it, and refuses it from a process (dev_map_init_map)
	}
	if m.Type() == spec.Type && m.KeySize() == spec.KeySize && m.ValueSize() == spec.ValueSize && flags == spec.Flags {
		return nil
	}
	return fmt.Errorf("%w: map %s is %s with keys of %d and values of %d bytes, flags %#x; this build needs %s with %d and %d, flags %#x: remove it with \"sluice unload\" or by a reboot",
		loadapi.ErrIncompatible, spec.Name, m.Type(), m.KeySize(), m.ValueSize(), m.Flags(), spec.Type, spec.KeySize, spec.ValueSize, spec.Flags)
}

// size tells the programs how many entries the maps have that they share out. Pinned ones may have another size than was asked for.
func size(spec *ebpf.CollectionSpec, maps shared) error {
	ct, unassured, places := maps["sl_ct"], maps["sl_ct_unassured"], maps["sl_ct_places"]
	if ct == nil || unassured == nil || places == nil {
		return nil // programs that track no connections
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	assured := min(places.MaxEntries(), loadapi.ConntrackPlaces(ct.MaxEntries(), cpus))
	return errors.Join(
		spec.Variables[objects.FromPodVarCfgCtPlaces].Set(assured),
		spec.Variables[objects.FromPodVarCfgCtPending].Set(min(places.MaxEntries()-assured, loadapi.PendingPlaces(unassured.MaxEntries(), cpus))),
		spec.Variables[objects.FromPodVarCfgCtTurnover].Set(unassured.MaxEntries()/turnover),
	)
}

// turnover is the part of sl_ct_unassured whose connections may open within a minute without one of the last four minutes, the
// longest timeout there, being evicted. They have two entries each.
const turnover = 8

// verified is a collection that the kernel has accepted, or its refusal.
type verified struct {
	*ebpf.Collection
	err error
}

// heaviest are the objects that take the verifier longest, the longest first: a tenth of a second of one CPU and less. The others take a
// few milliseconds each. Begun last, one of these would keep one CPU busy alone.
var heaviest = []string{objects.FromUplinkProgSlFromUplink, objects.FromPodProgSlFromPod, objects.ToPodProgSlToPod, objects.ToUplinkProgSlToUplink}

// inOrder returns the names of objects, the heaviest first.
func inOrder(names []string) []string {
	rank := func(name string) int {
		if i := slices.Index(heaviest, name); i >= 0 {
			return i
		}
		return len(heaviest)
	}
	out := slices.Clone(names)
	slices.SortStableFunc(out, func(a, b string) int { return rank(a) - rank(b) })
	return out
}

// configured is an object that has been read.
type configured struct {
	name string
	spec *ebpf.CollectionSpec
	err  error
}

// loadAll reads the objects of o one after the other and has each verified as soon as it is read, all at the same time: nearly all of it
// is the verifier's work in the kernel, which takes no lock there. The maps are opened here, and pinning is left to the caller. The
// other goroutines run on any thread, and a path means something by the thread's mount namespace.
//
// An error is about an object or a map: nothing is loaded then. What the verifier says is in the collections.
func loadAll(o loadapi.LoadRequest, maps shared) (map[string]*verified, nfOffsets, error) {
	specs := make(chan configured)
	go func() {
		defer close(specs)
		for _, name := range inOrder(o.Objects) {
			c := configured{name: name}
			c.spec, c.err = configureOne(o, name)
			specs <- c
		}
	}()
	cache := btf.NewCache()         // shared: decoding the kernel's types is the slow part beside
	nf := findNfOffsets(cache)      // without them the programs take each packet for a tracked one
	csum, _ := findCsumPlace(cache) // and each checksum for made
	out := make(map[string]*verified, len(o.Objects))
	var group sync.WaitGroup
	var failed error
	for c := range specs {
		if failed == nil {
			failed = c.err
		}
		if failed == nil {
			failed = prepare(c, o.Maps, maps, nf, csum)
		}
		if failed != nil {
			continue
		}
		v, replace := new(verified), c.replacements(maps)
		out[c.name] = v
		group.Go(func() { v.Collection, v.err = verify(c, replace, cache) })
	}
	group.Wait()
	if failed == nil {
		return out, nf, nil
	}
	for _, v := range out {
		if v.err == nil {
			v.Close()
		}
	}
	return nil, nf, failed
}

// prepare opens the maps of c and tells its programs their sizes, and where they find what the kernel knows of a packet.
func prepare(c configured, dir string, maps shared, nf nfOffsets, csum csumPlace) error {
	if err := maps.open(dir, c.spec); err != nil {
		return err
	}
	if err := size(c.spec, maps); err != nil {
		return fmt.Errorf("configure %s: %w", c.name, err)
	}
	if err := errors.Join(
		c.spec.Variables[objects.FromPodVarCfgNfctOffset].Set(nf.nfct),
		c.spec.Variables[objects.FromPodVarCfgNfExtOffset].Set(nf.ext),
		c.spec.Variables[objects.FromPodVarCfgNfStatusOffset].Set(nf.status),
		c.spec.Variables[objects.FromPodVarCfgNfTuplesOffset].Set(nf.tuples),
		csum.set(c.spec),
	); err != nil {
		return fmt.Errorf("configure %s: %w", c.name, err)
	}
	return nil
}

// replacements are the maps that the programs of c share with others.
func (c configured) replacements(maps shared) map[string]*ebpf.Map {
	replace := make(map[string]*ebpf.Map)
	for m, s := range c.spec.Maps {
		if s.Pinning != ebpf.PinByName {
			continue
		}
		s.Pinning = ebpf.PinNone
		s.MaxEntries = maps[m].MaxEntries()
		replace[m] = maps[m]
	}
	return replace
}

func verify(c configured, replace map[string]*ebpf.Map, cache *btf.Cache) (*ebpf.Collection, error) {
	coll, err := ebpf.NewCollectionWithOptions(c.spec, ebpf.CollectionOptions{MapReplacements: replace, Cache: cache})
	if err != nil {
		return nil, fmt.Errorf("load %s: %w", c.name, err)
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

// refusal reports whether err is the kernel's word on a program, not a mishap on the way.
func refusal(err error) bool {
	var verifier *ebpf.VerifierError
	return errors.As(err, &verifier) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.E2BIG)
}

// raiseMemlock lifts RLIMIT_MEMLOCK where maps are charged to it (before 5.11). What this process starts inherits it, which is
// harmless; importing a package that does this at start-up would make every process pay.
func raiseMemlock() {
	if bpfsys.KernelAtLeast(5, 11) {
		return
	}
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Prlimit(0, unix.RLIMIT_MEMLOCK, &unlimited, nil) // without it the load says what is missing
}
