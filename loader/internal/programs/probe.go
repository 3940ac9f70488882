// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Names of the probes, in the order in which they are asked.
const (
	ProbeCaps         = "capabilities"
	ProbeBPFFS        = "bpffs"
	ProbeMountNS      = "host mount namespace"
	probeSchedCLS     = loadapi.SchedCLS
	probeLRU          = loadapi.LRU
	ProbeRedirectPeer = loadapi.RedirectPeer
	probeRedirectNbr  = loadapi.RedirectNeigh
	ProbeTCX          = loadapi.TCX
	probeClsact       = loadapi.Clsact
	ProbeFQ           = "sch_fq"
	ProbeFIBSrc       = loadapi.FIBSrc
	ProbeCoarse       = loadapi.Coarse
	ProbeSkNetns      = loadapi.SkNetns
	ProbeNetkit       = loadapi.Netkit
	probeBatch        = loadapi.Batch
	probeSerial       = loadapi.Serial
	ProbeJIT          = "JIT"
	probeLockdown     = "lockdown"
	probeLoad         = "program load"
	ProbeTranslations = "translations of netfilter" // what the load has found out
)

const noDatapath = "no eBPF datapath on this node"

// probes are the answers, in order.
type probes []Probe

func (p probes) find(name string) (Probe, bool) {
	for _, q := range p {
		if q.Name == name {
			return q, true
		}
	}
	return Probe{}, false
}

func (p probes) yes(name string) bool {
	q, ok := p.find(name)
	return ok && q.Answer == AnswerYes
}

func (p probes) no(name string) bool {
	q, ok := p.find(name)
	return ok && q.Answer == AnswerNo
}

// missing returns the required probes that were answered with no. An unclear answer does not decide: the load itself will.
func (p probes) missing() []Probe {
	var out []Probe
	for _, q := range p {
		if q.Required && q.Answer == AnswerNo {
			out = append(out, q)
		}
	}
	return out
}

// Reason is the sentence for the operator.
func (p probes) Reason() string {
	if missing := p.missing(); len(missing) > 0 {
		parts := make([]string, 0, len(missing))
		for _, q := range missing {
			parts = append(parts, q.Name+": "+q.Reason)
		}
		return strings.Join(parts, "; ")
	}
	var unclear []string
	for _, q := range p {
		if q.Required && q.Answer == AnswerUnclear {
			unclear = append(unclear, q.Name)
		}
	}
	if len(unclear) > 0 {
		return "programs load; unclear beforehand: " + strings.Join(unclear, ", ")
	}
	return "every requirement is met"
}

// question is one probe: what is asked, and what a no means.
type question struct {
	name        string
	consequence string
	required    bool
	ask         func() error // nil: yes; loadapi.UnsupportedError: no; anything else: unclear
}

// Decide asks the kernel. The error wraps ErrUnavailable when a requirement is definitely missing; the answers are then kept
// for the operator, and for a while for the ADDs that follow (CachedRefusal).
func Decide(ctx context.Context, t *pintree.Tree, k Constants) (probes, error) {
	questions, err := questions(ctx, t)
	if err != nil {
		return nil, err
	}
	report := require(t, runProbes(questions))
	for _, p := range report {
		t.Log.Debug("probe", log.String("name", p.Name), log.String("answer", string(p.Answer)), log.String("reason", p.Reason))
	}
	missing := report.missing()
	if len(missing) == 0 {
		return report, nil
	}
	err = fmt.Errorf("%w: %s", pintree.ErrUnavailable, report.Reason())
	if werr := WriteDecision(t, &Decision{Backend: BackendNone, Reason: report.Reason(), Asked: ProbeKey(t, k), Probes: report}); werr != nil {
		err = errors.Join(err, fmt.Errorf("write decision: %w", werr))
	}
	return report, err
}

// require makes a requirement of the way of attaching that is configured, or of either when both are missing.
func require(t *pintree.Tree, report probes) probes {
	attach := t.Config.Attach
	neither := report.no(ProbeTCX) && report.no(probeClsact)
	for i, p := range report {
		if neither && p.Name == probeClsact || attach == nodeconf.AttachTCX && p.Name == ProbeTCX || attach == nodeconf.AttachClsact && p.Name == probeClsact {
			report[i].Required = true
		}
	}
	return report
}

func runProbes(questions []question) probes {
	report := make(probes, 0, len(questions))
	for _, q := range questions {
		report = append(report, q.run())
	}
	return report
}

func (q question) run() Probe {
	p := Probe{Name: q.name, Required: q.required}
	err := q.ask()
	var no loadapi.UnsupportedError
	switch {
	case err == nil:
		p.Answer = AnswerYes
	case errors.As(err, &no):
		p.Answer, p.Reason, p.Consequence = AnswerNo, no.Why, q.consequence
	default:
		p.Answer, p.Reason = AnswerUnclear, err.Error()
		p.Consequence = "tried anyway"
	}
	return p
}

// questions are all there are. Those that take a program to ask are asked of the worker here and now.
func questions(ctx context.Context, t *pintree.Tree) ([]question, error) {
	answers, err := t.Loader.Probe(ctx)
	if err != nil {
		return nil, err
	}
	kernel := func(name string) func() error {
		return func() error { return answerOf(answers, name) }
	}
	b := t.Paths.BPFFS
	return []question{
		{ProbeCaps, noDatapath, true, AskCapabilities},
		{ProbeBPFFS, noDatapath, true, func() error { return b.Ensure(t.RunDir) }},
		{ProbeMountNS, "the pins go when this mount namespace goes, and nobody outside sees them", false, b.AskLasting},
		{probeSchedCLS, noDatapath, true, kernel(probeSchedCLS)},
		{probeLRU, noDatapath, true, kernel(probeLRU)},
		{ProbeRedirectPeer, noDatapath, true, kernel(ProbeRedirectPeer)},
		{probeRedirectNbr, noDatapath, true, kernel(probeRedirectNbr)},
		{probeSerial, noDatapath, true, kernel(probeSerial)},
		{ProbeTCX, "programs hang on clsact filters", false, kernel(ProbeTCX)},
		{probeClsact, "programs hang on tcx links; an ADD takes two RCU grace periods longer", false, kernel(probeClsact)},
		{ProbeFQ, "bandwidth limits use tbf", false, askFQ},
		{ProbeFIBSrc, "masquerading takes the first address of the uplink", false, kernel(ProbeFIBSrc)},
		{ProbeCoarse, "each packet asks the clock itself, some 20 ns", false, kernel(ProbeCoarse)},
		{ProbeSkNetns, "pods without a host veth can forge their way past the rules at the parent device", false, kernel(ProbeSkNetns)},
		{ProbeNetkit, "pods get veth pairs, also with deviceKind netkit", false, kernel(ProbeNetkit)},
		{probeBatch, "maps are listed entry by entry", false, kernel(probeBatch)},
		{ProbeJIT, "programs are interpreted: several times slower", false, askJIT},
		{probeLockdown, "the kernel may refuse programs", false, askLockdown},
	}, nil
}

// answerOf is what question.ask returns for what the worker answered.
func answerOf(answers []loadapi.ProbeResult, name string) error {
	for _, a := range answers {
		switch {
		case a.Name != name:
		case a.No != "":
			return loadapi.UnsupportedError{Why: a.No}
		case a.Unclear != "":
			return errors.New(a.Unclear)
		default:
			return nil
		}
	}
	return errors.New("not asked")
}

// modes says by what programs will hang on devices.
func modes(t *pintree.Tree, report probes) AttachModes {
	switch t.Config.Attach {
	case nodeconf.AttachTCX:
		return AttachModes{Uplinks: hook.HowTCX, Pods: hook.HowTCX}
	case nodeconf.AttachClsact:
		return AttachModes{Uplinks: hook.HowClsact, Pods: hook.HowClsact}
	}
	m := AttachModes{Uplinks: hook.HowTCX, Pods: hook.HowClsact}
	if report.no(ProbeTCX) {
		m.Uplinks = hook.HowClsact
	}
	if report.no(probeClsact) {
		m.Pods = hook.HowTCX
	}
	return m
}

// firstUserNS is the inode of the machine's own user namespace: PROC_USER_INIT_INO in include/linux/proc_ns.h.
const firstUserNS = 0xEFFFFFFD

// AskCapabilities looks at the effective set, which counts in the first user namespace only: bpf(2) asks there.
func AskCapabilities() error {
	var user unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/user", &user); err == nil && user.Ino != firstUserNS {
		return loadapi.No("the process runs in a user namespace of its own, where the kernel loads no programs for networks")
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return err
	}
	has := func(c int) bool { return data[c/32].Effective>>(c%32)&1 == 1 }
	if has(unix.CAP_SYS_ADMIN) && has(unix.CAP_NET_ADMIN) {
		return nil
	}
	var lacks []string
	if !has(unix.CAP_BPF) {
		lacks = append(lacks, "CAP_BPF")
	}
	if !has(unix.CAP_NET_ADMIN) {
		lacks = append(lacks, "CAP_NET_ADMIN")
	}
	if len(lacks) > 0 {
		return loadapi.No("the process lacks %s: run it as root", strings.Join(lacks, " and "))
	}
	return nil
}

func askJIT() error {
	raw, err := os.ReadFile("/proc/sys/net/core/bpf_jit_enable")
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("not shown in this network namespace")
	}
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(raw)) == "0" {
		return loadapi.No("net.core.bpf_jit_enable is 0")
	}
	return nil
}

// askLockdown reads the mode in brackets, as in "none [integrity] confidentiality".
func askLockdown() error {
	raw, err := os.ReadFile("/sys/kernel/security/lockdown")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if strings.Contains(string(raw), "[confidentiality]") {
		return loadapi.No("lockdown is in confidentiality mode")
	}
	return nil
}

// askFQ makes an fq qdisc, which loads the module where there is one.
func askFQ() error {
	err := rtnl.ProbeQdisc(rtnl.Qdisc{Kind: rtnl.QdiscFQ, Parent: rtnl.ParentRoot, FQ: &rtnl.FQ{}})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return loadapi.No("the kernel has no sch_fq: %v", err)
	}
	return err
}
