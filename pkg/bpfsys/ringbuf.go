// SPDX-License-Identifier: Apache-2.0

package bpfsys

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ring reads a ring buffer, as its only reader (kernel/bpf/ringbuf.c; 5.8). It is not safe for concurrent use.
type Ring struct {
	poll     int
	consumer []byte // a page: how far we are, in bytes since the beginning
	producer []byte // a page: how far programs are; behind it the data, twice, so that no record is cut
	data     []byte
}

// OpenRing maps the buffer of m into memory.
func OpenRing(m *Map) (_ *Ring, err error) {
	if m.i.typ != RingBuf {
		return nil, fmt.Errorf("the map is no ring buffer (%s)", m.i.typ)
	}
	page, size := os.Getpagesize(), int(m.i.maxEntries)
	r := &Ring{poll: -1}
	defer func() {
		if err != nil {
			_ = r.Close()
		}
	}()
	if r.consumer, err = unix.Mmap(m.fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map the reader's page: %w", err)
	}
	if r.producer, err = unix.Mmap(m.fd, int64(page), page+2*size, unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map the ring: %w", err)
	}
	r.data = r.producer[page:]
	if r.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, err
	}
	return r, unix.EpollCtl(r.poll, unix.EPOLL_CTL_ADD, m.fd, &unix.EpollEvent{Events: unix.EPOLLIN})
}

// Close gives the memory back.
func (r *Ring) Close() error {
	var errs []error
	for _, b := range [][]byte{r.consumer, r.producer} {
		if b != nil {
			errs = append(errs, unix.Munmap(b))
		}
	}
	if r.poll >= 0 {
		errs = append(errs, unix.Close(r.poll))
	}
	return errors.Join(errs...)
}

// In the header of a record: BPF_RINGBUF_BUSY_BIT, BPF_RINGBUF_DISCARD_BIT, BPF_RINGBUF_HDR_SZ.
const (
	ringBusy    = 1 << 31
	ringDiscard = 1 << 30
	ringHeader  = 8
)

// Next returns a copy of the next record; false when none comes for that long.
func (r *Ring) Next(patience time.Duration) ([]byte, bool, error) {
	for end := time.Now().Add(patience); ; {
		if record, ok := r.take(); ok {
			return record, true, nil
		}
		left := time.Until(end)
		if left <= 0 {
			return nil, false, nil
		}
		var events [1]unix.EpollEvent
		if _, err := unix.EpollWait(r.poll, events[:], int(left.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, false, err
		}
	}
}

// take copies the next record that is ready, and gives its room back.
func (r *Ring) take() ([]byte, bool) {
	mine := (*uint64)(unsafe.Pointer(&r.consumer[0]))
	theirs := (*uint64)(unsafe.Pointer(&r.producer[0]))
	size := uint64(len(r.data) / 2)
	for at := atomic.LoadUint64(mine); at < atomic.LoadUint64(theirs); {
		record := r.data[at&(size-1):]
		header := atomic.LoadUint32((*uint32)(unsafe.Pointer(&record[0])))
		if header&ringBusy != 0 {
			return nil, false // a program is writing it
		}
		n := header &^ ringDiscard
		at += uint64(ringHeader+n+7) &^ 7
		if header&ringDiscard != 0 {
			atomic.StoreUint64(mine, at)
			continue
		}
		out := append([]byte{}, record[ringHeader:ringHeader+n]...)
		atomic.StoreUint64(mine, at)
		return out, true
	}
	return nil, false
}
