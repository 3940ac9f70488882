// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// receiver is the kernel's thread that takes packets off a device: threaded NAPI (Linux 5.12). It is on a CPU of its own, so that
// what a packet costs on arrival is neither slowed down by the sender nor mixed with it, and the kernel counts its time in ns.
type receiver struct{ thread int }

// The CPUs of sender and receiver.
const senderCPU, receiverCPU = 0, 1

var receiverText = fmt.Sprintf("sender on CPU %d; the uplink's packets are received by a kernel thread on CPU %d (threaded NAPI), whose CPU time is measured",
	senderCPU, receiverCPU)

// sender sends a frame n times from the calling thread's namespace.
type sender interface {
	Send(frame []byte, n int) error
	Close() error
}

// sendFor floods the client's uplink for a while, from the sender's CPU, until all has been taken off it. It returns how long it
// sent, and the CPU time of its thread: that of the kernel's work in it, softirqs too.
func sendFor(client *netlab.Client, s sender, frame []byte, d time.Duration) (took, busy time.Duration, err error) {
	const burst = 1 << 15
	err = client.Do(func() error {
		if err := pin(0, senderCPU); err != nil {
			return err
		}
		before, start := threadTime(), time.Now()
		for took < d {
			if err := s.Send(frame, burst); err != nil {
				return err
			}
			took = time.Since(start)
		}
		busy = threadTime() - before
		time.Sleep(20 * time.Millisecond)
		return nil
	})
	return took, busy, err
}

// rate is packets a second, in millions. None at all, or a clock that stood still, is a fault of what was to be measured.
func rate(packets uint64, took time.Duration) (float64, error) {
	if packets == 0 || took <= 0 {
		return 0, fmt.Errorf("%d packets of the flood counted, in %v", packets, took)
	}
	return float64(packets) / 1e6 / took.Seconds(), nil
}

func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // cannot fail
	return time.Duration(ts.Nano())
}

// pollingUplink turns GRO on and has the device poll from a thread. It must be called in the device's namespaces.
func pollingUplink(name string) (net.HardwareAddr, *receiver, error) {
	dev, err := net.InterfaceByName(name)
	if err != nil {
		return nil, nil, err
	}
	if err := netlab.SetGRO(name, true); err != nil {
		return nil, nil, err
	}
	r, err := newReceiver(name)
	return dev.HardwareAddr, r, err
}

var errNoReceiver = errors.New("the kernel has made no thread for the device's packets")

// newReceiver makes the device poll from a thread. It must be called in the device's namespaces.
func newReceiver(dev string) (*receiver, error) {
	before, err := pollers(dev)
	if err != nil {
		return nil, err
	}
	for _, set := range [][2]string{{"threaded", "1"}, {"napi_defer_hard_irqs", "1"}, {"gro_flush_timeout", "50000"}} {
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
