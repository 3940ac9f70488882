// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// mapping is a valid PortMapping. hostIPs holds one address per family it may
// serve; an unspecified one stands for every address of the node.
type mapping struct {
	hostIPs  []netip.Addr
	proto    uint8
	hostPort uint16
	podPort  uint16
}

// mappingKey is what can be published only once.
type mappingKey struct {
	hostIP netip.Addr
	proto  uint8
	port   uint16
}

func parseMappings(in []PortMapping) ([]mapping, error) {
	out := make([]mapping, 0, len(in))
	seen := make(map[mappingKey]int, len(in))
	for i, m := range in {
		v, err := m.parse(i)
		if err != nil {
			return nil, err
		}
		for _, ip := range v.hostIPs {
			k := mappingKey{ip, v.proto, v.hostPort}
			if first, dup := seen[k]; dup {
				return nil, cnierr.Config(keyPath(i, ""), k.String(),
					fmt.Sprintf("is already published by runtimeConfig.portMappings[%d]", first))
			}
			seen[k] = i
		}
		out = append(out, v)
	}
	return out, nil
}

func (m PortMapping) parse(i int) (mapping, error) {
	v := mapping{hostPort: uint16(m.HostPort), podPort: uint16(m.ContainerPort)}
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
	v.hostIPs, err = parseHostIP(keyPath(i, "hostIP"), m.HostIP)
	return v, err
}

func validPort(p int) bool { return p >= 1 && p <= 65535 }

func parseProtocol(key, value string) (uint8, error) {
	switch strings.ToLower(value) {
	case "tcp":
		return unix.IPPROTO_TCP, nil
	case "udp":
		return unix.IPPROTO_UDP, nil
	case "sctp":
		return 0, cnierr.Unsupported(key, value, "the ebpf back end does not translate SCTP yet")
	}
	return 0, cnierr.Config(key, value, "must be tcp or udp")
}

// parseHostIP returns the host addresses a mapping listens on. An absent one
// means every address of both families, as in the reference.
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
	case ip.IsLoopback():
		return nil, cnierr.Unsupported(key, value, "connections of the host's own processes are not translated yet")
	}
	return []netip.Addr{ip}, nil
}

// ports pairs every mapping with the pod's first address of the same family. A
// mapping without one is left out for that family, as in the reference.
func (r *request) ports(addrs []netip.Prefix) []loader.HostPort {
	var out []loader.HostPort
	for _, m := range r.mappings {
		for _, host := range m.hostIPs {
			pod, ok := firstOfFamily(addrs, host)
			if !ok {
				continue
			}
			out = append(out, loader.HostPort{
				HostIP: host, Proto: m.proto, Port: m.hostPort,
				PodIP: pod, PodPort: m.podPort, SNAT: r.snat,
			})
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

func (k mappingKey) String() string {
	proto := "tcp"
	if k.proto == unix.IPPROTO_UDP {
		proto = "udp"
	}
	return netip.AddrPortFrom(k.hostIP, k.port).String() + "/" + proto
}

// keyPath names a key of one mapping for error messages.
func keyPath(i int, key string) string {
	path := fmt.Sprintf("runtimeConfig.portMappings[%d]", i)
	if key == "" {
		return path
	}
	return path + "." + key
}
