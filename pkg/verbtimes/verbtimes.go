// SPDX-License-Identifier: Apache-2.0

// Package verbtimes counts how long the verbs of the CNI plugins took, and how they ended.
//
// Each verb is a process of its own, and no daemon runs. So the counters are a file that all of these processes map into their memory:
// one histogram for each plugin, verb and result. A process adds to three counters by atomic instructions. It never waits.
// /run is emptied at boot, so the counters begin at 0 then, as a counter of Prometheus may.
//
// cmd/sluice-cni and cmd/sluice-ipam write, pkg/metrics reads.
package verbtimes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DefaultPath is the file of the node.
const DefaultPath = "/run/sluice/verbs"

// Result is how a verb ended.
type Result string

// The results.
const (
	Success  Result = "success"
	TryAgain Result = "try_again" // CNI error code 11: the runtime may try the same once more
	Failure  Result = "error"
)

// ResultOf is the result for a CNI error code. 0 means that there was no error.
func ResultOf(code uint) Result {
	const tryAgainLater = 11 // section 2 of the specification, "Error"
	switch code {
	case 0:
		return Success
	case tryAgainLater:
		return TryAgain
	default:
		return Failure
	}
}

// other stands for plugins that the table does not have.
const other = "other"

// The tables give each histogram its place in the file. A change of them, or of Bounds, needs another magic.
var (
	plugins = [...]string{
		other, "bandwidth", "bridge", "dhcp", "dummy", "firewall", "flannel", "host-device", "host-local", "ipvlan", "loopback", "macvlan",
		"portmap", "ptp", "sbr", "sluice-ipam", "static", "tap", "tuning", "vlan", "vrf", "whereabouts",
	}
	verbs   = [...]string{"ADD", "DEL", "CHECK", "GC", "STATUS"}
	results = [...]Result{Success, TryAgain, Failure}
	bounds  = [...]time.Duration{
		time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
		100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond, 5 * time.Second,
		10 * time.Second, 30 * time.Second, time.Minute,
	}
)

// Layout of the file: the magic, then the histograms. A histogram is its sum in nanoseconds, then one counter for each bound, and one for
// what took longer than the last. All are uint64 in the byte order of the machine.
const (
	magic    = "SLVERB01"
	word     = 8
	perEntry = 1 + len(bounds) + 1
	entries  = len(plugins) * len(verbs) * len(results)
	fileSize = len(magic) + entries*perEntry*word
)

// Histogram is what is known of one plugin, verb and result.
type Histogram struct {
	Plugin, Verb string
	Result       Result
	Sum          time.Duration
	Counts       []uint64 // by Bounds, not cumulative; the last is for what took longer than all
}

// Count is the number of verbs.
func (h *Histogram) Count() uint64 {
	var n uint64
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// Bounds are the upper bounds of the counters in Histogram.Counts, inclusive.
func Bounds() []time.Duration { return slices.Clone(bounds[:]) }

// Of counts the verbs of a plugin in the file of the node. It suits cniskel.Options.Observe: an error is dropped, because nothing depends
// on counters.
func Of(plugin string) func(verb string, code uint, took time.Duration) {
	return func(verb string, code uint, took time.Duration) {
		_ = Observe(DefaultPath, plugin, verb, ResultOf(code), took)
	}
}

// Observe adds a verb that took d to the file at path, and makes the file if it is missing. An unknown plugin counts as "other", an unknown
// verb is an error.
func Observe(path, plugin, verb string, result Result, d time.Duration) error {
	at, err := place(plugin, verb, result)
	if err != nil {
		return err
	}
	f, err := open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	mem, err := mapped(f)
	if err != nil {
		return fmt.Errorf("map %s: %w", path, err)
	}
	defer unix.Munmap(mem) //nolint:errcheck // the process ends soon
	return guard(path, func() {
		atomic.AddUint64(counter(mem, at), uint64(max(0, d)))
		atomic.AddUint64(counter(mem, at+1+bucket(d)), 1)
	})
}

func mapped(f *os.File) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, fileSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// guard runs f, which uses mapped memory of the file. If a third party has truncated the file, f faults; that is an error.
func guard(path string, f func()) (err error) {
	before := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(before)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: %v", path, p)
		}
	}()
	f()
	return nil
}

func counter(mem []byte, at int) *uint64 {
	return (*uint64)(unsafe.Pointer(&mem[len(magic)+at*word])) // aligned: the mapping is, and so are magic and word
}

func place(plugin, verb string, result Result) (int, error) {
	p := max(0, slices.Index(plugins[:], plugin)) // 0 is other
	v := slices.Index(verbs[:], verb)
	r := slices.Index(results[:], result)
	if v < 0 || r < 0 {
		return 0, fmt.Errorf("no counters for %s %s %s", plugin, verb, result)
	}
	return ((p*len(verbs)+v)*len(results) + r) * perEntry, nil
}

func bucket(d time.Duration) int {
	i, _ := slices.BinarySearch(bounds[:], d)
	return i
}

// open opens the file, and makes it if it is missing or of another layout.
func open(path string) (*os.File, error) {
	for range 2 {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if err == nil {
			if err = check(f); err == nil {
				return f, nil
			}
			_ = f.Close()
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errLayout) {
			return nil, fmt.Errorf("counters of verbs: %w", err)
		}
		if err := create(path); err != nil {
			return nil, fmt.Errorf("counters of verbs: %w", err)
		}
	}
	return nil, fmt.Errorf("counters of verbs: %s: %w", path, errLayout)
}

var errLayout = errors.New("the file has another layout")

func check(f *os.File) error {
	var head [len(magic)]byte
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.Size() != int64(fileSize) {
		return errLayout
	}
	if _, err := f.ReadAt(head[:], 0); err != nil {
		return err
	}
	if string(head[:]) != magic {
		return errLayout
	}
	return nil
}

// create puts an empty file at path by one rename. Of two processes that do so at a time, one loses what it then counts.
// The blocks are allocated now: a write to a mapped page that the file system has no room for would end the process.
func create(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".verbs-*") // mode 0600
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil { // tells that its process lives
		removeLeft(filepath.Dir(path))
	}
	_, err = f.WriteString(magic)
	if err == nil {
		err = unix.Fallocate(int(f.Fd()), 0, 0, int64(fileSize))
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// removeLeft removes the files that killed processes have left half made: those whose lock is free. A process that has not locked its
// own yet may lose it. Its verb is not counted then.
func removeLeft(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, ".verbs-*")) // the pattern is a valid one
	for _, path := range left {
		f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.Remove(path)
		}
		_ = f.Close()
	}
}

// Read returns the histograms of the file at path that are not empty. Without a file, or with one of another layout, there are none.
func Read(path string) ([]Histogram, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if len(b) != fileSize || string(b[:len(magic)]) != magic {
		return nil, nil
	}
	words := b[len(magic):]
	var out []Histogram
	for _, plugin := range plugins {
		for _, verb := range verbs {
			for _, result := range results {
				h := Histogram{Plugin: plugin, Verb: verb, Result: result, Counts: make([]uint64, len(bounds)+1)}
				h.Sum = time.Duration(binary.NativeEndian.Uint64(words))
				for i := range h.Counts {
					h.Counts[i] = binary.NativeEndian.Uint64(words[(1+i)*word:])
				}
				words = words[perEntry*word:]
				if h.Count() > 0 {
					out = append(out, h)
				}
			}
		}
	}
	return out, nil
}
