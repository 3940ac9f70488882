// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// receiver is the kernel's thread that takes packets off a device: threaded NAPI (Linux 5.12). It is on a CPU of its own, so that
// what a packet costs on arrival is neither slowed down by the sender nor mixed with it, and the kernel counts its time in ns.
type receiver struct{ thread int }

// The CPUs of sender and receiver.
const senderCPU, receiverCPU = 0, 1

var errNoReceiver = errors.New("the kernel has made no thread for the device's packets")

// newReceiver makes the device poll from a thread. It must be called in the device's namespaces.
func newReceiver(dev string) (*receiver, error) {
	before, err := pollers(dev)
	if err != nil {
		return nil, err
	}
	for _, set := range [][2]string{{"threaded", "1"}, {"napi_defer_hard_irqs", "1"}, {"gro_flush_timeout", "30000"}} {
		if err := os.WriteFile(filepath.Join("/sys/class/net", dev, set[0]), []byte(set[1]), 0); err != nil {
			return nil, err
		}
	}
	after, err := pollers(dev)
	if err != nil {
		return nil, err
	}
	for thread := range after {
		if !before[thread] {
			// Before all tasks, as packets are that no thread takes.
			first := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
			return &receiver{thread}, errors.Join(pin(thread, receiverCPU), unix.SchedSetAttr(thread, &first, 0))
		}
	}
	return nil, fmt.Errorf("%s: %w", dev, errNoReceiver)
}

// pollers are the threads that poll devices of that name, in any namespace.
func pollers(dev string) (map[int]bool, error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	out := map[int]bool{}
	for _, name := range names {
		comm, err := os.ReadFile(name)
		if err != nil || !strings.HasPrefix(string(comm), "napi/"+dev+"-") {
			continue // another process, or one that has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			return nil, err
		}
		out[pid] = true
	}
	return out, nil
}

// pin keeps a thread on a CPU, 0 being the calling one.
func pin(thread, cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(thread, &set)
}

// busy is the CPU time that the thread has used.
func (r *receiver) busy() (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", r.thread))
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(strings.Fields(string(raw))[0], 10, 64)
	return time.Duration(ns), err
}
