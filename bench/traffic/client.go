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

// Result is what a client measured.
type Result struct {
	// The percentiles of the time of a request, 0 of a stream.
	P50, P99, P999 time.Duration
	// Count is how many requests were answered, or bytes sent, those of the warm-up too: all that CPU time went into.
	Count uint64
	// Rate is requests or connections a second, or bits a second.
	Rate float64
}

// summary makes a result of the times of all threads.
func summary(threads [][]time.Duration, rate float64, count uint64) Result {
	all := slices.Concat(threads...)
	slices.Sort(all)
	at := func(permille int) time.Duration { return all[len(all)*permille/1000] }
	return Result{P50: at(500), P99: at(990), P999: at(999), Count: count, Rate: rate}
}

// together runs f in so many threads and waits for all. Any error is one of the whole.
func together(conns int, f func(i int) error) error {
	errs := make([]error, conns)
	var wg sync.WaitGroup
	for i := range conns {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// RR sends one byte and waits for one byte, over and over on each of conns
// connections, for d and at least minTrips times in all.
func RR(p *placement, to netip.AddrPort, conns int, d time.Duration) (Result, error) {
	threads := make([][]time.Duration, conns)
	sent, rates := make([]uint64, conns), make([]float64, conns)
	err := together(conns, func(i int) (err error) {
		threads[i], rates[i], sent[i], err = rrLoop(p, to, conns, d)
		return err
	})
	if err != nil {
		return Result{}, err
	}
	count, rate := uint64(0), 0.0
	for i := range sent {
		count += sent[i]
		rate += rates[i]
	}
	return summary(threads, rate, count), nil
}

// rrLoop returns the times after the warm-up, how many there were a second, and the number of all requests.
func rrLoop(p *placement, to netip.AddrPort, conns int, d time.Duration) (trips []time.Duration, rate float64, sent uint64, err error) {
	kind, set := byte(kindRR), &p.one
	if conns > 1 {
		kind, set = kindManyRR, &p.all
	}
	defer lockTo(set, &p.all)()
	fd, err := dial(newSockaddr(to))
	if err != nil {
		return nil, 0, 0, err
	}
	defer rawClose(fd)
	if err := setCongestionControl(fd); err != nil {
		return nil, 0, 0, err
	}
	buf := []byte{kind}
	// 2 us is faster than any round trip through two stacks.
	trips = make([]time.Duration, 0, int(d/(2*time.Microsecond))/conns+minTrips)
	now := time.Now()
	warm := now.Add(rrWarmup)
	end := warm.Add(d)
	for now.Before(end) || len(trips) < max(1, minTrips/conns) {
		if _, errno := rawWrite(fd, buf); errno != 0 {
			return nil, 0, 0, fmt.Errorf("send request: %w", errno)
		}
		n, errno := rawRead(fd, buf)
		if errno != 0 {
			return nil, 0, 0, fmt.Errorf("read reply: %w", errno)
		}
		if n == 0 {
			return nil, 0, 0, errors.New("server closed the connection")
		}
		before := now
		now = time.Now()
		sent++
		if before.After(warm) {
			trips = append(trips, now.Sub(before))
		}
	}
	return trips, float64(len(trips)) / now.Sub(warm).Seconds(), sent, nil
}

// CRR opens a connection, sends one byte, gets one back, sees the server close
// and closes, over and over in conns threads. Any failed connection is an error.
func CRR(p *placement, to netip.AddrPort, conns int, d time.Duration) (Result, error) {
	sa := newSockaddr(to)
	start := time.Now()
	threads := make([][]time.Duration, conns)
	err := together(conns, func(i int) (err error) {
		threads[i], err = crrLoop(p, sa, start.Add(d))
		return err
	})
	elapsed := time.Since(start)
	total := 0
	for _, t := range threads {
		total += len(t)
	}
	if err != nil {
		return Result{}, fmt.Errorf("after %d connections: %w", total, err)
	}
	if total == 0 {
		return Result{}, errors.New("no time for one connection")
	}
	return summary(threads, float64(total)/elapsed.Seconds(), uint64(total)), nil
}

func crrLoop(p *placement, to *sockaddr, end time.Time) (times []time.Duration, err error) {
	defer lockTo(&p.all, &p.all)()
	buf := make([]byte, 1)
	for start := time.Now(); start.Before(end); {
		fd, err := dial(to)
		if err != nil {
			return times, err
		}
		err = transact(fd, buf)
		rawClose(fd)
		if err != nil {
			return times, err
		}
		now := time.Now()
		times = append(times, now.Sub(start))
		start = now
	}
	return times, nil
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

// Stream sends as much as it can on each of conns connections. The rate is
// what the server received after the warm-up, in bits per second.
func Stream(p *placement, to netip.AddrPort, conns int, d time.Duration) (Result, error) {
	bytes, rates := make([]uint64, conns), make([]float64, conns)
	err := together(conns, func(i int) (err error) {
		bytes[i], rates[i], err = streamLoop(p, to, conns, d)
		return err
	})
	if err != nil {
		return Result{}, err
	}
	var r Result
	for i := range bytes {
		r.Count += bytes[i]
		r.Rate += rates[i]
	}
	if r.Rate == 0 {
		return Result{}, errors.New("the server received nothing")
	}
	return r, nil
}

// streamLoop returns the bytes sent, and the bits a second received.
func streamLoop(p *placement, to netip.AddrPort, conns int, d time.Duration) (sent uint64, rate float64, err error) {
	kind, set := byte(kindStream), &p.one
	if conns > 1 {
		kind, set = kindManyStream, &p.all
	}
	defer lockTo(set, &p.all)()
	fd, err := dial(newSockaddr(to))
	if err != nil {
		return 0, 0, err
	}
	defer rawClose(fd)
	if err := setCongestionControl(fd); err != nil {
		return 0, 0, err
	}
	if _, errno := rawWrite(fd, []byte{kind}); errno != 0 {
		return 0, 0, fmt.Errorf("start stream: %w", errno)
	}
	buf := make([]byte, 128<<10)
	// The two clocks start together: the server's thread is where it belongs.
	if n, errno := rawRead(fd, buf[:1]); errno != 0 || n != 1 {
		return 0, 0, fmt.Errorf("start stream: %d bytes of answer: %w", n, errno)
	}
	for end := time.Now().Add(streamWarmup + d); time.Now().Before(end); {
		n, errno := rawWrite(fd, buf)
		if errno != 0 {
			return 0, 0, fmt.Errorf("send: %w", errno)
		}
		sent += uint64(n)
	}
	if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
		return 0, 0, fmt.Errorf("shutdown: %w", err)
	}
	var reply [16]byte
	for got := 0; got < len(reply); {
		n, errno := rawRead(fd, reply[got:])
		if errno != 0 {
			return 0, 0, fmt.Errorf("read count: %w", errno)
		}
		if n == 0 {
			return 0, 0, errors.New("server closed before it sent its count")
		}
		got += n
	}
	if ns := binary.BigEndian.Uint64(reply[8:]); ns > 0 {
		rate = float64(binary.BigEndian.Uint64(reply[:8])) * 8 / (float64(ns) / 1e9)
	}
	return sent, rate, nil
}
