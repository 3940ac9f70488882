// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// rrWarmup is how long a request/response connection runs before it counts.
const rrWarmup = 50 * time.Millisecond

// minTrips are measured however long they take: percentiles of fewer say
// nothing, and a packet lost at a bad moment costs more than a short d.
const minTrips = 100

// lockTo binds the goroutine to a thread on the CPUs of during and returns what
// sets the thread free again on those of after.
func lockTo(during, after *unix.CPUSet) func() {
	runtime.LockOSThread()
	use(during)
	return func() {
		use(after)
		runtime.UnlockOSThread()
	}
}

// RR sends one byte and waits for one byte, over and over on one connection,
// for d and at least minTrips times, and returns the 50th and 99th percentile
// of the round trips.
func RR(p *placement, to netip.AddrPort, d time.Duration) (p50, p99 time.Duration, err error) {
	defer lockTo(&p.one, &p.all)()
	fd, err := dial(newSockaddr(to))
	if err != nil {
		return 0, 0, err
	}
	defer rawClose(fd)
	if err := setCongestionControl(fd); err != nil {
		return 0, 0, err
	}
	buf := []byte{kindRR}
	// 2 us is faster than any round trip through two stacks.
	trips := make([]time.Duration, 0, d/(2*time.Microsecond))
	now := time.Now()
	warm := now.Add(rrWarmup)
	end := warm.Add(d)
	for now.Before(end) || len(trips) < minTrips {
		if _, errno := rawWrite(fd, buf); errno != 0 {
			return 0, 0, fmt.Errorf("send request: %w", errno)
		}
		n, errno := rawRead(fd, buf)
		if errno != 0 {
			return 0, 0, fmt.Errorf("read reply: %w", errno)
		}
		if n == 0 {
			return 0, 0, errors.New("server closed the connection")
		}
		before := now
		now = time.Now()
		if before.After(warm) {
			trips = append(trips, now.Sub(before))
		}
	}
	slices.Sort(trips)
	return trips[len(trips)/2], trips[len(trips)*99/100], nil
}

// CRR opens a connection, sends one byte, gets one back, sees the server close
// and closes, over and over in conns threads, and returns the connections per
// second of all together. Any failed connection is an error.
func CRR(p *placement, to netip.AddrPort, conns int, d time.Duration) (float64, error) {
	sa := newSockaddr(to)
	start := time.Now()
	var (
		mu    sync.Mutex
		total int
		errs  []error
		wg    sync.WaitGroup
	)
	for range conns {
		wg.Go(func() {
			n, err := crrLoop(p, sa, start.Add(d))
			mu.Lock()
			defer mu.Unlock()
			total += n
			errs = append(errs, err)
		})
	}
	wg.Wait()
	elapsed := time.Since(start)
	if err := errors.Join(errs...); err != nil {
		return 0, fmt.Errorf("after %d connections: %w", total, err)
	}
	return float64(total) / elapsed.Seconds(), nil
}

func crrLoop(p *placement, to *sockaddr, end time.Time) (int, error) {
	defer lockTo(&p.all, &p.all)()
	buf := make([]byte, 1)
	for n := 0; ; n++ {
		if !time.Now().Before(end) {
			return n, nil
		}
		fd, err := dial(to)
		if err != nil {
			return n, err
		}
		err = transact(fd, buf)
		rawClose(fd)
		if err != nil {
			return n, err
		}
	}
}

// transact is one request, its reply and the server's end of stream. The
// server closes first, so that it and not the client keeps the port pair in
// TIME_WAIT: the client's ports never run out.
func transact(fd int, buf []byte) error {
	buf[0] = kindCRR
	if _, errno := rawWrite(fd, buf); errno != 0 {
		return fmt.Errorf("send request: %w", errno)
	}
	for _, want := range []int{1, 0} {
		n, errno := rawRead(fd, buf)
		if errno != 0 {
			return fmt.Errorf("read reply: %w", errno)
		}
		if n != want {
			return fmt.Errorf("read %d bytes, want %d", n, want)
		}
	}
	return nil
}

// Stream sends as much as it can on one connection and returns what the
// server received, in bits per second.
func Stream(p *placement, to netip.AddrPort, d time.Duration) (float64, error) {
	defer lockTo(&p.one, &p.all)()
	fd, err := dial(newSockaddr(to))
	if err != nil {
		return 0, err
	}
	defer rawClose(fd)
	if err := setCongestionControl(fd); err != nil {
		return 0, err
	}
	if _, errno := rawWrite(fd, []byte{kindStream}); errno != 0 {
		return 0, fmt.Errorf("start stream: %w", errno)
	}
	buf := make([]byte, 128<<10)
	// The two clocks start together: the server's thread is where it belongs.
	if n, errno := rawRead(fd, buf[:1]); errno != 0 || n != 1 {
		return 0, fmt.Errorf("start stream: %d bytes of answer: %w", n, errno)
	}
	for end := time.Now().Add(streamWarmup + d); time.Now().Before(end); {
		if _, errno := rawWrite(fd, buf); errno != 0 {
			return 0, fmt.Errorf("send: %w", errno)
		}
	}
	if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
		return 0, fmt.Errorf("shutdown: %w", err)
	}
	var reply [16]byte
	for got := 0; got < len(reply); {
		n, errno := rawRead(fd, reply[got:])
		if errno != 0 {
			return 0, fmt.Errorf("read count: %w", errno)
		}
		if n == 0 {
			return 0, errors.New("server closed before it sent its count")
		}
		got += n
	}
	bytes, ns := binary.BigEndian.Uint64(reply[:8]), binary.BigEndian.Uint64(reply[8:])
	if bytes == 0 || ns == 0 {
		return 0, errors.New("the server received nothing")
	}
	return float64(bytes) * 8 / (float64(ns) / 1e9), nil
}
