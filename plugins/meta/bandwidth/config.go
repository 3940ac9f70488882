// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"math"
	"net/netip"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// Rates are the four keys of the upstream plugin, in bits a second and bits. A
// pointer tells an absent key from zero.
type Rates struct {
	IngressRate  *uint64 `json:"ingressRate"`
	IngressBurst *uint64 `json:"ingressBurst"`
	EgressRate   *uint64 `json:"egressRate"`
	EgressBurst  *uint64 `json:"egressBurst"`
}

func (r *Rates) any() bool {
	return r.IngressRate != nil || r.IngressBurst != nil || r.EgressRate != nil || r.EgressBurst != nil
}

// Subnets say whose traffic is limited, by the address of the other end.
type Subnets struct {
	UnshapedSubnets []string `json:"unshapedSubnets"`
	ShapedSubnets   []string `json:"shapedSubnets"`
}

// Limits are what the bandwidth capability brings.
type Limits struct {
	Rates
	Subnets
}

// Conf is the plugin's configuration, keys as the upstream plugin has them;
// backend is Sluice's.
type Conf struct {
	cniconf.Common
	Rates
	Subnets

	Backend       string `json:"backend"`
	RuntimeConfig struct {
		Bandwidth Limits `json:"bandwidth"`
	} `json:"runtimeConfig"`
}

// request is a Conf that has been found valid.
type request struct {
	conf    *Conf
	backend string // auto, edt or tbf
	rates   *Rates // those that count

	ingress, egress *Limit   // nil: not limited
	noBurst         []string // keys of bursts that were derived, without those that every kubelet sends
	subnets         subnets
}

func (r *request) nothing() bool { return r.ingress == nil && r.egress == nil }

// subnets are the networks that a limit is for, or not for.
type subnets struct {
	Shaped   []netip.Prefix `json:"shaped,omitempty"`
	Unshaped []netip.Prefix `json:"unshaped,omitempty"`
}

func (s subnets) none() bool { return len(s.Shaped) == 0 && len(s.Unshaped) == 0 }

// parse decodes stdin and validates every key, so that nothing can be refused
// after the first effect. nodeDefault is the node's backend. Errors are CNI
// errors of code 6 or 7 that name key and value.
func parse(stdin []byte, nodeDefault string) (*request, error) {
	conf := &Conf{}
	if err := cniconf.Load(stdin, conf); err != nil {
		return nil, err
	}
	r := &request{conf: conf, backend: conf.Backend}
	if r.backend == "" {
		r.backend = nodeDefault
	}
	switch r.backend {
	case "", BackendAuto:
		r.backend = BackendAuto
	case BackendEDT, BackendTBF:
	default:
		return nil, cnierr.Config("backend", conf.Backend, "must be auto, edt or tbf")
	}
	// As upstream: one static key hides all of the runtime's.
	rates, where := &conf.Rates, ""
	if !rates.any() {
		rates, where = &conf.RuntimeConfig.Bandwidth.Rates, "runtimeConfig.bandwidth."
	}
	r.rates = rates
	fromRuntime := where != ""
	var err error
	if r.ingress, err = newLimit(where+"ingress", rates.IngressRate, rates.IngressBurst); err != nil {
		return nil, err
	}
	if r.egress, err = newLimit(where+"egress", rates.EgressRate, rates.EgressBurst); err != nil {
		return nil, err
	}
	for _, d := range []struct {
		key   string
		limit *Limit
		burst *uint64
	}{{where + "ingressBurst", r.ingress, rates.IngressBurst}, {where + "egressBurst", r.egress, rates.EgressBurst}} {
		// A kubelet has no burst to send, and sends the largest number with each pod.
		if d.limit != nil && d.limit.Derived && (!fromRuntime || deref(d.burst) < bitsPerByte) {
			r.noBurst = append(r.noBurst, d.key)
		}
	}
	r.subnets, err = conf.subnets()
	return r, err
}

// subnets validates the networks: those of the configuration, else the runtime's.
func (c *Conf) subnets() (subnets, error) {
	from, where := c.Subnets, ""
	if from.UnshapedSubnets == nil && from.ShapedSubnets == nil {
		from, where = c.RuntimeConfig.Bandwidth.Subnets, "runtimeConfig.bandwidth."
	}
	if len(from.UnshapedSubnets) > 0 && len(from.ShapedSubnets) > 0 {
		return subnets{}, cnierr.Config(where+"unshapedSubnets", from.UnshapedSubnets, "cannot be used together with shapedSubnets")
	}
	unshaped, err := prefixes(where+"unshapedSubnets", from.UnshapedSubnets)
	if err != nil {
		return subnets{}, err
	}
	shaped, err := prefixes(where+"shapedSubnets", from.ShapedSubnets)
	return subnets{Shaped: shaped, Unshaped: unshaped}, err
}

// maxSubnets bounds the filters and map entries that one attachment takes.
const maxSubnets = 256

func prefixes(key string, cidrs []string) ([]netip.Prefix, error) {
	if len(cidrs) > maxSubnets {
		return nil, cnierr.Config(key, len(cidrs), "at most 256 networks")
	}
	var out []netip.Prefix
	for _, s := range cidrs {
		p, err := netip.ParsePrefix(s)
		if err != nil || p.Addr().Is4In6() {
			return nil, cnierr.Config(key, s, "not a CIDR")
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// Limit is one direction's, in bytes. Burst is never 0.
type Limit struct {
	Rate    uint64 `json:"rate"`              // bytes a second
	Burst   uint32 `json:"burst"`             // bytes that may pass at once after a pause
	Derived bool   `json:"derived,omitempty"` // Burst was not given, or stood for "no value"
}

// noBurst says whether a burst in bits is no wish: absent, or what kubelets and
// runtimes send that know only a rate, the biggest number of some type, or the
// biggest that upstream accepts.
func noBurst(bits uint64) bool {
	return bits < bitsPerByte || bits == math.MaxInt32 || bits == math.MaxUint32 || bits == maxBurstBits
}

const (
	bitsPerByte = 8
	// maxBurstBits is what CRI-O sends with every rate.
	maxBurstBits = math.MaxUint32*bitsPerByte - 1
	// derivedTime is the length of a derived burst, in microseconds.
	derivedTime = 10_000
	// minBurst lets an Ethernet frame of any usual MTU pass a token bucket.
	minBurst = 16 << 10
)

// newLimit reads one direction, nil when it is not limited. key is "ingress" or
// "egress", with what stands before it.
func newLimit(key string, rate, burst *uint64) (*Limit, error) {
	r, b := deref(rate), deref(burst)
	switch {
	case r == 0 && b == 0:
		return nil, nil // not limited is an answer
	case r == 0:
		return nil, cnierr.Config(key+"Burst", b, "a burst without "+key+"Rate")
	case r < bitsPerByte:
		return nil, cnierr.Config(key+"Rate", r, "bits a second, at least 8")
	case b/bitsPerByte >= math.MaxUint32:
		return nil, cnierr.Config(key+"Burst", b, "more than 4 GB")
	}
	l := &Limit{Rate: r / bitsPerByte, Burst: uint32(b / bitsPerByte)}
	if noBurst(b) {
		l.Burst, l.Derived = deriveBurst(l.Rate), true
	}
	return l, nil
}

// deriveBurst is what passes in 10 ms, and a few frames at least.
func deriveBurst(rate uint64) uint32 {
	n := rate / 1e6 * derivedTime
	if rate < 1<<40 {
		n = rate * derivedTime / 1e6
	}
	return uint32(min(max(n, minBurst), math.MaxUint32/2))
}

func deref(v *uint64) uint64 {
	if v == nil {
		return 0
	}
	return *v
}
