// SPDX-License-Identifier: Apache-2.0

// Package pools counts the addresses that pods of this node have, by the pool that they are from: a network's directory of host-local,
// and the node's files of sluice-ipam.
//
// "sluice metrics" uses it. It reads the files without their locks, so a number may be one older. It must not talk to a store.
package pools

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/ipalloc"
)

// The plugins whose pools are known.
const (
	HostLocal = "host-local"
	Cluster   = "sluice-ipam"
)

// Pool is what the node has of one pool, for one address family.
type Pool struct {
	Plugin string
	Name   string // the network of host-local, the pool of sluice-ipam
	Family string // "ipv4" or "ipv6"
	Used   uint64 // addresses that pods have, or that are kept for their owners
	Size   uint64 // addresses of host-local's ranges; 0: no configuration of the node has them
	Claims uint64 // addresses of sluice-ipam that the node has claimed
	Scarce bool   // of sluice-ipam: at the last look the pool had few free addresses
}

// Places are where the files are.
type Places struct {
	Networks string // of host-local
	Cluster  string // of sluice-ipam
	Confs    string // network configurations, which have the ranges of host-local
}

// DefaultPlaces are those of the plugins and of the runtimes.
func DefaultPlaces() Places {
	return Places{Networks: "/var/lib/cni/networks", Cluster: "/var/lib/cni/sluice-ipam", Confs: "/etc/cni/net.d"}
}

// Most is how many pools Read returns at most: those with the most addresses in use.
const Most = 100

type key struct{ plugin, name, family string }

type found map[key]*Pool

func (f found) at(plugin, name, family string) *Pool {
	k := key{plugin, strings.ToValidUTF8(name, "?"), family}
	if f[k] == nil {
		f[k] = &Pool{Plugin: k.plugin, Name: k.name, Family: k.family}
	}
	return f[k]
}

func familyOf(a netip.Addr) string {
	if a.Is4() {
		return "ipv4"
	}
	return "ipv6"
}

// Read returns the pools, sorted. What cannot be read is in the error, and keeps nothing else from being returned.
func Read(p Places) ([]Pool, error) {
	f := found{}
	dirs, err := f.ranges(p)
	err = errors.Join(err, f.reservations(p.Networks, dirs), f.claims(p.Cluster))
	out := make([]Pool, 0, len(f))
	for _, pool := range f {
		out = append(out, *pool)
	}
	slices.SortFunc(out, func(a, b Pool) int {
		return cmp.Or(cmp.Compare(b.Used, a.Used), cmp.Compare(a.Plugin, b.Plugin), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Family, b.Family))
	})
	return out[:min(len(out), Most)], err
}

// rangeConf is what a range has in a configuration of host-local.
type rangeConf struct {
	Subnet     string `json:"subnet"`
	RangeStart string `json:"rangeStart"`
	RangeEnd   string `json:"rangeEnd"`
	Gateway    string `json:"gateway"`
}

type plugin struct {
	IPAM struct {
		Type string `json:"type"`
		rangeConf
		Ranges  [][]rangeConf `json:"ranges"`
		DataDir string        `json:"dataDir"`
	} `json:"ipam"`
}

// ranges sums up what configurations give host-local to allocate from, and returns the directories that they name. The agent and
// operators may change a file at any time: one that is no configuration is left to the runtime to complain about.
func (f found) ranges(p Places) (dirs map[string]string, err error) {
	dirs = map[string]string{}
	entries, err := os.ReadDir(p.Confs)
	if errors.Is(err, fs.ErrNotExist) {
		return dirs, nil
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext != ".conflist" && ext != ".conf" && ext != ".json" {
			continue
		}
		text, rerr := os.ReadFile(filepath.Join(p.Confs, e.Name()))
		if rerr != nil {
			if !errors.Is(rerr, fs.ErrNotExist) {
				err = errors.Join(err, rerr)
			}
			continue
		}
		var list struct {
			Name string `json:"name"`
			plugin
			Plugins []plugin `json:"plugins"`
		}
		if json.Unmarshal(text, &list) != nil || list.Name == "" {
			continue
		}
		for i := range list.Plugins {
			f.addRanges(list.Name, &list.Plugins[i], p, dirs)
		}
		f.addRanges(list.Name, &list.plugin, p, dirs)
	}
	return dirs, err
}

func (f found) addRanges(network string, c *plugin, p Places, dirs map[string]string) {
	if c.IPAM.Type != HostLocal {
		return
	}
	dirs[filepath.Join(cmp.Or(c.IPAM.DataDir, p.Networks), network)] = network
	for _, set := range append(c.IPAM.Ranges, []rangeConf{c.IPAM.rangeConf}) {
		for _, r := range set {
			if complete, ok := r.complete(); ok {
				pool := f.at(HostLocal, network, familyOf(complete.Start))
				pool.Size = add(pool.Size, size(complete))
			}
		}
	}
}

// complete is the range as host-local takes it. One that it refuses has no address to give.
func (r rangeConf) complete() (ipalloc.Range, bool) {
	subnet, err := netip.ParsePrefix(r.Subnet)
	if err != nil {
		return ipalloc.Range{}, false
	}
	out := ipalloc.Range{Subnet: subnet.Masked()}
	for text, to := range map[string]*netip.Addr{r.RangeStart: &out.Start, r.RangeEnd: &out.End, r.Gateway: &out.Gateway} {
		if a, err := netip.ParseAddr(text); err == nil {
			*to = a
		}
	}
	out, err = out.Complete()
	return out, err == nil
}

// size is how many addresses of a range pods can have: none has the gateway. Ranges of more than 2^64 addresses count as that.
func size(r ipalloc.Range) uint64 {
	n := offset(r.End) - offset(r.Start)
	if !samePrefix(r.Start, r.End) {
		return math.MaxUint64
	}
	if !r.Contains(r.Gateway) {
		n = add(n, 1)
	}
	return n
}

// offset is the number in the last 8 bytes of an address.
func offset(a netip.Addr) (n uint64) {
	b := a.As16()
	for _, v := range b[8:] {
		n = n<<8 | uint64(v)
	}
	return n
}

func samePrefix(a, b netip.Addr) bool {
	x, y := a.As16(), b.As16()
	return bytes.Equal(x[:8], y[:8])
}

func add(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

// reservations counts the files of host-local: one for each address, named by it.
func (f found) reservations(root string, dirs map[string]string) error {
	networks, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	for _, n := range networks {
		if n.IsDir() && !strings.HasPrefix(n.Name(), ".") {
			dirs[filepath.Join(root, n.Name())] = n.Name()
		}
	}
	for dir, network := range dirs {
		files, rerr := os.ReadDir(dir)
		if rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		for _, e := range files {
			if a, perr := netip.ParseAddr(e.Name()); perr == nil && a.Zone() == "" && e.Type().IsRegular() {
				f.at(HostLocal, network, familyOf(a)).Used++
			}
		}
	}
	return err
}

// claimed is what a file of plugins/ipam/cluster/blocks says, as far as it is counted here.
type claimed struct {
	Pool   string       `json:"pool"`
	CIDR   netip.Prefix `json:"cidr"`
	Claims []struct {
		Runs [][2]uint64 `json:"runs"`
	} `json:"claims"`
	FreeList []uint64                   `json:"free"`
	Used     map[uint64]json.RawMessage `json:"used"` // of version 1, which has no free list
	Version  int                        `json:"version"`
	Scarce   bool                       `json:"scarce"`
}

// claims counts what the node has of each pool of sluice-ipam. There is a directory for each store.
func (f found) claims(root string) error {
	files, err := filepath.Glob(filepath.Join(root, "*", "*.json"))
	for _, path := range files {
		text, rerr := os.ReadFile(path)
		if errors.Is(rerr, fs.ErrNotExist) {
			continue
		}
		var c claimed
		if rerr == nil {
			rerr = json.Unmarshal(text, &c)
		}
		if rerr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", path, rerr))
			continue
		}
		if c.Pool == "" || !c.CIDR.IsValid() {
			continue
		}
		pool := f.at(Cluster, c.Pool, familyOf(c.CIDR.Addr()))
		have := uint64(0)
		for _, claim := range c.Claims {
			for _, run := range claim.Runs {
				if run[1] >= run[0] {
					have = add(have, add(run[1]-run[0], 1))
				}
			}
		}
		used := have - min(have, uint64(len(c.FreeList)))
		if c.Version == 1 {
			used = uint64(len(c.Used))
		}
		pool.Claims, pool.Used, pool.Scarce = add(pool.Claims, have), add(pool.Used, used), pool.Scarce || c.Scarce
	}
	return err
}
