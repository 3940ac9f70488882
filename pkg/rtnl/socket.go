// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// receiveSize is more than the kernel puts into one datagram (32 kB of a dump, or the settings of one link).
	receiveSize = 1 << 16

	// Of <linux/netlink.h>.
	errnoSize  = 4
	ackCapped  = 0x100 // NLM_F_CAPPED: of the refused request only the header is in the answer
	ackTLVs    = 0x200 // NLM_F_ACK_TLVS: attributes follow
	ackMessage = 1     // NLMSGERR_ATTR_MSG: the kernel's words
)

// errInterrupted says that the table changed during a dump, so that what was read may be of two times.
var errInterrupted = errors.New("netlink dump interrupted")

// socket is an rtnetlink socket with a buffer of its own. The message layer's own sockets are registered with the runtime's
// poller, ask for their address at every request and clear a new buffer for every answer; the kernel, however, has answered
// a request by the time it has been sent, so nothing is ever waited for. Not for use by several goroutines at once.
type socket struct {
	fd  int
	seq uint32
	buf []byte
}

// openSocket opens a socket in the network namespace of the calling thread that hears the groups.
func openSocket(groups ...Group) (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink socket: %w", err)
	}
	addr := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	for _, g := range groups {
		addr.Groups |= 1 << (g - 1)
	}
	if err := unix.Bind(fd, addr); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("open rtnetlink socket: %w", err)
	}
	return &socket{fd: fd, buf: make([]byte, receiveSize)}, nil
}

func (s *socket) close() {
	_ = unix.Close(s.fd)
	s.fd = -1
}

// exchange sends req and gives the data of each answer of type resType (0: any) to each, until the kernel says that it is
// done or each returns false; what each gets is valid until it returns. The error is the kernel's errno, with its explanation
// where it gave one, or errInterrupted.
func (s *socket) exchange(req *vnl.NetlinkRequest, resType uint16, each func([]byte) bool) error {
	s.seq++
	req.Seq = s.seq
	if err := s.send(req.Serialize()); err != nil {
		return err
	}
	interrupted := false
	for done := false; !done; {
		err := s.receive(func(m message) (more bool, err error) {
			if m.seq != s.seq {
				return true, nil
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case m.kind == unix.NLMSG_DONE, m.kind == unix.NLMSG_ERROR:
				done = true
				return false, m.err()
			case resType == 0, m.kind == resType:
				if !each(m.data) {
					each = func([]byte) bool { return true } // the rest is read, so that the next answer is the next request's
				}
			default:
				return true, nil
			}
			done = m.flags&unix.NLM_F_MULTI == 0
			return !done, nil
		})
		if err != nil {
			return err
		}
	}
	if interrupted {
		return errInterrupted
	}
	return nil
}

func (s *socket) send(b []byte) error {
	for {
		err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// receive reads one datagram and gives its messages to f until that has enough. One that is not the kernel's is passed over.
func (s *socket) receive(f func(message) (more bool, err error)) error {
	n, from, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_TRUNC) // the size of the datagram, not of what fits
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	if err != nil {
		return err
	}
	if n > len(s.buf) {
		return fmt.Errorf("netlink answer of %d bytes: %w", n, unix.EMSGSIZE)
	}
	if a, ok := from.(*unix.SockaddrNetlink); !ok || a.Pid != vnl.PidKernel {
		return nil
	}
	return eachMessage(s.buf[:n], f)
}

// message is one netlink message.
type message struct {
	kind, flags uint16
	seq         uint32
	data        []byte
}

// eachMessage splits a datagram.
func eachMessage(b []byte, f func(message) (more bool, err error)) error {
	order := vnl.NativeEndian()
	for len(b) >= unix.SizeofNlMsghdr {
		n := int(order.Uint32(b))
		if n < unix.SizeofNlMsghdr || n > len(b) {
			return fmt.Errorf("netlink message of %d bytes in %d: %w", n, len(b), unix.EINVAL)
		}
		more, err := f(message{kind: order.Uint16(b[4:]), flags: order.Uint16(b[6:]), seq: order.Uint32(b[8:]), data: b[unix.SizeofNlMsghdr:n]})
		if err != nil || !more {
			return err
		}
		b = b[min(align4(n), len(b)):]
	}
	return nil
}

func align4(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// err is what an acknowledgement, or the end of a dump, says.
func (m *message) err() error {
	errno := -int32(u32(m.data)) // without data all is well
	if errno == 0 {
		return nil
	}
	err := error(unix.Errno(errno))
	if m.flags&ackTLVs == 0 {
		return err
	}
	rest := m.data[errnoSize:]
	if m.kind == unix.NLMSG_ERROR { // an echo of the request comes first
		n := unix.SizeofNlMsghdr
		if m.flags&ackCapped == 0 {
			n = align4(int(u32(rest)))
		}
		if n > len(rest) {
			return err
		}
		rest = rest[n:]
	}
	why := ""
	_ = walk(rest, func(kind uint16, v []byte) { // the errno counts, whatever follows
		if kind == ackMessage {
			why = cstring(v)
		}
	})
	if why != "" {
		err = fmt.Errorf("%w: %s", err, why)
	}
	return err
}
