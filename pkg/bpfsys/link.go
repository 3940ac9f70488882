// SPDX-License-Identifier: Apache-2.0

package bpfsys

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AttachType is an enum bpf_attach_type: where a program hangs.
type AttachType uint32

// The places that are in use here. TCX ones are of Linux 6.6, netkit's of 6.7.
const (
	CgroupInet4Connect     AttachType = unix.BPF_CGROUP_INET4_CONNECT
	CgroupInet6Connect     AttachType = unix.BPF_CGROUP_INET6_CONNECT
	CgroupUDP4Sendmsg      AttachType = unix.BPF_CGROUP_UDP4_SENDMSG
	CgroupUDP6Sendmsg      AttachType = unix.BPF_CGROUP_UDP6_SENDMSG
	CgroupUDP4Recvmsg      AttachType = unix.BPF_CGROUP_UDP4_RECVMSG
	CgroupUDP6Recvmsg      AttachType = unix.BPF_CGROUP_UDP6_RECVMSG
	CgroupInet4GetPeername AttachType = unix.BPF_CGROUP_INET4_GETPEERNAME
	CgroupInet6GetPeername AttachType = unix.BPF_CGROUP_INET6_GETPEERNAME
	CgroupInetSockRelease  AttachType = unix.BPF_CGROUP_INET_SOCK_RELEASE
	XDP                    AttachType = unix.BPF_XDP
	TCXIngress             AttachType = unix.BPF_TCX_INGRESS
	TCXEgress              AttachType = unix.BPF_TCX_EGRESS
	// NetkitPrimary is what the primary device of a pair sends, NetkitPeer what the other one does. Both are named by the primary.
	NetkitPrimary AttachType = 54 // BPF_NETKIT_PRIMARY of <linux/bpf.h>, which package unix does not have
	NetkitPeer    AttachType = 55
)

// Flags of AttachXDP: who runs the program.
const (
	XDPGeneric = unix.XDP_FLAGS_SKB_MODE // the stack
	XDPDriver  = unix.XDP_FLAGS_DRV_MODE
)

// Link is an open link. It holds its program at its place until it is closed and not pinned, or detached.
type Link struct{ file }

// OpenLink opens the link that is pinned at path. fs.ErrNotExist: nothing is.
func OpenLink(path string) (*Link, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	return &Link{f}, nil
}

type createAttr struct {
	program uint32
	target  uint32
	attach  AttachType
	flags   uint32
	_       [2]uint32 // of tcx: beside which program
	_       uint64    // of tcx: after which change of the chain
}

func create(a *createAttr) (*Link, error) {
	fd, err := call(unix.BPF_LINK_CREATE, a)
	if err != nil {
		return nil, err
	}
	return &Link{file{fd}}, nil
}

// AttachTCX hangs p at the end of the chain of a device. ErrNotSupported: the kernel has no tcx (it came with 6.6), which it says
// as of anything else it does not know. EEXIST: p hangs there already. ENODEV: there is no such device.
func AttachTCX(p *Program, ifindex int, at AttachType) (*Link, error) {
	return attachTCX(p, ifindex, at, 0)
}

// AttachTCXFirst is AttachTCX at the beginning of the chain.
func AttachTCXFirst(p *Program, ifindex int, at AttachType) (*Link, error) {
	return attachTCX(p, ifindex, at, unix.BPF_F_BEFORE)
}

func attachTCX(p *Program, ifindex int, at AttachType, flags uint32) (*Link, error) {
	l, err := create(&createAttr{program: uint32(p.fd), target: uint32(ifindex), attach: at, flags: flags})
	if errors.Is(err, unix.EINVAL) {
		err = ErrNotSupported
	}
	return l, err
}

// AttachNetkit hangs p on a pair of netkit devices whose primary one has that index, at the end of the chain or, if first, at its
// beginning. ErrNotSupported: the kernel has no netkit (it came with 6.7), the device is of another kind, or it is not the primary one.
// EEXIST: p hangs there already. ENODEV: there is no such device.
func AttachNetkit(p *Program, ifindex int, at AttachType, first bool) (*Link, error) {
	a := &createAttr{program: uint32(p.fd), target: uint32(ifindex), attach: at}
	if first {
		a.flags = unix.BPF_F_BEFORE
	}
	l, err := create(a)
	for _, cannot := range []error{unix.EINVAL, unix.ENXIO, unix.EACCES} {
		if errors.Is(err, cannot) {
			err = fmt.Errorf("%w: %w", ErrNotSupported, err)
		}
	}
	return l, err
}

// AttachXDP hangs p on a device. EBUSY, EEXIST: it has a program already. EINVAL: there is no such device, among other reasons.
func AttachXDP(p *Program, ifindex int, flags uint32) (*Link, error) {
	return create(&createAttr{program: uint32(p.fd), target: uint32(ifindex), attach: XDP, flags: flags})
}

// AttachCgroup hangs p on the cgroup at path, beside the programs of others.
func AttachCgroup(p *Program, path string, at AttachType) (*Link, error) {
	dir, err := unix.Open(path, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	return create(&createAttr{program: uint32(p.fd), target: uint32(dir), attach: at})
}

// Pin makes the link last: it holds its program while the pin is there.
func (l *Link) Pin(path string) error { return l.pin(path) }

type updateAttr struct {
	link, program uint32
	_, _          uint32 // flags, the program that must be there
}

// Update puts another program in place of the link's, between two packets. ENOLINK: what it hung on has gone.
func (l *Link) Update(p *Program) error {
	_, err := call(unix.BPF_LINK_UPDATE, &updateAttr{link: uint32(l.fd), program: uint32(p.fd)})
	return err
}

type detachAttr struct{ link uint32 }

// Detach takes the link's program away at once, pinned or not. It is no error that it had gone.
func (l *Link) Detach() error {
	_, err := call(unix.BPF_LINK_DETACH, &detachAttr{uint32(l.fd)})
	return err
}

// LinkInfo is what the kernel says about a link.
type LinkInfo struct {
	ID      uint32
	Program uint32 // its number
	Ifindex uint32 // of tcx and XDP; 0: the device has gone. Of netkit it is the device whose packets the program sees, in its namespace
	Cgroup  uint64 // of a cgroup's; 0: that has gone
	kind    uint32
}

// Types of links: enum bpf_link_type.
const (
	linkCgroup = unix.BPF_LINK_TYPE_CGROUP
	linkXDP    = unix.BPF_LINK_TYPE_XDP
	linkTCX    = unix.BPF_LINK_TYPE_TCX
	linkNetkit = 13 // BPF_LINK_TYPE_NETKIT
)

// OnDevice reports whether the link is of a kind that hangs on devices.
func (i LinkInfo) OnDevice() bool {
	return i.kind == linkTCX || i.kind == linkXDP || i.kind == linkNetkit
}

// IsTCX reports whether it is a tcx link.
func (i LinkInfo) IsTCX() bool { return i.kind == linkTCX }

// IsNetkit reports whether it is a link of a netkit pair.
func (i LinkInfo) IsNetkit() bool { return i.kind == linkNetkit }

// linkInfo is the beginning of struct bpf_link_info.
type linkInfo struct {
	kind    uint32
	id      uint32
	program uint32
	_       uint32
	extra   [2]uint64
}

// Info asks the kernel.
func (l *Link) Info() (LinkInfo, error) {
	var raw linkInfo
	if err := info(l.file, &raw); err != nil {
		return LinkInfo{}, err
	}
	i := LinkInfo{ID: raw.id, Program: raw.program, kind: raw.kind}
	switch raw.kind {
	case linkTCX, linkXDP, linkNetkit:
		i.Ifindex = *(*uint32)(unsafe.Pointer(&raw.extra))
	case linkCgroup:
		i.Cgroup = raw.extra[0]
	}
	return i, nil
}

type queryAttr struct {
	target   uint32
	attach   AttachType
	_        [2]uint32 // flags
	programs pointer
	count    uint32
	_        uint32
	_        [3]uint64 // flags of each program, links and their flags
	_        uint64    // revision, which the kernel writes
}

// queried is for how many programs of one place there is room at first.
const queried = 64

// DevicePrograms returns the numbers of the programs on a device, by tcx or netkit, in the order in which they run. EINVAL: the kernel
// does not have that. ENODEV: there is no such device. ENXIO, EACCES: it is not the primary device of a netkit pair.
func DevicePrograms(ifindex int, at AttachType) ([]uint32, error) {
	for room := uint32(queried); ; room *= 2 {
		ids := make([]uint32, room)
		a := queryAttr{target: uint32(ifindex), attach: at, programs: pointer{p: unsafe.Pointer(&ids[0])}, count: room}
		_, err := call(unix.BPF_PROG_QUERY, &a)
		if errors.Is(err, unix.ENOSPC) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return ids[:min(a.count, room)], nil
	}
}
