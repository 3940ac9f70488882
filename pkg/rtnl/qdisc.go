// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"math"
	"runtime"

	tc "github.com/florianl/go-tc"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Kinds of qdiscs that this project makes.
const (
	QdiscTBF     = "tbf"
	QdiscHTB     = "htb"
	QdiscFQ      = "fq"
	QdiscBFIFO   = "bfifo"
	QdiscClsact  = "clsact"
	QdiscIngress = "ingress"
)

// Places in the tree of qdiscs, of <linux/pkt_sched.h> and <linux/pkt_cls.h>.
const (
	ParentRoot    uint32 = 0xffffffff
	ParentIngress uint32 = 0xfffffff1 // of the qdisc "ingress" or "clsact"
	HookIngress   uint32 = 0xfffffff2 // parent of filters on packets that come in
	HookEgress    uint32 = 0xfffffff3 // parent of filters on packets that go out; clsact only

	handleIngress uint32 = 0xffff0000
)

// TC returns the handle that tc writes as "major:minor".
func TC(major, minor uint16) uint32 { return uint32(major)<<16 | uint32(minor) }

// TBF are the parameters of a token bucket filter (net/sched/sch_tbf.c).
type TBF struct {
	Rate   uint64 // bytes a second
	Limit  uint32 // bytes that may wait, the burst included
	Buffer uint32 // the burst as the time it takes at Rate, in ticks of 64 ns
}

// HTB are the parameters of a hierarchical token bucket (net/sched/sch_htb.c).
type HTB struct {
	Default uint32 // minor of the class of packets that no filter claims
}

// FQ are the parameters of a fair queue (net/sched/sch_fq.c). Zero leaves the kernel's default.
type FQ struct {
	Limit     uint32 // packets that may wait
	FlowLimit uint32 // packets of one flow that may wait
}

// BFIFO are the parameters of a plain queue measured in bytes.
type BFIFO struct {
	Limit uint32 // bytes that may wait
}

// QdiscStats are what a qdisc or a class has seen. Bytes are those of frames.
type QdiscStats struct {
	Bytes   uint64
	Packets uint32
	Backlog uint32 // bytes that wait
	Drops   uint32
}

// Qdisc is a queueing discipline of a device.
type Qdisc struct {
	Kind   string
	Handle uint32
	Parent uint32
	TBF    *TBF // of a qdisc "tbf"
	HTB    *HTB // of a qdisc "htb"
	FQ     *FQ  // of a qdisc "fq"
	BFIFO  *BFIFO
	Stats  QdiscStats
}

// Clsact is the qdisc that carries filters of both directions.
func Clsact() Qdisc { return Qdisc{Kind: QdiscClsact, Parent: ParentIngress} }

// RootQdisc returns the qdisc that packets leave the device with that index through. The error wraps ErrNotFound when there is
// no device, or none but what the kernel itself puts there (noqueue).
func (h *Handle) RootQdisc(index int) (Qdisc, error) {
	return h.qdiscAt(index, ParentRoot)
}

// IngressQdisc returns the qdisc "ingress" or "clsact" of a device; the error wraps ErrNotFound when it has neither.
func (h *Handle) IngressQdisc(index int) (Qdisc, error) {
	return h.qdiscAt(index, ParentIngress)
}

// RootQdiscs returns the kinds of the qdiscs that packets leave devices by, by the index of the device. What the kernel itself puts
// there (noqueue) is not among them.
func (h *Handle) RootQdiscs() (map[int]string, error) {
	return h.qdiscs(func(q Qdisc) bool { return q.Parent == ParentRoot && q.Handle != 0 })
}

// IngressQdiscs returns which of "ingress" and "clsact" devices have, by the index of the device.
func (h *Handle) IngressQdiscs() (map[int]string, error) {
	return h.qdiscs(func(q Qdisc) bool { return q.Parent == ParentIngress })
}

func (h *Handle) qdiscs(want func(Qdisc) bool) (map[int]string, error) {
	var found map[int]string
	reset := func() { found = make(map[int]string) }
	reset()
	err := h.dump(func() *vnl.NetlinkRequest {
		return h.tcRequest(unix.RTM_GETQDISC, 0, vnl.TcMsg{})
	}, unix.RTM_NEWQDISC, reset, func(m []byte) error {
		q, err := parseQdisc(m)
		if err == nil && want(q) {
			found[int(vnl.DeserializeTcMsg(m).Ifindex)] = q.Kind
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list qdiscs: %w", err)
	}
	return found, nil
}

// qdiscAt asks for the qdisc at one place of a device: a dump would be about all devices of the node. Of a qdisc of its own the kernel
// says nothing, so an acknowledgement ends the answer. Kernels before 6.10 answer only those who ask for an echo, and tell listeners of
// changes too (tc_get_qdisc and qdisc_notify of net/sched/sch_api.c). go-tc would fail at an attribute that it does not know.
func (h *Handle) qdiscAt(index int, parent uint32) (Qdisc, error) {
	m, err := h.get(h.tcRequest(unix.RTM_GETQDISC, unix.NLM_F_ECHO|unix.NLM_F_ACK, vnl.TcMsg{Ifindex: int32(index), Parent: parent}), unix.RTM_NEWQDISC)
	var q Qdisc
	switch {
	case err == nil:
		q, err = parseQdisc(m)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EINVAL): // EINVAL: one of the kernel's own, on some kernels
		err = ErrNotFound
	}
	if err == nil && q.Handle == 0 { // noqueue, and what else a device has before a program changes it
		err = ErrNotFound
	}
	if err != nil {
		return Qdisc{}, fmt.Errorf("qdisc of link index %d: %w", index, err)
	}
	return q, nil
}

// AddQdisc makes q on the device with that index; with replace, also where another qdisc is at q.Parent. The error wraps ErrExist
// when the place is taken, and unix.ENOENT when the kernel has no such qdisc. The messages of clsact and ingress are ours, because
// they are part of the ADD of each pod, and so is that of TBF: go-tc has no TCA_TBF_RATE64 (docs/dev/adr/0021-go-tc.md).
func (h *Handle) AddQdisc(index int, q Qdisc, replace bool) error {
	handle := q.Handle
	if q.Parent == ParentIngress {
		handle = handleIngress
	}
	var err error
	if a, ok := q.attribute(); ok {
		err = h.changeTC(func(c *tc.Tc) error {
			o := tc.Object{Msg: tc.Msg{Ifindex: uint32(index), Handle: handle, Parent: q.Parent}, Attribute: a}
			if replace {
				return c.Qdisc().Replace(&o)
			}
			return c.Qdisc().Add(&o)
		})
	} else {
		flags := unix.NLM_F_CREATE | unix.NLM_F_EXCL
		if replace {
			flags = unix.NLM_F_CREATE | unix.NLM_F_REPLACE
		}
		req := h.tcRequest(unix.RTM_NEWQDISC, flags, vnl.TcMsg{Ifindex: int32(index), Handle: handle, Parent: q.Parent})
		req.AddData(attrString(vnl.TCA_KIND, q.Kind))
		if q.TBF != nil {
			req.AddData(q.TBF.options())
		}
		err = h.do(req)
	}
	if err != nil {
		return fmt.Errorf("add %s qdisc to link index %d: %w", q.Kind, index, err)
	}
	return nil
}

// ErrNotProbed says that this process may not make a network namespace to try something in (CAP_SYS_ADMIN). The kernel was not asked.
var ErrNotProbed = errors.New("this process may not make a network namespace to try it in")

// ProbeQdisc makes q on lo of a network namespace made for it, which goes at once. nil: the kernel can; unix.ENOENT: it has no
// such qdisc, also after it has looked for a module; ErrNotProbed.
func ProbeQdisc(q Qdisc) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends in the namespace, and the namespace with it
		result <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				if errors.Is(err, unix.EPERM) {
					return ErrNotProbed
				}
				return fmt.Errorf("make a network namespace: %w", err)
			}
			h, err := New()
			if err != nil {
				return err
			}
			defer h.Close()
			const loopback = 1
			return h.AddQdisc(loopback, q, false)
		}()
	}()
	return <-result
}

// DelQdisc removes q with all that hangs on it. Missing is success, and so is a device that is gone.
func (h *Handle) DelQdisc(index int, q Qdisc) error {
	handle := q.Handle
	if q.Parent == ParentIngress {
		handle = handleIngress
	}
	err := h.do(h.tcRequest(unix.RTM_DELQDISC, 0, vnl.TcMsg{Ifindex: int32(index), Handle: handle, Parent: q.Parent}))
	if err == nil || TCGone(err) {
		return nil
	}
	return fmt.Errorf("delete %s qdisc of link index %d: %w", q.Kind, index, err)
}

// TCGone says whether err is the kernel's word for a device, qdisc or filter that is not there. It says EINVAL for a class of
// handles that cannot be there.
func TCGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) || errors.Is(err, ErrNotFound)
}

func (h *Handle) tcRequest(msgType, flags int, m vnl.TcMsg) *vnl.NetlinkRequest {
	req := h.request(msgType, flags)
	req.AddData(&m)
	return req
}

// tickNS is the length of a tick in which qdiscs measure bursts, in ns: PSCHED_SHIFT of <net/pkt_sched.h>, fixed since 2.6.31.
const tickNS = 64

// BurstTicks returns how long burst bytes take at rate bytes a second, in ticks, rounded down to whole microseconds as tc and
// the upstream plugins do. A time beyond 274 s is all that fits.
func BurstTicks(rate uint64, burst uint32) uint32 {
	us := float64(burst) * 1e6 / float64(rate) // in this order: rounded as there
	ticks := math.Floor(us) * 1000 / tickNS
	if ticks > math.MaxUint32 {
		return math.MaxUint32
	}
	return uint32(ticks)
}

// rate32 is what the kernel wants beside a 64-bit rate: as much of it as fits.
func rate32(rate uint64) uint32 { return uint32(min(rate, math.MaxUint32)) }

func (t *TBF) options() *vnl.RtAttr {
	opt := vnl.TcTbfQopt{Rate: vnl.TcRateSpec{Rate: rate32(t.Rate)}, Limit: t.Limit, Buffer: t.Buffer}
	options := attr(vnl.TCA_OPTIONS, nil)
	options.AddRtAttr(vnl.TCA_TBF_PARMS, opt.Serialize())
	if t.Rate > math.MaxUint32 {
		options.AddRtAttr(vnl.TCA_TBF_RATE64, vnl.Uint64Attr(t.Rate))
	}
	return options
}

// fqDefaultLimit is sch->limit of fq_init in net/sched/sch_fq.c.
const fqDefaultLimit = 10000

// attribute is q's kind and parameters in go-tc's types; false for a qdisc that AddQdisc writes itself.
func (q Qdisc) attribute() (tc.Attribute, bool) {
	a := tc.Attribute{Kind: q.Kind}
	switch {
	case q.HTB != nil:
		a.Htb = &tc.Htb{Init: &tc.HtbGlob{Version: 3, Rate2Quantum: 10, Defcls: q.HTB.Default}}
	case q.FQ != nil:
		limit := q.FQ.Limit
		if limit == 0 {
			limit = fqDefaultLimit // go-tc sends no fq without a parameter
		}
		a.Fq = &tc.Fq{PLimit: &limit}
		if q.FQ.FlowLimit != 0 {
			a.Fq.FlowPLimit = &q.FQ.FlowLimit
		}
	case q.BFIFO != nil:
		a.Bfifo = &tc.FifoOpt{Limit: q.BFIFO.Limit}
	default:
		return a, false
	}
	return a, true
}

func parseQdisc(m []byte) (Qdisc, error) {
	if len(m) < vnl.SizeofTcMsg {
		return Qdisc{}, fmt.Errorf("qdisc message of %d bytes: %w", len(m), unix.EINVAL)
	}
	msg := vnl.DeserializeTcMsg(m)
	q := Qdisc{Handle: msg.Handle, Parent: msg.Parent}
	var options, stats []byte
	err := walk(m[vnl.SizeofTcMsg:], func(kind uint16, v []byte) {
		switch kind {
		case vnl.TCA_KIND:
			q.Kind = cstring(v)
		case vnl.TCA_OPTIONS:
			options = v
		case vnl.TCA_STATS2:
			stats = v
		}
	})
	if err == nil {
		err = q.parseOptions(options)
	}
	if err == nil {
		q.Stats, err = parseTCStats(stats)
	}
	return q, err
}

func (q *Qdisc) parseOptions(b []byte) error {
	switch q.Kind {
	case QdiscTBF:
		q.TBF = &TBF{}
		return walk(b, func(kind uint16, v []byte) {
			switch {
			case kind == vnl.TCA_TBF_PARMS && len(v) >= vnl.SizeofTcTbfQopt:
				opt := vnl.DeserializeTcTbfQopt(v)
				q.TBF.Rate = max(q.TBF.Rate, uint64(opt.Rate.Rate))
				q.TBF.Limit, q.TBF.Buffer = opt.Limit, opt.Buffer
			case kind == vnl.TCA_TBF_RATE64:
				q.TBF.Rate = u64(v)
			}
		})
	case QdiscHTB:
		q.HTB = &HTB{}
		return walk(b, func(kind uint16, v []byte) {
			if kind == vnl.TCA_HTB_INIT && len(v) >= vnl.SizeofTcHtbGlob {
				q.HTB.Default = vnl.DeserializeTcHtbGlob(v).Defcls
			}
		})
	case QdiscFQ:
		q.FQ = &FQ{}
		return walk(b, func(kind uint16, v []byte) {
			switch kind {
			case vnl.TCA_FQ_PLIMIT:
				q.FQ.Limit = u32(v)
			case vnl.TCA_FQ_FLOW_PLIMIT:
				q.FQ.FlowLimit = u32(v)
			}
		})
	}
	return nil
}

// parseTCStats reads TCA_STATS2 (struct gnet_stats_basic and gnet_stats_queue of <linux/gen_stats.h>).
func parseTCStats(b []byte) (QdiscStats, error) {
	var s QdiscStats
	err := walk(b, func(kind uint16, v []byte) {
		switch {
		case kind == vnl.TCA_STATS_BASIC && len(v) >= 12:
			s.Bytes, s.Packets = u64(v), u32(v[8:])
		case kind == vnl.TCA_STATS_QUEUE && len(v) >= 12:
			s.Backlog, s.Drops = u32(v[4:]), u32(v[8:])
		}
	})
	return s, err
}

func u64(b []byte) uint64 {
	if len(b) < 8 {
		return 0
	}
	return vnl.NativeEndian().Uint64(b)
}
