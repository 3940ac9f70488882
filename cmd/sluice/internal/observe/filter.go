// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/time/rate"

	"github.com/sluice-cni/sluice/pkg/flowevent"
)

// Filter chooses events: each field that has values must have one that matches. Lost events pass all filters.
type Filter struct {
	Pods     []string // an address, "namespace/beginning of a name", or the beginning of a container ID
	Networks []netip.Prefix
	Ports    []uint16
	Protos   []string
	Verdicts []string
	Reasons  []string // of drops
}

// Matches reports whether e is shown.
func (f *Filter) Matches(e *flowevent.Event) bool {
	if e.Event == flowevent.Lost {
		return true
	}
	return one(f.Pods, func(pod string) bool { return matchesPod(pod, e) }) &&
		one(f.Networks, func(p netip.Prefix) bool { return containsAny(p, e) }) &&
		one(f.Ports, func(port uint16) bool {
			return port == e.Source.Port() || port == e.Destination.Port() || e.Outside.IsValid() && port == e.Outside.Port()
		}) &&
		one(f.Protos, func(proto string) bool { return proto == e.Proto }) &&
		one(f.Verdicts, func(v string) bool { return v == e.Verdict }) &&
		one(f.Reasons, func(r string) bool { return e.Event == flowevent.Dropped && r == e.Reason })
}

// one reports whether one of values matches, or whether there is none.
func one[T comparable](values []T, match func(T) bool) bool {
	return len(values) == 0 || slices.ContainsFunc(values, match)
}

func containsAny(p netip.Prefix, e *flowevent.Event) bool {
	return p.Contains(e.Source.Addr()) || p.Contains(e.Destination.Addr()) || e.Outside.IsValid() && p.Contains(e.Outside.Addr())
}

func matchesPod(pod string, e *flowevent.Event) bool {
	if ip, err := netip.ParseAddr(pod); err == nil {
		return ip.Unmap() == e.Source.Addr() || ip.Unmap() == e.Destination.Addr()
	}
	if e.Pod == nil {
		return false
	}
	if namespace, name, ok := strings.Cut(pod, "/"); ok {
		return e.Pod.Namespace != "" && namespace == e.Pod.Namespace && strings.HasPrefix(e.Pod.Name, name)
	}
	return e.Pod.ContainerID != "" && strings.HasPrefix(e.Pod.ContainerID, pod)
}

// newLimit lets so many events a second pass, and as many at once; 0: all.
func newLimit(perSecond uint) *rate.Limiter {
	if perSecond == 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(perSecond), int(perSecond)) // far below 2^63
}
