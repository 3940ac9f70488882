// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"context"
	"encoding/binary"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

const (
	echoTimeout = time.Second
	idleEchoes  = 50
)

// load sends a TCP stream from one namespace to an address of the other for d:
// once alone, for the goodput, and once with an echo beside it, in the same
// direction.
func load(from, to *netlab.NS, addr string, every, d time.Duration) (f Figures, err error) {
	server, err := to.ListenPacket("udp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return f, err
	}
	defer server.Close()
	go reflectUDP(server)
	idle, _, err := echo(from, server.LocalAddr().String(), every, idleEchoes*every)
	if err != nil {
		return f, err
	}
	f.IdleP50 = quantile(idle, 0.5)
	if f.Goodput, err = stream(from, to, addr, d); err != nil {
		return f, err
	}

	var wait sync.WaitGroup
	var echoErr error
	wait.Add(1)
	go func() {
		defer wait.Done()
		time.Sleep(d / 4) // what passes before is the burst
		var times []time.Duration
		times, f.Lost, echoErr = echo(from, server.LocalAddr().String(), every, d*3/4)
		f.P50, f.P99 = quantile(times, 0.5), quantile(times, 0.99)
	}()
	_, err = stream(from, to, addr, d)
	wait.Wait()
	if err == nil {
		err = echoErr
	}
	return f, err
}

func reflectUDP(c net.PacketConn) {
	buf := make([]byte, 64)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(buf[:n], from)
	}
}

// echo sends a small datagram at a steady pace for d and returns how long the
// answers took, echoTimeout for one that is lost. Answers may come in any order.
func echo(from *netlab.NS, addr string, every, d time.Duration) (times []time.Duration, lost int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), d+2*echoTimeout)
	defer cancel()
	c, err := from.DialContext(ctx, "udp", addr)
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	n := int(d / every)
	sent := make([]time.Time, n)
	var mu sync.Mutex
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64)
		for {
			if _, err := c.Read(buf); err != nil {
				return
			}
			at, i := time.Now(), int(binary.BigEndian.Uint64(buf))
			mu.Lock()
			if i < n {
				times = append(times, at.Sub(sent[i]))
			}
			mu.Unlock()
		}
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var buf [8]byte
	for i := range n {
		<-tick.C
		binary.BigEndian.PutUint64(buf[:], uint64(i))
		mu.Lock()
		sent[i] = time.Now()
		mu.Unlock()
		_, _ = c.Write(buf[:]) // a full queue is a lost echo
	}
	_ = c.SetReadDeadline(time.Now().Add(echoTimeout))
	<-done
	lost = n - len(times)
	return append(times, slices.Repeat([]time.Duration{echoTimeout}, lost)...), lost, nil
}

func quantile(times []time.Duration, q float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return times[min(int(q*float64(len(times))), len(times)-1)]
}

// stream returns how many Mbit/s of payload arrive after the first quarter of d.
func stream(from, to *netlab.NS, addr string, d time.Duration) (float64, error) {
	l, err := to.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return 0, err
	}
	defer l.Close()
	got := make(chan float64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- 0
			return
		}
		got <- count(c, d)
		_ = c.Close()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), d+10*time.Second)
	defer cancel()
	c, err := from.DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	go func() {
		buf := make([]byte, 128<<10)
		for {
			if _, err := c.Write(buf); err != nil {
				return
			}
		}
	}()
	return <-got, nil
}

func count(c net.Conn, d time.Duration) float64 {
	buf := make([]byte, 1<<20)
	start := time.Now()
	_ = c.SetReadDeadline(start.Add(d))
	var from, last time.Time
	n := 0
	for {
		m, err := c.Read(buf)
		if err != nil {
			break
		}
		last = time.Now()
		switch {
		case last.Sub(start) < d/4:
		case from.IsZero():
			from = last // these bytes belong to the time before
		default:
			n += m
		}
	}
	if from.IsZero() || !last.After(from) {
		return 0
	}
	return float64(n) * 8 / last.Sub(from).Seconds() / 1e6
}
