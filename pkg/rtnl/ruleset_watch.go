// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// RuleSetWatch is a subscription to the rule sets of nftables in one network namespace, iptables-nft's among them. The kernel
// reports no change of iptables-legacy. Omitting Close leaks a descriptor.
type RuleSetWatch struct{ f *os.File }

// WatchRuleSets listens in the network namespace of the calling thread.
func WatchRuleSets() (*RuleSetWatch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("subscribe to nftables events: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("subscribe to nftables events: %w", err)
	}
	return &RuleSetWatch{os.NewFile(uintptr(fd), "nftables events")}, nil
}

// Close ends the subscription.
func (w *RuleSetWatch) Close() { _ = w.f.Close() }

// Wait returns nil after a change, or after so many that events were lost, and ctx's error when that ends.
func (w *RuleSetWatch) Wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = w.f.SetReadDeadline(time.Now()) })
	defer stop()
	buf := make([]byte, 1<<16)
	for {
		n, err := w.f.Read(buf)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			return nil
		case err != nil:
			return fmt.Errorf("receive nftables event: %w", err)
		}
		msgs, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return fmt.Errorf("receive nftables event: %w", err)
		}
		if slices.ContainsFunc(msgs, isNewGeneration) {
			return nil
		}
	}
}

// isNewGeneration reports whether a transaction is in force: the kernel says so last, behind what has changed.
func isNewGeneration(m syscall.NetlinkMessage) bool {
	return m.Header.Type == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN
}
