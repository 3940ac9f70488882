// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/ebpfload"
	"github.com/sluice-cni/sluice/pkg/maps/drops"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// spoofer sends packets of the pod "web" with a source that is not the pod's.
func spoofer(t *testing.T, n *netlab.Node) (send func(packets int)) {
	t.Helper()
	var conn *net.UDPConn
	if err := n.Do(func() error {
		if _, err := netlab.Run("ip", "-n", "web", "addr", "add", "10.7.7.7/32", "dev", "lo"); err != nil {
			return err
		}
		// ARP from that source is dropped for itself.
		if _, err := netlab.Run("ip", "netns", "exec", "web", "sysctl", "-qw", "net.ipv4.conf.all.arp_announce=2"); err != nil {
			return err
		}
		ns, err := netns.Open("/run/netns/web")
		if err != nil {
			return err
		}
		defer ns.Close()
		return ns.Do(func() (err error) {
			conn, err = net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(10, 7, 7, 7)}, &net.UDPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 9})
			return err
		})
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return func(packets int) {
		for range packets {
			_, _ = conn.Write([]byte("x")) // a refusal is an answer too
		}
	}
}

// Every packet that is dropped while a reader is there is told of, by a record or by a number: in a flood, while the reader does
// not get on (a terminal that is stopped, a pipe that is not read), and in the last moments.
func TestPrivilegedEventsTellAll(t *testing.T) {
	l := netlab.NewT(t, netlab.Options{ForwardIPv4: true})
	t.Cleanup(func() { real(t, l.Node, "unload", "--force") })
	publish(t, l, webRef)
	send := spoofer(t, l.Node)
	for name, stall := range map[string]time.Duration{"a flood": 0, "a reader that is stopped": 4 * time.Second} {
		t.Run(name, func(t *testing.T) {
			if err := l.Node.Do(func() error { return tellAll(t, send, stall) }); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func tellAll(t *testing.T, send func(int), stall time.Duration) error {
	dp, err := loader.OpenExisting(t.Context(), loader.Options{Loader: ebpfload.InProcess{}})
	if err != nil {
		return err
	}
	defer dp.Close()
	before, err := dp.DropSums(t.Context())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	time.AfterFunc(500*time.Millisecond, func() { send(2000) })
	if stall > 0 {
		time.AfterFunc(stall, func() { send(700) }) // the lease has ended by then
	}
	time.AfterFunc(stall+2400*time.Millisecond, func() {
		send(1000)
		time.Sleep(100 * time.Millisecond) // until the last has met the program
		cancel()
	})
	told, records := uint64(0), 0
	for e, err := range dp.Events(ctx) {
		if err != nil {
			return err
		}
		if told += e.Lost; e.Lost > 0 {
			continue
		}
		told++
		if records++; records == 1 {
			time.Sleep(stall)
		}
	}
	after, err := dp.DropSums(t.Context())
	if err != nil {
		return err
	}
	if dropped := sum(after) - sum(before); dropped == 0 || told != dropped || records == 0 {
		t.Errorf("%d packets were dropped, %d told of, %d by records", dropped, told, records)
	}
	return nil
}

func sum(drops map[drops.Reason]drops.Sum) (n uint64) {
	for _, d := range drops {
		n += d.Total()
	}
	return n
}

// A device that gets another name while the monitor runs is shown by that.
func TestPrivilegedMonitorSeesRename(t *testing.T) {
	l := netlab.NewT(t, netlab.Options{ForwardIPv4: true})
	t.Cleanup(func() { real(t, l.Node, "unload", "--force") })
	publish(t, l, webRef)
	send, lines := spoofer(t, l.Node), monitorOf(t, l.Node)
	wait(t, lines, func() { send(1) }, func(v dropEventView) bool { return v.Device == "v0" })
	if err := l.Node.Do(func() error {
		for _, args := range []string{"v0 down", "v0 name v1", "v1 up"} { // before 6.2 a device that is up keeps its name
			if _, err := netlab.Run("ip", append([]string{"link", "set"}, strings.Fields(args)...)...); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	wait(t, lines, func() { send(1) }, func(v dropEventView) bool { return v.Device == "v1" })
}

// A monitor of a datapath that is unloaded ends: nothing would come any more, whatever is loaded after it.
func TestPrivilegedMonitorEndsWithUnload(t *testing.T) {
	l := netlab.NewT(t, netlab.Options{ForwardIPv4: true})
	t.Cleanup(func() { real(t, l.Node, "unload", "--force") })
	publish(t, l, webRef)
	send := spoofer(t, l.Node)
	ended := make(chan error, 1)
	seen := make(chan struct{}, 1000)
	go func() {
		ended <- l.Node.Do(func() error {
			dp, err := loader.OpenExisting(t.Context(), loader.Options{Loader: ebpfload.InProcess{}})
			if err != nil {
				return err
			}
			defer dp.Close()
			for _, err := range dp.Events(t.Context()) {
				if err != nil {
					return err
				}
				seen <- struct{}{}
			}
			return errors.New("it ended without a word")
		})
	}()
	for reading := false; !reading; {
		send(1)
		select {
		case <-seen:
			reading = true
		case <-time.After(100 * time.Millisecond):
		}
	}
	if _, errs, status := real(t, l.Node, "unload", "--force"); status != 0 {
		t.Fatal(errs)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, loader.ErrNotLoaded) || !strings.Contains(err.Error(), "unloaded") {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it goes on")
	}
}
