// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"errors"
	"fmt"
	"time"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/netns"
)

// Group is a multicast group of rtnetlink.
type Group uint

// The groups that callers wait on.
const (
	GroupLink   Group = unix.RTNLGRP_LINK
	GroupAddrV4 Group = unix.RTNLGRP_IPV4_IFADDR
	GroupAddrV6 Group = unix.RTNLGRP_IPV6_IFADDR
)

// cancelPoll bounds how late Wait notices a cancelled context. A change is noticed at once.
const cancelPoll = 250 * time.Millisecond

// Watch is a subscription to changes in one network namespace. It must be made before the change that is waited for, or the
// event may come first and be missed. Omitting Close leaks a descriptor.
type Watch struct{ s *socket }

// Subscribe listens in the network namespace of the calling thread.
func Subscribe(groups ...Group) (*Watch, error) {
	s, err := openSocket(groups...)
	if err != nil {
		return nil, fmt.Errorf("subscribe to rtnetlink events: %w", err)
	}
	return &Watch{s: s}, nil
}

// SubscribeIn listens in ns.
func SubscribeIn(ns *netns.NS, groups ...Group) (w *Watch, err error) {
	derr := ns.Do(func() error {
		w, err = Subscribe(groups...)
		return err
	})
	return w, derr
}

// Close ends the subscription.
func (w *Watch) Close() { w.s.close() }

// Wait returns nil as soon as reached reports true, the error of reached, or ctx's error. reached is asked at once and after
// every event about the link with that index, or about any link when it is 0; it must look at the kernel's state, for events can be lost when there are many.
func (w *Watch) Wait(ctx context.Context, index int, reached func() (bool, error)) error {
	for {
		if ok, err := reached(); ok || err != nil {
			return err
		}
		if err := w.next(ctx, index); err != nil {
			return err
		}
	}
}

// next returns nil when something about the link may have changed.
func (w *Watch) next(ctx context.Context, index int) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		wait := cancelPoll
		if end, ok := ctx.Deadline(); ok {
			wait = min(wait, max(time.Until(end), time.Millisecond))
		}
		tv := unix.NsecToTimeval(int64(wait))
		if err := unix.SetsockoptTimeval(w.s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return fmt.Errorf("wait for rtnetlink event: %w", err)
		}
		found := false
		err := w.s.receive(func(m message) (bool, error) {
			about := eventIndex(m.kind, m.data)
			found = about == index || index == 0 && about != 0
			return !found, nil
		})
		switch {
		case errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.ENOBUFS): // events were lost: what was waited for may be among them
			return nil
		case err != nil:
			return fmt.Errorf("receive rtnetlink event: %w", err)
		case found:
			return nil
		}
	}
}

// eventIndex returns the index of the link that an event is about, 0 when it is about something else.
func eventIndex(kind uint16, data []byte) int {
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(data) >= unix.SizeofIfInfomsg {
			return int(vnl.DeserializeIfInfomsg(data).Index)
		}
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(data) >= unix.SizeofIfAddrmsg {
			return int(vnl.DeserializeIfAddrmsg(data).Index)
		}
	}
	return 0
}
