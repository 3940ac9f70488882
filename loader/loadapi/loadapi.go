// SPDX-License-Identifier: Apache-2.0

// Package loadapi is the interface between package loader and the code that has the compiled objects and an eBPF library. That code
// asks the kernel what it can do, verifies programs and pins them: once per boot, build or configuration. Plugins must not link it,
// because the library costs start-up time. So the implementation is usually another process (Subprocess). A process that has the
// objects uses ebpfload.InProcess.
package loadapi

import (
	"context"
	"errors"
	"fmt"
	"os"
)

var (
	// ErrOtherRelease says that two of our programs are not of one release. While files are replaced that passes.
	ErrOtherRelease = errors.New("install both of one release")
	// ErrRefused is the kernel's word on a program, not a mishap on the way.
	ErrRefused = errors.New("the kernel refuses a program")
	// ErrIncompatible says that the pinned maps have another layout than this build's programs need.
	ErrIncompatible = errors.New("pinned maps are of another layout")
)

// Loader does this work in the network and mount namespaces of the calling thread.
type Loader interface {
	// Probe asks the kernel every question there is.
	Probe(ctx context.Context) ([]ProbeResult, error)
	// NetnsCookie asks a program for the cookie of the network namespace, on kernels that tell programs and not processes
	// (before 5.14). The calling process must be below cgroup, a directory of cgroup v2.
	NetnsCookie(ctx context.Context, cgroup string) (uint64, error)
	// Pin verifies programs and pins them.
	Pin(ctx context.Context, o LoadRequest) (LoadResult, error)
}

// Names of the questions.
const (
	SchedCLS      = "tc programs"
	LRU           = "LRU hash maps"
	RedirectPeer  = "redirect_peer"
	RedirectNeigh = "redirect_neigh"
	TCX           = "tcx links"
	Clsact        = "clsact"
	FIBSrc        = "fib lookup source address"
	Coarse        = "clock of the last tick"
	SkNetns       = "namespace of a packet's socket"
	Netkit        = "netkit"
	Batch         = "batch map operations"
	Serial        = "one packet at a time on a CPU"
)

// ProbeResult is what the kernel says to a question: yes, or what is set of the other two.
type ProbeResult struct {
	Name    string `json:"name"`
	No      string `json:"no,omitempty"`      // what it lacks
	Unclear string `json:"unclear,omitempty"` // why it could not be asked
}

// LoadRequest says what to verify and where to pin it.
type LoadRequest struct {
	Build   string   `json:"build"`   // of the objects: of another one nothing may be pinned
	Objects []string `json:"objects"` // by their program, or SockLB
	Dir     string   `json:"dir"`     // for the programs; it is there
	Maps    string   `json:"maps"`    // directory of the pinned maps; those that are missing are made

	Sizes     map[string]uint32 `json:"sizes"` // entries of maps that are made, where it is not the object's
	Constants Constants         `json:"constants"`

	// Lock is held until the work is done, even if the caller is killed before.
	Lock *os.File `json:"-"`
}

// SockLB names the one object that has several programs, and that a node can do without.
const SockLB = "sl_socklb"

// Constants are compiled into the programs: cfg_* in bpf/lib/base/config.h.
type Constants struct {
	FastPath    uint32       `json:"fastPath"`
	Relearn     uint32       `json:"relearn"` // in units of 2^20 ns
	TCPLiberal  bool         `json:"tcpLiberal"`
	AntiSpoof   bool         `json:"antiSpoof"`
	AdmitMark   uint32       `json:"admitMark"`
	FIBSrc      bool         `json:"fibSrc"`
	Coarse      bool         `json:"coarse"`
	SkNetns     bool         `json:"skNetns"`
	Netkit      bool         `json:"netkit"`
	NetnsCookie uint64       `json:"netnsCookie"`
	SNAT        [2][2]uint16 `json:"snat"` // ranges of ports, first and last
	SNATSecret  uint32       `json:"snatSecret"`
	CBCookie    [2]uint32    `json:"cbCookie"`
}

// lruCache is how many free entries each CPU may keep to itself, and how many an LRU map frees at once (LOCAL_FREE_TARGET,
// kernel/bpf/bpf_lru_list.c).
const lruCache = 128

// ConntrackPlaces is how many entries of sl_ct may be in use so that the kernel evicts none, in a map of that many entries on a
// machine of that many CPUs. On a machine with very many CPUs for the map it is half of them: the kernel may evict some.
func ConntrackPlaces(entries uint32, cpus int) uint32 {
	kept := uint32(min(cpus+1, 1<<20) * lruCache)
	if kept > entries/2 {
		return entries / 2
	}
	return entries - kept
}

// PendingPlaces is how many unassured connections may be in use so that the kernel evicts none, in a table of that many entries on a
// machine of that many CPUs: each may have two entries.
func PendingPlaces(entries uint32, cpus int) uint32 { return ConntrackPlaces(entries, cpus) / 2 }

// LoadResult is what came of a LoadRequest.
type LoadResult struct {
	// NoSockLB is why the programs of SockLB are not there; empty when they are, or were not asked for.
	NoSockLB string `json:"markNoSockLB,omitempty"`
	// NoTranslations is why the programs cannot read what netfilter translates; empty when they can.
	NoTranslations string `json:"noTranslations,omitempty"`
}

// UnsupportedError is the definite no to a question, with what was found.
type UnsupportedError struct{ Why string }

// Error implements error.
func (e UnsupportedError) Error() string { return e.Why }

// No returns an UnsupportedError.
func No(format string, a ...any) error { return UnsupportedError{fmt.Sprintf(format, a...)} }
