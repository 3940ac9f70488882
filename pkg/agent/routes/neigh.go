// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// forwarding returns what the device has: the address of each VTEP's node.
func (r *vxlan) forwarding(tun *tunnel) (map[[6]byte]netip.Addr, error) {
	list, err := r.neighbours(tun.index, unix.AF_BRIDGE)
	if err != nil {
		return nil, err
	}
	fdb := make(map[[6]byte]netip.Addr, len(list))
	for _, n := range list {
		if a, ok := netip.AddrFromSlice(n.IP); ok && len(n.HardwareAddr) == 6 {
			fdb[[6]byte(n.HardwareAddr)] = a.Unmap()
		}
	}
	return fdb, nil
}

// neighbours repeats a dump until the kernel did not interrupt it.
func (r *vxlan) neighbours(index, family int) ([]netlink.Neigh, error) {
	for range maxDumps {
		list, err := r.nl.NeighList(index, family)
		if errors.Is(err, netlink.ErrDumpInterrupted) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list neighbours: %w", err)
		}
		return list, nil
	}
	return nil, fmt.Errorf("list neighbours: interrupted %d times", maxDumps)
}

// maxDumps bounds the repetitions of an interrupted dump.
const maxDumps = 64

func (tun *tunnel) family() int {
	if tun.v4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func (tun *tunnel) neigh(a netip.Addr, v vtep) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: tun.index, Family: tun.family(), State: netlink.NUD_PERMANENT, Type: unix.RTN_UNICAST, IP: a.AsSlice(), HardwareAddr: v.hardwareAddr()}
}

func (tun *tunnel) fdbEntry(mac [6]byte, remote netip.Addr) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: tun.index, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF,
		IP: remote.AsSlice(), HardwareAddr: slices.Clone(mac[:]),
	}
}

// resolved returns the permanent neighbours of the device.
func (r *vxlan) resolved(tun *tunnel) (map[netip.Addr][6]byte, error) {
	list, err := r.neighbours(tun.index, tun.family())
	if err != nil {
		return nil, err
	}
	have := make(map[netip.Addr][6]byte, len(list))
	for _, n := range list {
		if a, ok := netip.AddrFromSlice(n.IP); ok && n.State&netlink.NUD_PERMANENT != 0 && len(n.HardwareAddr) == 6 {
			have[a.Unmap()] = [6]byte(n.HardwareAddr)
		}
	}
	return have, nil
}

// setNeighbours adds and changes what the routes need.
func (r *vxlan) setNeighbours(tun *tunnel, fdb map[[6]byte]netip.Addr) (errs []error) {
	have, err := r.resolved(tun)
	if err != nil {
		return []error{err}
	}
	for a, v := range tun.neighs {
		if fdb[v.mac] != v.remote {
			errs = append(errs, r.set(tun.fdbEntry(v.mac, v.remote)))
			fdb[v.mac] = v.remote
		}
		if have[a] != v.mac {
			errs = append(errs, r.set(tun.neigh(a, v)))
		}
	}
	return errs
}

func (r *vxlan) set(n *netlink.Neigh) error {
	r.changes++
	if err := r.nl.NeighSet(n); err != nil {
		return fmt.Errorf("neighbour %s %s: %w", n.IP, n.HardwareAddr, err)
	}
	return nil
}

// dropNeighbours removes what no route needs.
func (r *vxlan) dropNeighbours(tun *tunnel) (errs []error) {
	have, err := r.resolved(tun)
	if err != nil {
		return []error{err}
	}
	drop := func(n *netlink.Neigh) {
		r.changes++
		if err := r.nl.NeighDel(n); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove neighbour %s %s: %w", n.IP, n.HardwareAddr, err))
		}
	}
	for a, mac := range have {
		if _, ok := tun.neighs[a]; !ok {
			drop(tun.neigh(a, vtep{mac: mac}))
		}
	}
	fdb, err := r.forwarding(tun)
	if err != nil {
		return append(errs, err)
	}
	used := map[[6]byte]bool{}
	for _, v := range tun.neighs {
		used[v.mac] = true
	}
	for mac, remote := range fdb {
		if !used[mac] {
			drop(tun.fdbEntry(mac, remote))
		}
	}
	return errs
}
