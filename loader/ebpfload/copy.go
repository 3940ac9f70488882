// SPDX-License-Identifier: Apache-2.0

package ebpfload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfgen/objects"
)

// Copy is a second instance of the programs with maps of its own, for test packets. The pinned maps are opened for reading
// only, so that no packet of a copy changes them.
type Copy struct {
	request  loadapi.LoadRequest
	maps     shared
	turnover uint32
	cache    *btf.Cache
	loaded   map[string]*ebpf.Collection
}

// Sizes of a copy. Entries that do not fit are left out: those of connections, which do not matter for one packet.
const (
	copiedEntries = 4096    // of the maps that programs write
	copiedEvents  = 1 << 16 // bytes
)

// emptyInCopy are maps that a copy has without their entries: counters, scratch space, and places of connections that are no
// longer new.
var emptyInCopy = []string{"sl_ct_counts", "sl_ct_places", "sl_drop_events", "sl_drop_reasons", "sl_drops_by_dev", "sl_event_lease", "sl_event_state", "sl_frags", "sl_host_udp", "sl_node_ports", "sl_node_sent"}

// connectionMaps have the connections. Of them only entries of some addresses are copied.
var connectionMaps = []string{"sl_ct", "sl_ct_unassured"}

// NewCopy makes a copy. Of the connections it has those with one of addresses at either end, v4-mapped for IPv4. It loads no program
// yet. The caller must Close it. Root, or CAP_BPF and CAP_NET_ADMIN.
func NewCopy(o loadapi.LoadRequest, addresses [][16]byte) (*Copy, error) {
	if o.Build != bpfgen.Build {
		return nil, fmt.Errorf("programs of build %.12s are in force, and this program has those of %.12s: take the tool of that release", o.Build, bpfgen.Build)
	}
	raiseMemlock()
	c := &Copy{request: o, maps: shared{}, cache: btf.NewCache(), loaded: map[string]*ebpf.Collection{}}
	o.Objects = []string{
		objects.FromPodProgSlFromPod, objects.ToPodProgSlToPod, objects.FromUplinkProgSlFromUplink, objects.ToUplinkProgSlToUplink,
		objects.XDPDenylistProgSlXdpDenylist, objects.MACCheckProgSlMacCheck,
	}
	specs, err := configure(o)
	if err != nil {
		return nil, err
	}
	for _, spec := range specs {
		for name, s := range spec.Maps {
			if s.Pinning != ebpf.PinByName || c.maps[name] != nil {
				continue
			}
			if err := c.copyMap(s, addresses); err != nil {
				return nil, errors.Join(fmt.Errorf("copy map %s: %w", name, err), c.Close())
			}
		}
	}
	return c, nil
}

// Close frees programs and maps.
func (c *Copy) Close() error {
	for _, l := range c.loaded {
		l.Close()
	}
	c.maps.close()
	return nil
}

func (c *Copy) copyMap(spec *ebpf.MapSpec, addresses [][16]byte) error {
	pinned, err := ebpf.LoadPinnedMap(filepath.Join(c.request.Maps, spec.Name), &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return err
	}
	defer pinned.Close()
	if err := compatible(pinned, spec); err != nil {
		return err
	}
	if spec.Name == "sl_ct_unassured" {
		c.turnover = pinned.MaxEntries() / turnover
	}
	spec = spec.Copy()
	spec.Pinning, spec.MaxEntries = ebpf.PinNone, copySize(pinned)
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return err
	}
	c.maps[spec.Name] = m
	if slices.Contains(emptyInCopy, spec.Name) {
		return nil
	}
	if slices.Contains(connectionMaps, spec.Name) {
		return copyEntries[[]byte](pinned, m, func(key []byte, value []byte) bool {
			return len(key) >= 32 && slices.ContainsFunc(addresses, func(a [16]byte) bool {
				// struct sl_tuple begins with both addresses, and so does the value, with the tuple on the other side.
				return slices.ContainsFunc([][]byte{key[:16], key[16:32], value[:16], value[16:32]}, func(b []byte) bool { return [16]byte(b) == a })
			})
		})
	}
	if pinned.Type() == ebpf.PerCPUHash { // sl_ep_stats, which also says whose a device is
		return copyEntries[[]bpfgen.TypesSlEndpointStats](pinned, m, nil)
	}
	return copyEntries[[]byte](pinned, m, nil)
}

// copySize is how many entries the copy has room for: as many as the map where the loader writes it, few where programs do.
func copySize(m *ebpf.Map) uint32 {
	switch m.Type() {
	case ebpf.RingBuf:
		return copiedEvents
	case ebpf.LRUHash, ebpf.LRUCPUHash:
		return min(m.MaxEntries(), copiedEntries)
	case ebpf.Array:
		if m.ValueSize() > 8 { // sl_ct_places
			return min(m.MaxEntries(), copiedEntries)
		}
	}
	return m.MaxEntries()
}

// copyEntries copies the entries that keep takes, all with nil. The map may change during that: a copy is as good as a packet's view.
func copyEntries[V []byte | []bpfgen.TypesSlEndpointStats](from, to *ebpf.Map, keep func(key []byte, value V) bool) error {
	var (
		key   []byte
		value V
		room  = to.MaxEntries()
	)
	entries := from.Iterate()
	for room > 0 && entries.Next(&key, &value) {
		if keep != nil && !keep(key, value) {
			continue
		}
		if err := to.Put(key, value); err != nil {
			return err
		}
		room--
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return err
	}
	return nil
}

// program loads the program of that name. Only those on a packet's way are: verifying is nearly all of the time that a copy takes.
func (c *Copy) program(name string) (*ebpf.Program, error) {
	if l := c.loaded[name]; l != nil {
		return l.Programs[name], nil
	}
	o := c.request
	o.Objects = []string{name}
	specs, err := configure(o)
	if err != nil {
		return nil, err
	}
	spec, replace := specs[name], map[string]*ebpf.Map{}
	for m, s := range spec.Maps {
		if s.Pinning != ebpf.PinByName {
			continue
		}
		if c.maps[m] == nil {
			return nil, fmt.Errorf("%s: there is no copy of map %s", name, m)
		}
		s.Pinning, s.MaxEntries, replace[m] = ebpf.PinNone, c.maps[m].MaxEntries(), c.maps[m]
	}
	if err := size(spec, c.maps); err != nil {
		return nil, fmt.Errorf("configure %s: %w", name, err)
	}
	if v := spec.Variables[objects.FromPodVarCfgCtTurnover]; v != nil && c.turnover > 0 {
		if err := v.Set(c.turnover); err != nil {
			return nil, fmt.Errorf("configure %s: %w", name, err)
		}
	}
	l, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replace, Cache: c.cache})
	if err != nil {
		return nil, fmt.Errorf("load a copy of %s: %w", name, err)
	}
	c.loaded[name] = l
	return l.Programs[name], nil
}

// TestPacket is a packet at a hook.
type TestPacket struct {
	Data    []byte // from the link header on; from the IP header on where the device has none
	Ifindex int    // of the device that the program is on
	Ingress int    // of the device that it came in by; 0: none, a process sent it
	Mark    uint32 // skb->mark
}

// TestResult is what a program did with it.
type TestResult struct {
	Verdict int32 // as the program returned it: TC_ACT_* or XDP_*
	Data    []byte
	Mark    uint32
	Reason  uint32 // enum sl_drop_reason, 0: none
	NoIn    bool   // the kernel takes no Ingress: the program saw none
}

// ErrNoTestRun says that the kernel cannot run a program for a test.
var ErrNoTestRun = errors.New("this kernel cannot run programs for a test (BPF_PROG_TEST_RUN)")

// skbContext is the beginning of struct __sk_buff.
type skbContext struct {
	_                [2]uint32
	Mark             uint32
	_                [6]uint32
	Ingress, Ifindex uint32
}

// Of struct __sk_buff as the kernel gives it back: it wants room for all, and grows from release to release.
const (
	contextRoom = 512
	offMark     = 8
)

// Run gives a packet to the program of that name, in the network namespace of the calling thread.
func (c *Copy) Run(name string, p TestPacket) (TestResult, error) {
	prog, err := c.program(name)
	if err != nil {
		return TestResult{}, err
	}
	before, err := c.drops()
	if err != nil {
		return TestResult{}, err
	}
	ctx := skbContext{Mark: p.Mark, Ingress: uint32(p.Ingress), Ifindex: uint32(p.Ifindex)}
	var out [contextRoom]byte
	run := ebpf.RunOptions{Data: p.Data, DataOut: make([]byte, len(p.Data)+256)}
	if prog.Type() != ebpf.XDP { // which would insist on a device that can receive
		run.Context, run.ContextOut = &ctx, &out
	}
	r := TestResult{Mark: p.Mark}
	ret, err := prog.Run(&run)
	if errors.Is(err, unix.EINVAL) && ctx.Ingress != 0 {
		ctx.Ingress, r.NoIn = 0, true
		ret, err = prog.Run(&run)
	}
	if errors.Is(err, ebpf.ErrNotSupported) {
		return r, fmt.Errorf("%s: %w", name, ErrNoTestRun)
	}
	if err != nil {
		return r, fmt.Errorf("run %s: %w", name, err)
	}
	r.Verdict, r.Data = int32(ret), run.DataOut // the return value of a program is signed
	if run.ContextOut != nil {
		r.Mark = binary.NativeEndian.Uint32(out[offMark:])
	}
	after, err := c.drops()
	if err != nil {
		return r, err
	}
	for reason := range after {
		if after[reason] > before[reason] {
			r.Reason = uint32(reason)
		}
	}
	return r, nil
}

// drops are the copy's counters by reason, those of both directions together.
func (c *Copy) drops() ([]uint64, error) {
	m := c.maps["sl_drop_reasons"]
	all := make([]uint64, bpfgen.TypesSlDropDirectionSL_DROP_FROM_PODS)
	for index := range m.MaxEntries() {
		var perCPU []uint64
		if err := m.Lookup(index, &perCPU); err != nil {
			return nil, fmt.Errorf("read drop counters: %w", err)
		}
		for _, n := range perCPU {
			all[index%uint32(bpfgen.TypesSlDropDirectionSL_DROP_FROM_PODS)] += n
		}
	}
	return all, nil
}
