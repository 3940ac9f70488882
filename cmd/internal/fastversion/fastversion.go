// SPDX-License-Identifier: Apache-2.0

// Package fastversion answers CNI_COMMAND=VERSION before the rest of the program is
// initialised. Runtimes ask every plugin for its versions; the answer is a
// constant, while the initialisers of what an ADD needs (netlink, BPF, JSON)
// take about as long as an empty program runs.
//
// It works because Go initialises, of all packages whose imports are ready, the
// one whose path sorts first: this one imports nothing but syscall, so it comes
// before the expensive ones. If that ever changed, the answer would still be
// right, only later; TestStartTime in test/conformance would say so. It owns the list
// of names below, which a test compares with what the plugins say themselves.
//
// For the other verbs it gives Go one processor. A verb is one thing after the
// other; with more processors the runtime wakes threads at every message from
// the kernel that look for work in vain, a tenth to a sixth of an ADD's CPU
// time. A system call that blocks still lets others run. And it makes the stack
// as large as a verb needs it while there is little on it: the runtime doubles
// it by need, and copies it each time with all frames that are there by then.
package fastversion

import (
	"runtime"
	"syscall"
)

// all is the encoding of version.All().
const (
	prefix  = `{"cniVersion":"1.1.0","supportedVersions":[`
	all     = prefix + `"0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}` + "\n"
	from031 = prefix + `"0.3.1","0.4.0","1.0.0","1.1.0"]}` + "\n"
	from04  = prefix + `"0.4.0","1.0.0","1.1.0"]}` + "\n"
)

// stackSize is more than an ADD of an interface plugin uses; what the process never touches
// of it costs nothing.
const stackSize = 24 << 10

func init() { //nolint:gochecknoinits // the purpose of the package, see above
	v, ok := syscall.Getenv("CNI_COMMAND")
	if !ok {
		return
	}
	if v != "VERSION" {
		growStack(len(v))
		runtime.GOMAXPROCS(1)
		return
	}
	if a := Answer(self()); a != "" && write(a) {
		syscall.Exit(0)
	}
}

// growStack has a frame of more than stackSize. Its array is there for that only:
// it is not reached, and so not cleared, for the i that it is called with.
//
//go:noinline
func growStack(i int) byte {
	if i > 0 {
		return 0
	}
	var room [stackSize]byte
	return room[-i]
}

// Answer returns what the plugin prints for VERSION, "" for a name it does not
// know: main then says the right thing.
func Answer(plugin string) string {
	switch plugin {
	case "bridge", "loopback", "host-device", "tap",
		"ptp", "macvlan", "ipvlan", "vlan", "dummy",
		"host-local", "static",
		"tuning", "portmap", "bandwidth", "flannel", "sbr":
		return all
	case "vrf":
		return from031
	case "firewall":
		return from04
	}
	return ""
}

// self returns the plugin's name: the base name of argv[0], or of argv[1] where a starter (pkg/install) began the process.
// Package os, which has the arguments, would bring its own initialisers.
func self() string {
	fd, err := syscall.Open("/proc/self/cmdline", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	var buf [4096]byte
	n, err := syscall.Read(fd, buf[:])
	syscall.Close(fd)
	if err != nil || n <= 0 {
		return ""
	}
	name, rest := firstBase(buf[:n])
	if name == program {
		name, _ = firstBase(rest)
	}
	return name
}

// program is the name of the program that starters name as their interpreter; pkg/install has it too, and a test compares.
const program = "sluice-cni"

// firstBase returns the base name of the first argument in a process' command line, and the arguments behind it.
func firstBase(cmdline []byte) (base string, rest []byte) {
	start, end := 0, 0
	for ; end < len(cmdline) && cmdline[end] != 0; end++ {
		if cmdline[end] == '/' {
			start = end + 1
		}
	}
	return string(cmdline[start:end]), cmdline[min(end+1, len(cmdline)):]
}

// write reports whether the runtime has its answer: false only when nothing of
// it was written, so that main may try again.
func write(s string) bool {
	for b := []byte(s); len(b) > 0; {
		n, err := syscall.Write(1, b)
		if err == syscall.EINTR { // a bare errno; package errors is not needed
			continue
		}
		if err != nil {
			return len(b) < len(s)
		}
		b = b[n:]
	}
	return true
}
