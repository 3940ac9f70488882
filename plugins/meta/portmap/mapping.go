// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/ipproto"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// parseMappings reads the mappings in order. The same hostIP, port and protocol
// twice is an error. One that an earlier one covers in other words (an absent
// hostIP, then 0.0.0.0) is accepted and has no effect, as with upstream,
// whose first rule wins.
func (s *settings) parseMappings(in []PortMapping) error {
	seen := make(map[hostport.Key]bool, len(in))
	type asked struct {
		key      hostport.Key
		families int
	}
	before := make(map[asked]int, len(in))
	for i, m := range in {
		v, hostIPs, err := m.parse(i, s.sources)
		if err != nil {
			return err
		}
		v.HostIP = hostIPs[0]
		k := asked{v.Key, len(hostIPs)}
		if first, ok := before[k]; ok {
			return cnierr.Config(keyPath(i, "hostPort"), m.HostPort, "is there with the same hostIP and protocol in "+keyPath(first, "")+" already")
		}
		before[k] = i
		var families []hostport.Mapping
		for _, v.HostIP = range hostIPs {
			if seen[v.Key] {
				s.shadowed = append(s.shadowed, keyPath(i, "")+" "+v.Key.String())
				continue
			}
			seen[v.Key] = true
			families = append(families, v)
		}
		s.mappings = append(s.mappings, families)
	}
	return nil
}

// parse returns the mapping without its addresses, and the host addresses that it is for: one for each family.
func (m PortMapping) parse(i int, sources []netip.Prefix) (v hostport.Mapping, hostIPs []netip.Addr, err error) {
	v.Port, v.PodPort, v.AllowedSources = uint16(m.HostPort), uint16(m.ContainerPort), sources
	if !validPort(m.HostPort) {
		return v, nil, cnierr.Config(keyPath(i, "hostPort"), m.HostPort, "must be 1-65535")
	}
	if !validPort(m.ContainerPort) {
		return v, nil, cnierr.Config(keyPath(i, "containerPort"), m.ContainerPort, "must be 1-65535")
	}
	if v.Proto, err = parseProtocol(keyPath(i, "protocol"), m.Protocol); err != nil {
		return v, nil, err
	}
	if m.AllowedSources != nil {
		if v.AllowedSources, err = parseSources(keyPath(i, "allowedSources"), *m.AllowedSources); err != nil {
			return v, nil, err
		}
	}
	hostIPs, err = parseHostIP(keyPath(i, "hostIP"), m.HostIP)
	return v, hostIPs, err
}

// parseSources reads a list of networks. A bare address is a network of one.
func parseSources(key string, in []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range in {
		p, err := netip.ParsePrefix(s)
		if ip, e := netip.ParseAddr(s); e == nil && ip.Zone() == "" {
			p, err = netip.PrefixFrom(ip, ip.BitLen()), nil
		}
		switch {
		case err != nil:
			return nil, cnierr.Config(key, s, "is not a network, such as 192.0.2.0/24 or 2001:db8::/32")
		case p.Addr().Is4In6():
			return nil, cnierr.Config(key, s, "must be in IPv4 notation")
		case p != p.Masked():
			return nil, cnierr.Config(key, s, "has bits behind its length: "+p.Masked().String()+" is meant?")
		}
		out = append(out, p)
	}
	return out, nil
}

func validPort(p int) bool { return p >= 1 && p <= 65535 }

func parseProtocol(key, value string) (uint8, error) {
	if n := ipproto.Number(strings.ToLower(value)); ipproto.HasPorts(n) {
		return n, nil
	}
	return 0, cnierr.Config(key, value, "must be tcp, udp or sctp")
}

// parseHostIP returns the host addresses a mapping listens on. An absent one
// means every address of both families, as in upstream.
func parseHostIP(key, value string) ([]netip.Addr, error) {
	if value == "" {
		return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}, nil
	}
	ip, err := netip.ParseAddr(value)
	if err != nil {
		return nil, cnierr.Config(key, value, "is not an IP address")
	}
	ip = ip.Unmap()
	switch {
	case ip.Zone() != "":
		return nil, cnierr.Config(key, value, "must not have a zone")
	case ip.IsMulticast():
		return nil, cnierr.Config(key, value, "must not be a multicast address")
	}
	return []netip.Addr{ip}, nil
}

// ports pairs every mapping with the pod's first address of the same family. A
// mapping without one is left out for that family, as in upstream.
func (s *settings) ports(addrs []netip.Prefix) []port {
	var out []port
	for _, m := range slices.Concat(s.mappings...) {
		pod, ok := firstOfFamily(addrs, m.HostIP)
		if !ok {
			continue
		}
		m.PodIP, m.SNAT, m.MasqAll = pod, s.snat, s.snat && s.conf.MasqAll
		if hp, ok := s.withConditions(m); ok {
			out = append(out, hp)
		}
	}
	return out
}

func firstOfFamily(addrs []netip.Prefix, like netip.Addr) (netip.Addr, bool) {
	for _, p := range addrs {
		if p.Addr().Is4() == like.Is4() {
			return p.Addr(), true
		}
	}
	return netip.Addr{}, false
}

// keyPath names a key of one mapping for error messages.
func keyPath(i int, key string) string {
	path := fmt.Sprintf("runtimeConfig.portMappings[%d]", i)
	if key == "" {
		return path
	}
	return path + "." + key
}
