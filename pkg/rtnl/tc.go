// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"runtime"

	tc "github.com/florianl/go-tc"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// threadNetns names the network namespace of the calling thread.
const threadNetns = "/proc/thread-self/ns/net"

// changeTC gives f go-tc's connection into the handle's namespace. Its error reads as that of a change on our own socket.
// Only calls that use go-tc pay for its socket.
func (h *Handle) changeTC(f func(*tc.Tc) error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tc == nil {
		c, err := openTC(h.sock.fd)
		if err != nil {
			return fmt.Errorf("open tc socket: %w", err)
		}
		h.tc = c
	}
	return classify(tcError(f(h.tc)))
}

// openTC opens go-tc's connection in the network namespace of the socket sock (SIOCGSKNS, Linux 4.10). Where the thread is there
// already, which is the rule, go-tc needs no thread of its own to go there and back.
func openTC(sock int) (*tc.Tc, error) {
	ns, err := unix.IoctlRetInt(sock, unix.SIOCGSKNS)
	if err != nil {
		return nil, fmt.Errorf("namespace of the rtnetlink socket: %w", err)
	}
	defer unix.Close(ns)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	config := tc.Config{NetNS: ns}
	var there, here unix.Stat_t
	if unix.Fstat(ns, &there) == nil && unix.Stat(threadNetns, &here) == nil && there.Dev == here.Dev && there.Ino == here.Ino {
		config.NetNS = 0 // the thread's
	}
	c, err := tc.Open(&config)
	if err != nil {
		return nil, err
	}
	_ = c.SetOption(netlink.ExtendedAcknowledge, true) // only improves messages
	return c, nil
}

// tcError is the kernel's errno with its explanation, without the words of go-tc's message layer.
func tcError(err error) error {
	var op *netlink.OpError
	switch {
	case !errors.As(err, &op):
		return err
	case op.Message != "":
		return fmt.Errorf("%w: %s", op.Err, op.Message)
	}
	return op.Err
}
