// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
)

// mapShape is what two objects must agree about to share a map.
type mapShape struct {
	Type                          ebpf.MapType
	Key, Value, MaxEntries, Flags uint32
	Pinning                       ebpf.PinType
	KeyType, ValueType            string
}

func shapeOf(m *ebpf.MapSpec) mapShape {
	return mapShape{m.Type, m.KeySize, m.ValueSize, m.MaxEntries, m.Flags, m.Pinning, typeText(m.Key), typeText(m.Value)}
}

func typeText(t btf.Type) string {
	if t == nil {
		return ""
	}
	return t.TypeName()
}

// Maps of one name are one map, whichever program is loaded first.
func TestMapSpecs(t *testing.T) {
	seen := map[string]mapShape{}
	for _, part := range append(slices.Clone(parts), sockets, xdp) {
		spec, err := part.load()
		if err != nil {
			t.Fatal(err)
		}
		for name, m := range spec.Maps {
			if strings.HasPrefix(name, ".") { // .rodata: each object's own
				continue
			}
			shape := shapeOf(m)
			if first, ok := seen[name]; ok && first != shape {
				t.Errorf("map %s of %s differs (-first +this):\n%s", name, part.name, cmp.Diff(first, shape))
			}
			seen[name] = shape
			if shape.Pinning != ebpf.PinByName && !slices.Contains([]string{"sl_ct_scratch", "sl_full_scratch", "sl_hpin_scratch", "sl_pkt_scratch", "sl_policy_query", "sl_hp_cache", "sl_ep_cache"}, name) {
				t.Errorf("map %s of %s is not shared", name, part.name)
			}
		}
	}
	if len(seen) < 11 {
		t.Errorf("only %d maps found", len(seen))
	}
}

// The kernel cuts names of programs and maps after 15 characters, and has those of functions from BTF. What carries the prefix is ours.
func TestNames(t *testing.T) {
	check := func(kind, name string) {
		if (len(name) > 15 && kind != "function") || !strings.HasPrefix(name, "sl_") {
			t.Errorf("%s %q: want a name that begins with sl_, of at most 15 characters", kind, name)
		}
	}
	for _, part := range append(slices.Clone(parts), sockets, xdp) {
		spec, err := part.load()
		if err != nil {
			t.Fatal(err)
		}
		if part.name != sockets.name && (len(spec.Programs) != 1 || spec.Programs[part.name] == nil) {
			t.Errorf("%s: want this one program in the object, got %d", part.name, len(spec.Programs))
		}
		for name, p := range spec.Programs {
			check("program", name)
			for i := range p.Instructions {
				if f := btf.FuncMetadata(&p.Instructions[i]); f != nil {
					check("function", f.Name)
				}
			}
		}
		for name := range spec.Maps {
			if !strings.HasPrefix(name, ".") {
				check("map", name)
			}
		}
		for name := range spec.Variables {
			if !strings.HasPrefix(name, "cfg_") {
				t.Errorf("variable %q: want the prefix cfg_", name)
			}
		}
	}
}
