// SPDX-License-Identifier: Apache-2.0

package fuzztest

import (
	"net"
	"regexp"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// What a parser may take for an input of n bytes.
const (
	freeBytes    = 4 << 20
	bytesPerByte = 1000
	freeTime     = time.Second
	timePerByte  = 2 * time.Microsecond
)

// Bounded runs parse and fails when it allocates or works out of proportion to an input of size bytes. It counts the
// processor's time of the calling thread, so a busy machine changes nothing.
func Bounded(t *testing.T, size int, parse func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	bytes, worked := allocated(), cpuTime()
	parse()
	bytes, worked = allocated()-bytes, cpuTime()-worked
	if most := uint64(freeBytes + bytesPerByte*size); bytes > most {
		t.Errorf("%d bytes of input take %d bytes of memory, at most %d", size, bytes, most)
	}
	if most := freeTime + time.Duration(size)*timePerByte; worked > most {
		t.Errorf("%d bytes of input take %s, at most %s", size, worked, most)
	}
}

func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u) // it cannot fail for the own thread
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// maxMessage bounds an error's sentence beyond the input, bytes.
const maxMessage = 4096

// named is a message that names what is wrong: a key of the configuration with its value, a text that is no JSON, a
// key that is missing, or a variable of the environment.
var named = regexp.MustCompile(`^(invalid|unsupported) [A-Za-z][\w.\[\]-]* |^decode (network configuration|[A-Za-z][\w.\[\]-]*)(: |$)|missing key`)

// Refused checks the error for an input of size bytes that a plugin does not take: it has a code for a bad
// configuration, names a key, and is not longer than the input by much. Other sentences that are right for this
// parser are given as beginnings.
func Refused(t *testing.T, err error, size int, right ...string) {
	t.Helper()
	e := cnierr.From(err)
	if !slices.Contains([]uint{cnierr.CodeUnsupported, cnierr.CodeEnvironment, cnierr.CodeDecode, cnierr.CodeConfig}, e.Code) {
		t.Errorf("refused with code %d: %v", e.Code, err)
	}
	begins := func(s string) bool { return strings.HasPrefix(e.Msg, s) }
	if !named.MatchString(e.Msg) && !slices.ContainsFunc(right, begins) {
		t.Errorf("the error names no key: %q (details %q)", e.Msg, e.Details)
	}
	if most := maxMessage + 8*size; len(e.Msg)+len(e.Details) > most { // quoting makes four bytes of one
		t.Errorf("an error of %d bytes for an input of %d", len(e.Msg)+len(e.Details), size)
	}
	if strings.ContainsAny(e.Msg, "\n\x00") {
		t.Errorf("the error has more than one line: %q", e.Msg)
	}
}

// Between checks that an accepted number lies within its limits, or is the value that stands for none.
func Between(t *testing.T, key string, v, least, most int, none ...int) {
	t.Helper()
	if (v < least || v > most) && !slices.Contains(none, v) {
		t.Errorf("accepted %s %d, want %d to %d", key, v, least, most)
	}
}

// UnicastMAC checks that an accepted address is one that an Ethernet interface can have; nil stands for none.
func UnicastMAC(t *testing.T, mac net.HardwareAddr) {
	t.Helper()
	if mac != nil && (len(mac) != 6 || mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00") {
		t.Errorf("accepted the MAC address %s", mac)
	}
}
