// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"testing"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// attrs puts attributes one after the other.
func attrs(all ...[]byte) (out []byte) {
	for _, a := range all {
		out = append(out, a...)
	}
	return out
}

func attribute(kind int, value []byte) []byte { return vnl.NewRtAttr(kind, value).Serialize() }

func tcMessage(kind string, options []byte) []byte {
	return attrs((&vnl.TcMsg{Handle: 0x10000, Parent: 1}).Serialize(), attribute(vnl.TCA_KIND, append([]byte(kind), 0)), attribute(vnl.TCA_OPTIONS, options),
		attribute(vnl.TCA_STATS2, attribute(vnl.TCA_STATS_BASIC, make([]byte, 16))))
}

// FuzzParse gives any bytes as the message of a kernel to every parser: none panics, reads behind the end, or works
// without bounds. What is shorter than its header is refused, or nothing.
func FuzzParse(f *testing.F) {
	f.Add(make([]byte, 40))
	f.Add([]byte{})
	f.Add(tcMessage(QdiscTBF, attrs(attribute(vnl.TCA_TBF_PARMS, make([]byte, vnl.SizeofTcTbfQopt)), attribute(vnl.TCA_TBF_RATE64, make([]byte, 8)))))
	f.Add(tcMessage(QdiscHTB, attrs(attribute(vnl.TCA_HTB_INIT, make([]byte, vnl.SizeofTcHtbGlob)), attribute(vnl.TCA_HTB_PARMS, make([]byte, vnl.SizeofTcHtbCopt)))))
	f.Add(tcMessage(QdiscFQ, attribute(vnl.TCA_FQ_PLIMIT, make([]byte, 4))))
	f.Add(tcMessage(kindBPF, attrs(attribute(vnl.TCA_BPF_NAME, []byte("x\x00")), attribute(vnl.TCA_BPF_ID, make([]byte, 4)))))
	f.Add(tcMessage(kindU32, attribute(vnl.TCA_U32_ACT, attribute(vnl.TCA_ACT_TAB, attrs(attribute(vnl.TCA_ACT_KIND, append([]byte(kindMirred), 0)), attribute(vnl.TCA_ACT_OPTIONS, attribute(vnl.TCA_MIRRED_PARMS, make([]byte, mirredSize))))))))
	f.Add(attrs(make([]byte, unix.SizeofRtMsg), attribute(unix.RTA_DST, []byte{10, 0, 0, 1}), attribute(unix.RTA_MULTIPATH, make([]byte, 8)), attribute(unix.RTA_TABLE, make([]byte, 4))))
	f.Add(attribute(ctaTupleOrig|unix.NLA_F_NESTED, attrs(attribute(ctaTupleIP, attribute(1, []byte{10, 0, 0, 1})), attribute(ctaTupleProto, attrs(attribute(ctaProtoNum, []byte{6}), attribute(ctaProtoSrcPort, []byte{0, 80}))))))
	f.Add(attrs([]byte{unix.NFPROTO_INET, 0, 0, 0}, attribute(unix.NFTA_TRACE_TABLE, []byte("t\x00")), attribute(unix.NFTA_TRACE_RULE_HANDLE, make([]byte, 8)),
		attribute(unix.NFTA_TRACE_VERDICT, attrs(attribute(unix.NFTA_VERDICT_CODE, make([]byte, 4)), attribute(unix.NFTA_VERDICT_CHAIN, []byte("c\x00")))), attribute(unix.NFTA_TRACE_NETWORK_HEADER, make([]byte, 20))))
	f.Fuzz(func(t *testing.T, b []byte) {
		fuzztest.Bounded(t, len(b), func() { parseAll(t, b) })
	})
}

func parseAll(t *testing.T, b []byte) {
	t.Helper()
	short := func(what string, size int, err error) {
		if len(b) < size && err == nil {
			t.Errorf("%s took %d bytes", what, len(b))
		}
	}
	_, err := parseLink(b)
	short("parseLink", unix.SizeofIfInfomsg, err)
	_, err = parseAddr(b)
	short("parseAddr", unix.SizeofIfAddrmsg, err)
	_, err = parseRoute(b)
	short("parseRoute", unix.SizeofRtMsg, err)
	_, err = parseRule(b)
	short("parseRule", unix.SizeofRtMsg, err)
	_, err = parseQdisc(b)
	short("parseQdisc", vnl.SizeofTcMsg, err)
	_, _, err = parseClass(b)
	short("parseClass", vnl.SizeofTcMsg, err)
	_, _, err = parseFilter(b)
	short("parseFilter", vnl.SizeofTcMsg, err)
	if _, ok := parseSocket(b); ok != (len(b) >= sizeofInetDiagMsg) {
		t.Errorf("parseSocket: %v of %d bytes", ok, len(b))
	}
	if _, ok := parseListener(b); ok && len(b) < sizeofInetDiagMsg {
		t.Errorf("parseListener took %d bytes", len(b))
	}
	_, _ = parseTCStats(b)
	_, _ = parseRedirect(b)
	_, _ = parseVLANs(b)
	_, _ = parseTun(b)
	_, _, _ = parseFlow(b)
	_, _, _, _ = parseTuple(b)
	_, err = parseNFTTrace(b)
	short("parseNFTTrace", nfgenmsgLen, err)
	_, _ = nftVerdict(b)
	_, _ = splitHops(Route{}, b)
	_ = eventIndex(unix.RTM_NEWADDR, b)
	_ = eventIndex(unix.RTM_NEWLINK, b)
}
