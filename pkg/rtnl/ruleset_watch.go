// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// RuleSetWatch is a subscription to the rule sets of nftables in one network namespace, iptables-nft's among them. The kernel
// reports no change of iptables-legacy. Omitting Close leaks a descriptor.
type RuleSetWatch struct{ events netfilterEvents }

// WatchRuleSets listens in the network namespace of the calling thread.
func WatchRuleSets() (*RuleSetWatch, error) {
	e, err := listenNetfilter("nftables events", unix.NFNLGRP_NFTABLES)
	return &RuleSetWatch{e}, err
}

// Close ends the subscription.
func (w *RuleSetWatch) Close() { w.events.close() }

// Wait returns nil after a change, or after so many that events were lost, and ctx's error when that ends.
func (w *RuleSetWatch) Wait(ctx context.Context) error {
	for {
		msgs, err := w.events.receive(ctx)
		switch {
		case errors.Is(err, unix.ENOBUFS):
			return nil
		case err != nil:
			return err
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
