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

// mapping is a valid PortMapping. hostIPs holds one address per family it may
// serve; an unspecified one stands for every address of the node.
type mapping struct {
	hostIPs  []netip.Addr
	proto    uint8
	hostPort uint16
	podPort  uint16
	sources  []netip.Prefix // who may connect; empty: everybody
}

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
		v, err := m.parse(i, s.sources)
		if err != nil {
			return err
		}
		k := asked{hostport.Key{HostIP: v.hostIPs[0], Proto: v.proto, Port: v.hostPort}, len(v.hostIPs)}
		if first, ok := before[k]; ok {
			return cnierr.Config(keyPath(i, "hostPort"), m.HostPort, "is there with the same hostIP and protocol in "+keyPath(first, "")+" already")
		}
		before[k] = i
		v.hostIPs = slices.DeleteFunc(v.hostIPs, func(ip netip.Addr) bool {
			k := hostport.Key{HostIP: ip, Proto: v.proto, Port: v.hostPort}
			if seen[k] {
				s.shadowed = append(s.shadowed, keyPath(i, "")+" "+k.String())
			}
			had := seen[k]
			seen[k] = true
			return had
		})
		s.mappings = append(s.mappings, v)
	}
	return nil
}

func (m PortMapping) parse(i int, sources []netip.Prefix) (mapping, error) {
	v := mapping{hostPort: uint16(m.HostPort), podPort: uint16(m.ContainerPort), sources: sources}
	if !validPort(m.HostPort) {
		return v, cnierr.Config(keyPath(i, "hostPort"), m.HostPort, "must be 1-65535")
	}
	if !validPort(m.ContainerPort) {
		return v, cnierr.Config(keyPath(i, "containerPort"), m.ContainerPort, "must be 1-65535")
	}
	var err error
	if v.proto, err = parseProtocol(keyPath(i, "protocol"), m.Protocol); err != nil {
		return v, err
	}
	if m.AllowedSources != nil {
		if v.sources, err = parseSources(keyPath(i, "allowedSources"), *m.AllowedSources); err != nil {
			return v, err
		}
	}
	v.hostIPs, err = parseHostIP(keyPath(i, "hostIP"), m.HostIP)
	return v, err
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
	for _, m := range s.mappings {
		for _, host := range m.hostIPs {
			pod, ok := firstOfFamily(addrs, host)
			if !ok {
				continue
			}
			hp, ok := s.withConditions(hostport.Mapping{
				Key: hostport.Key{HostIP: host, Proto: m.proto, Port: m.hostPort}, PodIP: pod, PodPort: m.podPort,
				SNAT: s.snat, MasqAll: s.snat && s.conf.MasqAll, AllowedSources: m.sources,
			})
			if ok {
				out = append(out, hp)
			}
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
