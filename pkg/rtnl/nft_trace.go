// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// NFTTrace is what the kernel says of a traced packet at one place of a chain: a rule that it matched, the end of a chain, or
// the policy of a base chain. A packet is traced behind a rule "meta nftrace set 1" of nftables, or "-j TRACE" of iptables-nft.
// (nf_tables_trace.c, NFTA_TRACE_* of <linux/netfilter/nf_tables.h>; since Linux 4.6.)
type NFTTrace struct {
	Packet  uint32 // the kernel's number of the packet, the same at each place
	Family  int    // of the table, unix.NFPROTO_*
	Table   string
	Chain   string
	Rule    uint64 // the handle of the rule, as "nft -a" prints it; 0: the end of the chain
	Policy  bool   // the verdict is the chain's policy
	Verdict string // nft's word: accept, drop, queue, continue, return, or "jump CHAIN"
	Drops   bool   // the packet ends here

	// Headers are the packet's network header and what begins behind it, 40 and 20 bytes at most. Only the first message of a base
	// chain has them.
	Headers []byte
}

// At is "inet filter forward", as nft lists chains.
func (t *NFTTrace) At() string { return nftFamilies[t.Family] + " " + t.Table + " " + t.Chain }

// nftFamilies are the words of nft.
var nftFamilies = map[int]string{
	unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_NETDEV: "netdev", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_ARP: "arp",
}

// NFTTraceWatch is a subscription to the traced packets of one network namespace. It traces none itself. Omitting Close leaks a
// descriptor.
type NFTTraceWatch struct{ events netfilterEvents }

// WatchNFTTraces listens in the network namespace of the calling thread.
func WatchNFTTraces() (*NFTTraceWatch, error) {
	e, err := listenNetfilter("nftables traces", unix.NFNLGRP_NFTRACE)
	return &NFTTraceWatch{e}, err
}

// Close ends the subscription.
func (w *NFTTraceWatch) Close() { w.events.close() }

// Next waits for traces, and returns ctx's error when that ends. lost says that some were lost before those.
func (w *NFTTraceWatch) Next(ctx context.Context) (traces []NFTTrace, lost bool, err error) {
	for {
		msgs, err := w.events.receive(ctx)
		if errors.Is(err, unix.ENOBUFS) {
			lost = true
			continue
		}
		if err != nil {
			return nil, lost, err
		}
		for _, m := range msgs {
			if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE {
				continue
			}
			if t, err := parseNFTTrace(m.Data); err == nil {
				traces = append(traces, t)
			}
		}
		if len(traces) > 0 {
			return traces, lost, nil
		}
	}
}

// parseNFTTrace reads a message behind its netlink header. Numbers are big endian.
func parseNFTTrace(b []byte) (t NFTTrace, err error) {
	if len(b) < nfgenmsgLen {
		return t, fmt.Errorf("trace of %d bytes: %w", len(b), unix.EINVAL)
	}
	t.Family = int(b[0])
	var network, transport []byte
	var policy uint32
	var kind uint32
	err = walk(b[nfgenmsgLen:], func(attr uint16, v []byte) {
		switch attr {
		case unix.NFTA_TRACE_TABLE:
			t.Table = cstring(v)
		case unix.NFTA_TRACE_CHAIN:
			t.Chain = cstring(v)
		case unix.NFTA_TRACE_ID:
			t.Packet = bigEndian32(v)
		case unix.NFTA_TRACE_TYPE:
			kind = bigEndian32(v)
		case unix.NFTA_TRACE_POLICY:
			policy = bigEndian32(v)
		case unix.NFTA_TRACE_RULE_HANDLE:
			if len(v) == 8 {
				t.Rule = binary.BigEndian.Uint64(v)
			}
		case unix.NFTA_TRACE_VERDICT:
			t.Verdict, t.Drops = nftVerdict(v)
		case unix.NFTA_TRACE_NETWORK_HEADER:
			network = v
		case unix.NFTA_TRACE_TRANSPORT_HEADER:
			transport = v
		}
	})
	if kind == unix.NFT_TRACETYPE_POLICY {
		t.Policy, t.Verdict, t.Drops = true, nftVerdicts[int32(policy)], policy == 0 // the kernel's numbers have a sign
	}
	if len(network) > 0 {
		t.Headers = append(append([]byte(nil), network...), transport...)
	}
	return t, err
}

// nftVerdicts are the words of nft, by NF_* and NFT_*.
var nftVerdicts = map[int32]string{
	0: "drop", 1: "accept", 2: "stolen", 3: "queue",
	unix.NFT_CONTINUE: "continue", unix.NFT_BREAK: "break", unix.NFT_JUMP: "jump", unix.NFT_GOTO: "goto", unix.NFT_RETURN: "return",
}

// nftVerdict reads NFTA_TRACE_VERDICT.
func nftVerdict(b []byte) (word string, drops bool) {
	chain := ""
	err := walk(b, func(attr uint16, v []byte) {
		switch attr {
		case unix.NFTA_VERDICT_CODE:
			code := int32(bigEndian32(v)) // the kernel's numbers have a sign
			if code >= 0 {
				code &= 0xff // NF_VERDICT_MASK: the rest is the number of a queue, or of an error
			}
			word, drops = nftVerdicts[code], code == 0
		case unix.NFTA_VERDICT_CHAIN:
			chain = cstring(v)
		}
	})
	if err != nil {
		return "", false
	}
	if chain != "" {
		word += " " + chain
	}
	return word, drops
}
