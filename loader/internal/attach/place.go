// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/netns"
)

// Place is where a podns device is. It is kept as the target of a symbolic link beside the pins, whose name is the
// device's number: upgrade, DEL and GC enter the namespace by it.
type Place struct {
	Inode   uint64 // of the namespace: its path may be another's by now
	Ifindex int
	Made    bool // the clsact qdisc was made by us
	Netns   string
}

// String is the place as the symbolic link has it.
func (p Place) String() string {
	return fmt.Sprintf("%d %d %t %s", p.Inode, p.Ifindex, p.Made, p.Netns)
}

func parsePlace(s string) (p Place, err error) {
	fields := strings.SplitN(s, " ", 4)
	if len(fields) != 4 {
		return p, fmt.Errorf("%q is not a place of a device", s)
	}
	var errs [3]error
	p.Inode, errs[0] = strconv.ParseUint(fields[0], 10, 64)
	p.Ifindex, errs[1] = strconv.Atoi(fields[1])
	p.Made, errs[2] = strconv.ParseBool(fields[2])
	p.Netns = fields[3]
	return p, errors.Join(errs[:]...)
}

// PutPlacedFilters puts the programs of hooks on a device that conn reaches. number is what they read as skb->tc_classid.
func (a *Attacher) PutPlacedFilters(conn *Conn, index int, number uint32, hooks []hook.Hook) error {
	for _, h := range hooks {
		prog, err := a.program(h)
		if err != nil {
			return err
		}
		f, found, err := conn.FilterAt(index, h)
		if err != nil {
			return err
		}
		if found && !f.yields(h) {
			return fmt.Errorf("device %d of the pod, %s, priority %d: %w (%s %s)", index, h.Direction(), h.Priority(), pintree.ErrConflict, f.kind, f.program)
		}
		if err := conn.putFilter(index, h, prog, number); err != nil {
			return err
		}
	}
	return nil
}

// ClearPlaced removes our filters from the device, and the qdisc too if we made it and no other program uses it.
func (c *Conn) ClearPlaced(p Place, number uint32) error {
	if p.Made && c.only(p.Ifindex, hook.OfPodns()) {
		return c.DeleteClsact(p.Ifindex)
	}
	var errs []error
	for _, h := range hook.OfPodns() {
		errs = append(errs, c.DeletePlacedFilter(p.Ifindex, h, number))
	}
	return errors.Join(errs...)
}

// DeletePlacedFilter removes our filter for h if it carries number: another device may have the place by now.
func (c *Conn) DeletePlacedFilter(index int, h hook.Hook, number uint32) error {
	if f, found, err := c.FilterAt(index, h); err != nil || !found || f.Class != number {
		return err
	}
	_, err := c.deleteFilter(index, h)
	return err
}

// InNetns calls f with a connection into the namespace of p. One that has gone, or whose path leads to another by now, is
// success: its filters went with it.
func (a *Attacher) InNetns(p Place, f func(*Conn) error) error {
	ns, err := netns.Open(p.Netns)
	if errors.Is(err, netns.ErrNotExist) || errors.Is(err, netns.ErrNotNS) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ns.Close()
	if ns.Inode() != p.Inode {
		return nil
	}
	conn, err := OpenIn(ns)
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(conn)
}

// In is InNetns that also knows the calling thread's namespace.
func (a *Attacher) In(p Place, f func(*Conn) error) error {
	if p.Netns != "" {
		return a.InNetns(p, f)
	}
	conn, err := a.Conn()
	if err != nil {
		return err
	}
	return f(conn)
}

// ReadPlace reads the place that the mark at path notes; false when there is none.
func ReadPlace(path string) (Place, bool, error) {
	target, err := os.Readlink(path)
	if errors.Is(err, os.ErrNotExist) {
		return Place{}, false, nil
	}
	if err != nil {
		return Place{}, false, err
	}
	p, err := parsePlace(target)
	return p, err == nil, err
}
