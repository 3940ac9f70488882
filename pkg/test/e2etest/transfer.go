// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Megabit is a rate in bits per second.
const Megabit = 1_000_000

// ServeSink takes what it is sent at TCP port 90, and answers when that was all.
func ServeSink(t testing.TB, ns Place) {
	t.Helper()
	for _, network := range []string{"tcp4", "tcp6"} {
		l, err := ns.Listen(network, ":90")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					if _, err := io.Copy(io.Discard, c); err == nil {
						_, _ = io.WriteString(c, "all\n")
					}
				}()
			}
		}()
	}
}

// MeasureRate sends 400 kB to a ServeSink and returns bits per second. It counts from
// before the first byte is sent to after the last has come, so no queue on the way makes
// it look faster.
func MeasureRate(from Place, network, addr string) (float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), AnswerTimeout)
	defer cancel()
	const size = 400_000
	c, err := from.DialContext(ctx, network, addr)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(netlab.Patient(20 * time.Second))); err != nil {
		return 0, err
	}
	start := time.Now()
	if _, err := c.Write(make([]byte, size)); err != nil {
		return 0, err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return 0, err
	}
	var end string
	if _, err := fmt.Fscan(c, &end); err != nil {
		return 0, err
	}
	return size * 8 / time.Since(start).Seconds(), nil
}

// transferSize is large enough for TCP to send segments of 64 KiB (GSO), and small enough
// for the slow path of a busy machine.
var transferSize = int64(netlab.Fewer(48<<20, 4<<20))

// stream is pseudo-random data that differs for each seed.
func stream(seed uint64) io.Reader {
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	return io.LimitReader(rand.NewChaCha8(key), transferSize)
}

// sumOf is the checksum of a stream, which must be whole.
func sumOf(r io.Reader) ([]byte, error) {
	h := sha256.New()
	n, err := io.Copy(h, r)
	if err == nil && n != transferSize {
		err = fmt.Errorf("%d bytes, want %d", n, transferSize)
	}
	return h.Sum(nil), err
}

// BulkServer reads a stream whole, sends its checksum, then sends another stream.
func BulkServer(t testing.TB, ns Place, addr string) {
	t.Helper()
	for _, network := range []string{"tcp4", "tcp6"} {
		l, err := ns.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go bulkAnswer(c)
			}
		}()
	}
}

func bulkAnswer(c net.Conn) {
	defer c.Close()
	sum, err := sumOf(io.LimitReader(c, transferSize))
	if err != nil {
		return
	}
	if _, err := c.Write(sum); err == nil {
		_, _ = io.Copy(c, stream(2))
	}
}

// BulkClient sends a stream to a BulkServer and compares the checksum, then reads the
// server's stream and compares that.
func BulkClient(ns Place, network, addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), AnswerTimeout)
	defer cancel()
	c, err := ns.DialContext(ctx, network, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(netlab.Patient(30 * time.Second))); err != nil {
		return err
	}
	if _, err := io.Copy(c, stream(1)); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	want, err := sumOf(stream(1))
	if err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	if !bytes.Equal(got, want) {
		return errors.New("upload: the server got other data than was sent")
	}
	if got, err = sumOf(c); err != nil {
		return fmt.Errorf("download: %w", err)
	}
	if want, err = sumOf(stream(2)); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("download: other data than the server sent")
	}
	return nil
}
