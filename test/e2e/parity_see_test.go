// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// closedTime is how long to wait where nobody is expected to answer: long enough
// for a second SYN.
const closedTime = 1200 * time.Millisecond

// say words an answer.
func (s *stage) say(a answer) string { return a.name + " saw " + s.who(a.peer.Addr()) }

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

// hear holds one conversation.
func (s *stage) hear(limit time.Duration, from place, network, local, addr string) string {
	c, err := dialWithin(limit, from, network, local, addr)
	if err != nil {
		return failure(err)
	}
	defer c.Close()
	c.limit = patience
	if err := c.rounds(longTalk); err != nil {
		return s.say(c.answer) + ", then " + failure(err)
	}
	return s.say(c.answer)
}

// both words what TCP and UDP saw.
func both(see func(proto string) string) string {
	t := make(chan string)
	go func() { t <- see("tcp") }()
	u := see("udp")
	if tcp := <-t; tcp != u {
		return fmt.Sprintf("TCP: %s; UDP: %s", tcp, u)
	}
	return u
}

// reach talks by TCP and UDP to where an answer is expected.
func (s *stage) reach(from place, fam family, addr string) string {
	return both(func(proto string) string { return s.hear(patience, from, proto+fam.suffix, "", addr) })
}

// closed talks to where none is expected.
func (s *stage) closed(from place, fam family, addr string) string {
	return both(func(proto string) string { return s.hear(closedTime, from, proto+fam.suffix, "", addr) })
}
