// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// From <linux/netfilter/nf_tables.h> and nfnetlink_conntrack.h; x/sys lacks some of them.
const (
	nftaChainTable  = 1 // NFTA_CHAIN_TABLE
	nftaChainName   = 3 // NFTA_CHAIN_NAME
	nftaChainHook   = 4 // NFTA_CHAIN_HOOK
	nftaChainPolicy = 5 // NFTA_CHAIN_POLICY
	nftaChainUse    = 6 // NFTA_CHAIN_USE
	nftaHookNum     = 1 // NFTA_HOOK_HOOKNUM

	ctaTupleOrig  = 1  // CTA_TUPLE_ORIG
	ctaTupleReply = 2  // CTA_TUPLE_REPLY
	ctaStatus     = 3  // CTA_STATUS
	ctaProtoInfo  = 4  // CTA_PROTOINFO
	ctaID         = 12 // CTA_ID
	ctaZone       = 18 // CTA_ZONE

	ctaTupleIP    = 1 // CTA_TUPLE_IP
	ctaTupleProto = 2 // CTA_TUPLE_PROTO

	ctaIPv4Src = 1 // CTA_IP_V4_SRC; CTA_IP_V4_DST is the next
	ctaIPv6Src = 3 // CTA_IP_V6_SRC; CTA_IP_V6_DST is the next

	ctaProtoInfoTCP = 1      // CTA_PROTOINFO_TCP
	ctaTCPState     = 1      // CTA_PROTOINFO_TCP_STATE
	seenReply       = 1 << 1 // IPS_SEEN_REPLY

	ctaProtoNum     = 1 // CTA_PROTO_NUM
	ctaProtoSrcPort = 2 // CTA_PROTO_SRC_PORT
	ctaProtoDstPort = 3 // CTA_PROTO_DST_PORT

	// nfgenmsgLen is the size of struct nfgenmsg: family, version and a resource id of two bytes.
	nfgenmsgLen = 4

	ctGetStats = 5 // IPCTNL_MSG_CT_GET_STATS
)

// netfilterRequest is a request to the netfilter subsystem of the calling thread's network namespace.
func netfilterRequest(subsys, msg, flags, family int) *vnl.NetlinkRequest {
	req := vnl.NewNetlinkRequest(subsys<<8|msg, flags)
	req.AddData(&vnl.Nfgenmsg{NfgenFamily: uint8(family), Version: vnl.NFNETLINK_V0})
	return req
}

// NFTChain is a chain of nftables. iptables-nft keeps its tables there as well.
type NFTChain struct {
	Family int // unix.NFPROTO_*
	Table  string
	Name   string
	Use    uint32 // rules in it, and jumps to it
	// Base chains hang on a hook (NF_INET_* of the families of IP) and may drop what no rule accepts.
	Base  bool
	Hook  uint32
	Drops bool
}

// At is "inet filter forward", as nft lists chains.
func (c *NFTChain) At() string { return nftFamilies[c.Family] + " " + c.Table + " " + c.Name }

// NFTHasChain reports whether the calling thread's network namespace has that chain. It starts no process and loads no
// module. A kernel without nftables has none.
func NFTHasChain(family int, table, chain string) (bool, error) {
	req := netfilterRequest(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETCHAIN, 0, family)
	req.AddData(attr(nftaChainTable, vnl.ZeroTerminated(table)))
	req.AddData(attr(nftaChainName, vnl.ZeroTerminated(chain)))
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	switch {
	case err == nil:
		return true, nil
	case noSuchTable(err):
		return false, nil
	}
	return false, fmt.Errorf("look up nftables chain %s %s: %w", table, chain, err)
}

// NFTChains lists the chains of all families.
func NFTChains() ([]NFTChain, error) {
	req := netfilterRequest(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.AF_UNSPEC)
	var (
		msgs [][]byte
		err  error
	)
	for range maxDumps {
		if msgs, err = req.Execute(unix.NETLINK_NETFILTER, 0); !errors.Is(err, unix.EINTR) && !errors.Is(err, vnl.ErrDumpInterrupted) {
			break
		}
	}
	if noSuchTable(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	var out []NFTChain
	for _, m := range msgs {
		if len(m) < nfgenmsgLen {
			continue
		}
		c := NFTChain{Family: int(m[0])}
		err := walk(m[nfgenmsgLen:], func(kind uint16, v []byte) {
			switch kind {
			case nftaChainTable:
				c.Table = cstring(v)
			case nftaChainName:
				c.Name = cstring(v)
			case nftaChainUse:
				c.Use = bigEndian32(v)
			case nftaChainHook:
				c.Base, c.Hook = true, hookNum(v)
			case nftaChainPolicy:
				c.Drops = bigEndian32(v) == 0 // NF_DROP
			}
		})
		if err != nil {
			return nil, fmt.Errorf("list nftables chains: %w", err)
		}
		out = append(out, c)
	}
	return out, nil
}

func bigEndian32(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

// hookNum is that of NFTA_CHAIN_HOOK.
func hookNum(b []byte) (num uint32) {
	err := walk(b, func(kind uint16, v []byte) {
		if kind == nftaHookNum {
			num = bigEndian32(v)
		}
	})
	if err != nil {
		return 0
	}
	return num
}

// noSuchTable reports that what was asked for is not there, or that the kernel has no nftables or none of that family.
func noSuchTable(err error) bool {
	for _, e := range []error{unix.ENOENT, unix.EAFNOSUPPORT, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EINVAL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Flow is an entry of the kernel's connection table: the packet that opened it, and the reply as it will come.
type Flow struct {
	Proto              uint8
	Src, Dst           netip.AddrPort
	ReplySrc, ReplyDst netip.AddrPort
	Replied            bool  // a packet of the other direction has come
	TCPState           uint8 // of TCP: TCPFinWait and the like
}

// States of TCP that say how a connection ends (enum tcp_conntrack).
const (
	TCPFinWait  = 4
	TCPTimeWait = 7
	TCPClose    = 8
)

// FindFlow returns the connection of the calling thread's network namespace that a packet of this protocol from src to dst opened. The error
// wraps ErrNotFound when there is none, or the kernel keeps no connections.
func FindFlow(proto uint8, src, dst netip.AddrPort) (Flow, error) {
	family := unix.AF_INET
	if src.Addr().Is6() {
		family = unix.AF_INET6
	}
	// The kernel calls its one answer a part of several (ctnetlink_fill_info), and sends no end of them: the acknowledgement is the end.
	req := netfilterRequest(unix.NFNL_SUBSYS_CTNETLINK, int(vnl.IPCTNL_MSG_CT_GET), unix.NLM_F_ACK, family)
	req.AddData(tuple(proto, src, dst))
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	switch {
	case noSuchTable(err) || err == nil && (len(msgs) == 0 || len(msgs[0]) < nfgenmsgLen):
		return Flow{}, fmt.Errorf("connection from %s to %s: %w", src, dst, ErrNotFound)
	case err != nil:
		return Flow{}, fmt.Errorf("connection from %s to %s: %w", src, dst, err)
	}
	f, _, err := parseFlow(msgs[0][nfgenmsgLen:])
	return f, err
}

// LoadConntrack has the kernel load netfilter's connection tracking, if it is a module: its subsystem of nfnetlink loads it when it is
// asked for the first time. The error wraps ErrNotFound if the kernel has none.
func LoadConntrack() error {
	req := netfilterRequest(unix.NFNL_SUBSYS_CTNETLINK, ctGetStats, unix.NLM_F_ACK, unix.AF_UNSPEC) // the acknowledgement is the end, as in FindFlow
	_, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if noSuchTable(err) {
		return fmt.Errorf("connection tracking: %w", ErrNotFound)
	}
	return err
}

// tuple is CTA_TUPLE_ORIG.
func tuple(proto uint8, src, dst netip.AddrPort) *vnl.RtAttr {
	t := vnl.NewRtAttr(ctaTupleOrig|unix.NLA_F_NESTED, nil)
	ip := t.AddRtAttr(ctaTupleIP|unix.NLA_F_NESTED, nil)
	kind := ctaIPv4Src
	if src.Addr().Is6() {
		kind = ctaIPv6Src
	}
	ip.AddRtAttr(kind, src.Addr().AsSlice())
	ip.AddRtAttr(kind+1, dst.Addr().AsSlice())
	l4 := t.AddRtAttr(ctaTupleProto|unix.NLA_F_NESTED, nil)
	l4.AddRtAttr(ctaProtoNum, []byte{proto})
	l4.AddRtAttr(ctaProtoSrcPort, binary.BigEndian.AppendUint16(nil, src.Port()))
	l4.AddRtAttr(ctaProtoDstPort, binary.BigEndian.AppendUint16(nil, dst.Port()))
	return t
}

// DropFlows deletes the connections of a family (FamilyV4, FamilyV6) that match accepts, in the calling thread's network
// namespace, and returns their number. An entry that is gone already is no error.
func DropFlows(family int, match func(Flow) bool) (int, error) {
	req := netfilterRequest(unix.NFNL_SUBSYS_CTNETLINK, int(vnl.IPCTNL_MSG_CT_GET), unix.NLM_F_DUMP, family)
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil && !errors.Is(err, vnl.ErrDumpInterrupted) { // a table that changes: what was seen is good enough
		return 0, fmt.Errorf("list connections: %w", err)
	}
	dropped := 0
	var errs []error
	for _, m := range msgs {
		if len(m) < nfgenmsgLen {
			continue
		}
		f, name, err := parseFlow(m[nfgenmsgLen:])
		if err != nil || !match(f) {
			continue
		}
		del := netfilterRequest(unix.NFNL_SUBSYS_CTNETLINK, int(vnl.IPCTNL_MSG_CT_DELETE), unix.NLM_F_ACK, family)
		del.AddRawData(name)
		switch _, err := del.Execute(unix.NETLINK_NETFILTER, 0); {
		case err == nil:
			dropped++
		case !errors.Is(err, unix.ENOENT):
			errs = append(errs, fmt.Errorf("delete a connection: %w", err))
		}
	}
	return dropped, errors.Join(errs...)
}

// parseFlow returns the flow of a message and the attributes that name it: the tuple, the zone and the id, as they came.
func parseFlow(b []byte) (f Flow, name []byte, err error) {
	var errs [4]error
	err = walk(b, func(kind uint16, v []byte) {
		switch kind {
		case ctaTupleOrig:
			f.Src, f.Dst, f.Proto, errs[0] = parseTuple(v)
			name = append(name, vnl.NewRtAttr(ctaTupleOrig|unix.NLA_F_NESTED, v).Serialize()...)
		case ctaTupleReply:
			f.ReplySrc, f.ReplyDst, _, errs[1] = parseTuple(v)
		case ctaStatus:
			f.Replied = len(v) == 4 && binary.BigEndian.Uint32(v)&seenReply != 0
		case ctaProtoInfo:
			errs[2] = walk(v, func(kind uint16, v []byte) {
				if kind == ctaProtoInfoTCP {
					errs[3] = walk(v, func(kind uint16, v []byte) {
						if kind == ctaTCPState && len(v) == 1 {
							f.TCPState = v[0]
						}
					})
				}
			})
		case ctaZone, ctaID:
			name = append(name, vnl.NewRtAttr(int(kind), v).Serialize()...)
		}
	})
	if err = errors.Join(append(errs[:], err)...); err != nil {
		return f, nil, err
	}
	return f, name, nil
}

// parseTuple reads CTA_TUPLE_IP (sources have odd numbers, destinations even) and CTA_TUPLE_PROTO. Ports are big endian.
func parseTuple(b []byte) (src, dst netip.AddrPort, proto uint8, err error) {
	var (
		addr [2]netip.Addr
		port [2]uint16
		errs []error
	)
	err = walk(b, func(part uint16, v []byte) {
		errs = append(errs, walk(v, func(kind uint16, v []byte) {
			switch {
			case part == ctaTupleIP:
				if ip, ok := netip.AddrFromSlice(v); ok {
					addr[(kind+1)%2] = ip
				}
			case part != ctaTupleProto:
			case kind == ctaProtoNum && len(v) == 1:
				proto = v[0]
			case (kind == ctaProtoSrcPort || kind == ctaProtoDstPort) && len(v) == 2:
				port[kind-ctaProtoSrcPort] = binary.BigEndian.Uint16(v)
			}
		}))
	})
	if err = errors.Join(append(errs, err)...); err != nil {
		return src, dst, 0, err
	}
	return netip.AddrPortFrom(addr[0], port[0]), netip.AddrPortFrom(addr[1], port[1]), proto, nil
}
