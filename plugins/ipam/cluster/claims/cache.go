// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

const (
	// freshFor is how old the cache of a pool may be for a claim that does not read the pool before.
	freshFor = 10 * time.Second
	// aloneFor is for how long a pool counts as one that no other overlaps, after none did. Another node that makes one later enters
	// its claims into this pool too; whereabouts does not.
	aloneFor = 30 * time.Second
	// deadPause is how often a node asks whether others are gone.
	deadPause = 5 * time.Second
)

// cache is what a node has seen of a pool, in a file. It saves requests. What it says of free addresses may be wrong: a claim of one that
// is taken changes nothing. What it says of overlapping pools holds, see docs/adr/0040-cluster-addresses.md. Its users have the lock of
// the pool's claims.
type cache struct {
	path string

	Boot string `json:"boot"` // of the node
	UID  string `json:"uid"`  // of the pool's object, or empty: nothing was seen

	// Range is the object's, as it has it. A claim from the cache asks for it: in another range an offset is another address.
	Range string `json:"range"`

	Seen  time.Time   `json:"seen"`  // when the pool was as below
	Taken [][2]uint64 `json:"taken"` // first and last offset
	Nodes []string    `json:"nodes"` // of pool.Nodes

	Alone time.Time `json:"alone"` // when no pool overlapped, and the pool was there
	// Reserved are offsets that whereabouts had reserved for pods at a time. See pools.reserved.
	Reserved     map[uint64]string `json:"reserved,omitempty"`
	ReservedSeen time.Time         `json:"reservedSeen"`

	LookedForDead time.Time `json:"lookedForDead"`
}

// load reads the file. One that cannot be read, or that is of another boot, is an empty cache.
func (k *cache) load() {
	seen := cache{path: k.path}
	if readJSON(k.path, &seen) && seen.Boot == k.Boot {
		*k = seen
	}
}

// save writes the file. Without it the next claim asks more.
func (k *cache) save() { writeJSON(k.path, k) }

// cachePool notes how a pool is. The caller saves the cache.
func (k *cache) cachePool(obj *pool.Object, taken map[uint64]pool.Entry, now time.Time) {
	if k.UID != obj.UID {
		*k = cache{path: k.path, Boot: k.Boot, UID: obj.UID, LookedForDead: k.LookedForDead}
	}
	k.Range, k.Seen = obj.Range, now
	k.Taken, k.Nodes = blocks.Runs(slices.Collect(maps.Keys(taken))), slices.Sorted(maps.Keys(pool.Nodes(taken)))
}

// view returns the pool as it was seen.
func (k *cache) view() *view {
	v := &view{own: map[uint64]pool.Entry{}, nodes: map[string]bool{}}
	for _, off := range (blocks.Claim{Runs: k.Taken}).Offsets() {
		v.own[off] = pool.Entry{}
	}
	for _, n := range k.Nodes {
		v.nodes[n] = true
	}
	v.elsewhere = k.reserved()
	return v
}

// reserved returns the reservations as entries.
func (k *cache) reserved() map[uint64]pool.Entry {
	out := make(map[uint64]pool.Entry, len(k.Reserved))
	for off, podRef := range k.Reserved {
		out[off] = pool.Entry{PodRef: podRef}
	}
	return out
}

func readJSON(path string, into any) bool {
	text, err := os.ReadFile(path)
	return err == nil && json.Unmarshal(text, into) == nil
}

// writeJSON removes a file that it cannot write: no content is better than an old one.
func writeJSON(path string, content any) {
	text, err := json.Marshal(content)
	if err == nil {
		err = file.Write(path, text, file.Options{})
	}
	if err != nil {
		_ = os.Remove(path)
	}
}
