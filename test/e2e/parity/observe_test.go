// SPDX-License-Identifier: Apache-2.0

package parity

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// closedTime is how long to wait where no answer is expected: long enough
// for a second SYN.
const closedTime = 1200 * time.Millisecond

// describe words an answer.
func (s *stage) describe(a e2etest.Answer) string { return a.Server + " saw " + s.who(a.Peer.Addr()) }

// failure words an error of a conversation.
func failure(err error) string {
	var timeout net.Error
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "refused"
	case errors.Is(err, unix.ECONNRESET):
		return "reset"
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		return "unreachable"
	case errors.Is(err, unix.EPERM):
		return "not permitted"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "no answer"
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno.Error() // without the ports, which differ each time
	}
	return err.Error()
}

// converse holds one conversation.
func (s *stage) converse(limit time.Duration, from e2etest.Place, network, local, addr string) string {
	c, err := e2etest.DialWithin(limit, from, network, local, addr)
	if err != nil {
		return failure(err)
	}
	defer c.Close()
	c.Timeout = e2etest.AnswerTimeout
	if err := c.SendRounds(e2etest.LongTalk); err != nil {
		return s.describe(c.Answer) + ", then " + failure(err)
	}
	return s.describe(c.Answer)
}

// observeBoth words what TCP and UDP saw.
func observeBoth(see func(proto string) string) string {
	t := make(chan string)
	go func() { t <- see("tcp") }()
	u := see("udp")
	if tcp := <-t; tcp != u {
		return fmt.Sprintf("TCP: %s; UDP: %s", tcp, u)
	}
	return u
}

// reach talks by TCP and UDP to where an answer is expected.
func (s *stage) reach(from e2etest.Place, fam e2etest.Family, addr string) string {
	return observeBoth(func(proto string) string { return s.converse(e2etest.AnswerTimeout, from, proto+fam.Suffix, "", addr) })
}

// closed talks to where none is expected.
func (s *stage) closed(from e2etest.Place, fam e2etest.Family, addr string) string {
	return observeBoth(func(proto string) string { return s.converse(closedTime, from, proto+fam.Suffix, "", addr) })
}
