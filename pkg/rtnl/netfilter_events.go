// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// netfilterEvents is a socket in one multicast group of the netfilter subsystem (NFNLGRP_*).
type netfilterEvents struct {
	f   *os.File
	buf []byte // of receive
}

// listenNetfilter joins the group in the network namespace of the calling thread. what names the events in errors.
func listenNetfilter(what string, group uint) (netfilterEvents, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return netfilterEvents{}, fmt.Errorf("subscribe to %s: %w", what, err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (group - 1)}); err != nil {
		_ = unix.Close(fd)
		return netfilterEvents{}, fmt.Errorf("subscribe to %s: %w", what, err)
	}
	return netfilterEvents{os.NewFile(uintptr(fd), what), make([]byte, 1<<16)}, nil
}

func (e netfilterEvents) close() { _ = e.f.Close() }

// receive waits for messages. It returns ctx's error when that ends, and ENOBUFS after messages were lost. The
// messages hold until the next call.
func (e netfilterEvents) receive(ctx context.Context) ([]syscall.NetlinkMessage, error) {
	stop := context.AfterFunc(ctx, func() { _ = e.f.SetReadDeadline(time.Now()) })
	defer stop()
	n, err := e.f.Read(e.buf)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var msgs []syscall.NetlinkMessage
	if err == nil {
		msgs, err = syscall.ParseNetlinkMessage(e.buf[:n])
	}
	if err != nil {
		return nil, fmt.Errorf("receive %s: %w", e.f.Name(), err)
	}
	return msgs, nil
}
