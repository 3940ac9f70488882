// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// The limits of the tests: low, so that an emulated machine can offer more, and with bursts of half a second, so that a sender that
// has to wait for a CPU that long loses nothing. What TCP makes of the bursts that people configure is what bench bandwidth
// measures; a wrong rate is a wrong rate with any burst.
const (
	ingressMbit, egressMbit = 4, 2
	burstTime               = 500 * time.Millisecond
	limits                  = `"ingressRate":4000000,"ingressBurst":2000000,"egressRate":2000000,"egressBurst":1000000,`
)

// wantCarried checks that want Mbit/s of frames come to a device of to, within a tenth, when from sends more than that to addr. The
// device is behind the limit and counts frames; see bucket for when the rate is known exactly. A sender that did not get a CPU for
// longer than the burst lasts proves nothing, and is asked again.
func wantCarried(t testing.TB, name string, from, to *netlab.NS, addr, device string, want float64) {
	t.Helper()
	const tries = 5
	for try := 1; ; try++ {
		got, err := carried(t.Context(), from, to, addr, device, want)
		if errors.Is(err, errStarved) && try < tries {
			t.Logf("%s: %v", name, err)
			continue
		}
		must(t, err)
		t.Logf("%s: %.2f of %.0f Mbit/s", name, got, want)
		if got < want*0.9 || got > want*1.1 {
			t.Errorf("%s: %.2f Mbit/s, want %.0f", name, got, want)
		}
		return
	}
}

var errStarved = errors.New("the sender did not get enough CPU time to keep the limit busy")

// bucket follows a token bucket of the rate and burst that are wanted, fed with what the sender has sent. Between two moments at
// which it is empty and packets wait, and if it never overflowed in between, exactly the rate has passed.
type bucket struct {
	rate   float64 // bytes a second
	tokens float64 // below 0: bytes that wait
	sent   uint64
	at     time.Time
}

// frameLen is that of the packets sent; the queue of either backend holds four of them at least.
const frameLen = 1442

func (b *bucket) follow(sent uint64, now time.Time) (overflow bool) {
	burst := b.rate * burstTime.Seconds()
	b.tokens += b.rate*now.Sub(b.at).Seconds() - float64(sent-b.sent)
	b.sent, b.at = sent, now
	overflow = b.tokens > burst
	b.tokens = max(min(b.tokens, burst), -4*frameLen)
	return overflow
}

func (b *bucket) empty() bool { return b.tokens <= -2*frameLen }

// carried offers twice want to addr, and returns how many Mbit/s arrive at the device once the burst is through.
func carried(ctx context.Context, from, to *netlab.NS, addr, device string, want float64) (mbit float64, err error) {
	sink, err := to.ListenPacket("udp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return 0, err
	}
	defer sink.Close()
	c, err := from.DialContext(ctx, "udp", sink.LocalAddr().String())
	if err != nil {
		return 0, err
	}
	// A queue that is full must drop, and not hold up the sender: then it would offer no more than passes.
	if err := roomy(c); err != nil {
		return 0, errors.Join(err, c.Close())
	}
	time.Sleep(burstTime) // a queue may hold as much of the other direction
	if err := reach(c, sink); err != nil {
		return 0, errors.Join(err, c.Close())
	}
	var sent atomic.Uint64
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { offer(ctx, c, 2*want, &sent); close(done) }()
	defer func() {
		cancel()
		err = errors.Join(err, c.Close())
		<-done
	}()
	b := &bucket{rate: want * 1e6 / 8, at: time.Now()}
	b.tokens = b.rate * burstTime.Seconds()
	before, start, err := b.drained(&sent, to, device, 0)
	if err != nil {
		return 0, err
	}
	after, end, err := b.drained(&sent, to, device, 2*burstTime)
	return float64(after-before) * 8 / end.Sub(start).Seconds() / 1e6, err
}

// reach waits until a packet gets through: what ARP and neighbour discovery hold up or drop never comes to the limit. The server
// does not read what is sent later.
func reach(c net.Conn, sink net.PacketConn) error {
	buf := make([]byte, 1)
	for end := time.Now().Add(netlab.Patient(5 * time.Second)); time.Now().Before(end); {
		if _, err := c.Write(buf); err != nil {
			return err
		}
		_ = sink.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, _, err := sink.ReadFrom(buf); err == nil {
			return nil
		}
	}
	return errors.New("nothing arrives")
}

// roomy lets c have more under way than any queue holds.
func roomy(c net.Conn) error {
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	err = raw.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 8<<20)
	})
	return errors.Join(err, setErr)
}

// drained waits until the bucket is empty, for a while at least, and returns the bytes that the device has received then.
func (b *bucket) drained(sent *atomic.Uint64, to *netlab.NS, device string, least time.Duration) (n uint64, at time.Time, err error) {
	from := time.Now()
	for end := from.Add(least + netlab.Patient(5*time.Second)); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if b.follow(sent.Load(), time.Now()) && least > 0 {
			break
		}
		if time.Since(from) >= least && b.empty() {
			return arrived(to, device)
		}
	}
	return 0, at, errStarved
}

// offer sends at a rate in Mbit/s until it is told to stop, and counts bytes of frames.
func offer(ctx context.Context, c net.Conn, mbit float64, sent *atomic.Uint64) {
	buf := make([]byte, 1400)
	perPacket := time.Duration(frameLen * 8 / mbit * float64(time.Microsecond))
	for due := time.Now(); ctx.Err() == nil; time.Sleep(time.Millisecond) {
		now := time.Now()
		if late := now.Add(-burstTime); due.Before(late) {
			due = late
		}
		for ; due.Before(now); due = due.Add(perPacket) {
			if _, err := c.Write(buf); err == nil {
				sent.Add(frameLen)
			}
		}
	}
}

// arrived returns the bytes of frames that a device has received, and when that was so.
func arrived(ns *netlab.NS, device string) (n uint64, at time.Time, err error) {
	err = ns.Do(func() error {
		for range 50 {
			before := time.Now()
			raw, err := os.ReadFile("/proc/thread-self/net/dev")
			if err != nil {
				return err
			}
			at = time.Now()
			if n, err = receivedBytes(string(raw), device); err != nil || at.Sub(before) < 2*time.Millisecond {
				return err
			}
		}
		return nil
	})
	return n, at, err
}

func receivedBytes(devices, name string) (uint64, error) {
	for line := range strings.Lines(devices) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name+":" {
			return strconv.ParseUint(f[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("no %s in %q", name, devices)
}
