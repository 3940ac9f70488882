// SPDX-License-Identifier: Apache-2.0

// Package rtnl is the project's narrow view of rtnetlink: links, addresses, routes and bridge ports, as plain structs.
//
// It is the only importer of vishvananda/netlink, whose messages it sends over sockets of its own, and of go-tc, which makes
// queues, classes and u32 filters (docs/dev/adr/0021-go-tc.md). What it adds: dumps that the
// kernel marks as interrupted are repeated until they are whole, so no caller ever sees half a table; filters run in the kernel
// (strict checking, Linux 4.20); the kernel's own explanation of a refusal is part of the error; and a device pair is made by
// one message.
// Nothing here sleeps: who must wait for the kernel subscribes with Watch before the change.
package rtnl

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	tc "github.com/florianl/go-tc"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/netns"
)

// Address families for the functions that take one.
const (
	FamilyAll = unix.AF_UNSPEC
	FamilyV4  = unix.AF_INET
	FamilyV6  = unix.AF_INET6
)

var (
	// ErrNotFound says that the link, address or route asked for does not exist. The words are not those of its name: containerd takes
	// a DEL whose error holds "not found" for one that has succeeded (go-cni, Network.Remove).
	ErrNotFound = errors.New("does not exist")
	// ErrExist says that what should be made exists already.
	ErrExist = errors.New("exists already")
	// ErrNotSupported says that the running kernel lacks the feature (for example CONFIG_BRIDGE_VLAN_FILTERING).
	ErrNotSupported = errors.New("not supported by this kernel")
)

// maxDumps bounds the repetitions of an interrupted dump. A table that changes during every one of so many dumps changes faster
// than it can be read.
const maxDumps = 64

// Handle is one rtnetlink socket in one network namespace, and go-tc's from the first change that needs it. It stays in that
// namespace wherever the caller goes. Calls may come
// from several goroutines; they take turns. Omitting Close leaks a descriptor.
type Handle struct {
	mu   sync.Mutex
	sock *socket
	tc   *tc.Tc // nil until the first change that go-tc makes
}

// New opens a handle in the network namespace of the calling thread.
func New() (*Handle, error) {
	s, err := openSocket()
	if err != nil {
		return nil, err
	}
	// Both options only improve messages and speed; kernels since 4.20 have them.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return &Handle{sock: s}, nil
}

// NewIn opens a handle in ns. A nil ns means the current namespace.
func NewIn(ns *netns.NS) (h *Handle, err error) {
	if ns == nil {
		return New()
	}
	derr := ns.Do(func() error {
		h, err = New()
		return err
	})
	return h, derr
}

// Close closes the sockets.
func (h *Handle) Close() {
	h.sock.close()
	if h.tc != nil {
		_ = h.tc.Close()
	}
}

func (h *Handle) request(msgType, flags int) *vnl.NetlinkRequest {
	return &vnl.NetlinkRequest{
		NlMsghdr: unix.NlMsghdr{
			Len:   unix.SizeofNlMsghdr,
			Type:  uint16(msgType),
			Flags: uint16(unix.NLM_F_REQUEST | flags),
		},
	}
}

// do sends a change and waits for the acknowledgement.
func (h *Handle) do(req *vnl.NetlinkRequest) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	req.Flags |= unix.NLM_F_ACK
	return classify(h.sock.exchange(req, 0, func([]byte) bool { return true }))
}

// get sends a request that has one answer.
func (h *Handle) get(req *vnl.NetlinkRequest, resType uint16) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var answer []byte
	err := h.sock.exchange(req, resType, func(m []byte) bool {
		answer = slices.Clone(m)
		return false
	})
	if err != nil {
		return nil, classify(err)
	}
	if answer == nil {
		return nil, ErrNotFound
	}
	return answer, nil
}

// dump runs the request that build makes until the kernel reports a consistent table, and gives each message to each of the
// last run. reset is called before every run.
func (h *Handle) dump(build func() *vnl.NetlinkRequest, resType uint16, reset func(), each func([]byte) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for range maxDumps {
		reset()
		var perr error
		req := build()
		req.Flags |= unix.NLM_F_DUMP
		err := h.sock.exchange(req, resType, func(m []byte) bool {
			perr = each(m)
			return perr == nil
		})
		switch {
		case errors.Is(err, errInterrupted), errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return classify(err)
		}
		return perr
	}
	return fmt.Errorf("netlink dump: interrupted %d times: %w", maxDumps, unix.EINTR)
}

// classify puts this package's sentinels beside the kernel's errno; errors.Is finds both.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO), errors.Is(err, unix.ESRCH), errors.Is(err, unix.EADDRNOTAVAIL):
		return sentinelError{ErrNotFound, err}
	case errors.Is(err, unix.EEXIST):
		return sentinelError{ErrExist, err}
	case errors.Is(err, unix.EOPNOTSUPP):
		return sentinelError{ErrNotSupported, err}
	}
	return err
}

// sentinelError reads as the kernel's error and matches the sentinel too.
type sentinelError struct{ kind, err error }

func (e sentinelError) Error() string   { return e.err.Error() }
func (e sentinelError) Unwrap() []error { return []error{e.kind, e.err} }

func attr(kind int, data []byte) *vnl.RtAttr { return vnl.NewRtAttr(kind, data) }

func attr32(kind int, v uint32) *vnl.RtAttr { return vnl.NewRtAttr(kind, vnl.Uint32Attr(v)) }

func attrString(kind int, s string) *vnl.RtAttr { return vnl.NewRtAttr(kind, vnl.ZeroTerminated(s)) }

// walk calls f for each attribute of b; f must not keep the value.
func walk(b []byte, f func(kind uint16, v []byte)) error {
	order := vnl.NativeEndian()
	for len(b) >= unix.SizeofRtAttr {
		n := int(order.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			return fmt.Errorf("netlink attribute of %d bytes in %d: %w", n, len(b), unix.EINVAL)
		}
		f(order.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[unix.SizeofRtAttr:n])
		n = (n + unix.RTA_ALIGNTO - 1) &^ (unix.RTA_ALIGNTO - 1)
		if n >= len(b) {
			break
		}
		b = b[n:]
	}
	return nil
}

func u32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return vnl.NativeEndian().Uint32(b)
}

func u16(b []byte) uint16 {
	if len(b) < 2 {
		return 0
	}
	return vnl.NativeEndian().Uint16(b)
}

func u8(b []byte) uint8 {
	if len(b) < 1 {
		return 0
	}
	return b[0]
}

func cstring(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

func macOf(b []byte) net.HardwareAddr { return append(net.HardwareAddr(nil), b...) }
