// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/ipproto"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// conditions are conditionsV4 or conditionsV6, parsed for eBPF.
type conditions struct {
	match hostport.Conditions
	proto string // the mappings that the conditions leave: "tcp", "udp", "sctp"; "" and "all" for every one
	// unknown says why eBPF cannot check the conditions (code 2). match and proto
	// mean nothing then.
	unknown error
}

// parseConditions reads the words under a key. is4 says which family the
// addresses must be of.
func parseConditions(key string, words []string, is4 bool) conditions {
	match, proto, err := parseMatch(words, is4)
	if err != nil {
		return conditions{unknown: cnierr.Unsupported(key, words, "the ebpf backend knows -s, -d, -i and -p: "+err.Error())}
	}
	return conditions{match: match, proto: proto}
}

// withConditions puts the conditions into a port, with the reason why eBPF cannot
// publish it, if there is one. It reports false if the conditions leave out all
// packets of the port's protocol.
func (s *settings) withConditions(hp hostport.Mapping) (port, bool) {
	c := s.conditions[1]
	if hp.PodIP.Is4() {
		c = s.conditions[0]
	}
	switch {
	case hp.Proto == unix.IPPROTO_SCTP && hp.Port != hp.PodPort:
		return port{hp, cnierr.Unsupported("runtimeConfig.portMappings[].containerPort", hp.PodPort,
			"of protocol sctp must be the hostPort with the ebpf backend: SCTP's checksum covers its ports")}, c.includes(hp.Proto)
	case c.unknown != nil:
		return port{hp, c.unknown}, true
	}
	hp.Conditions = c.match
	return port{Mapping: hp}, c.includes(hp.Proto)
}

// includes reports whether packets of a protocol can meet the conditions.
func (c conditions) includes(proto uint8) bool {
	return c.unknown != nil || c.proto == "" || c.proto == "all" || c.proto == ipproto.Name(proto)
}

// parseMatch reads conditions in the words of iptables(8) that the eBPF backend
// knows: -s, -d and -i with their long forms, each at most once and each with
// "!" before it or not. It understands -p too, which mappings of that protocol
// meet. The error names the word that is not understood.
func parseMatch(words []string, is4 bool) (m hostport.Conditions, proto string, err error) {
	seen := make(map[string]bool)
	for len(words) > 0 {
		not := words[0] == "!"
		if not {
			words = words[1:]
		}
		if len(words) < 2 {
			return m, "", fmt.Errorf("%q has no value", strings.Join(words, " "))
		}
		option, value := long(words[0]), words[1]
		words = words[2:]
		if seen[option] {
			return m, "", fmt.Errorf("%q is there twice", option)
		}
		seen[option] = true
		switch option {
		case "--source":
			m.NotSource = not
			m.Source, err = parseNet(value, is4)
		case "--destination":
			m.NotDest = not
			m.Dest, err = parseNet(value, is4)
		case "--in-interface":
			m.NotIn, m.InDevice = not, value
			if strings.HasSuffix(value, "+") {
				err = fmt.Errorf("%q is more than one device", value)
			}
		case "--protocol":
			switch proto = strings.ToLower(value); {
			case not:
				err = errors.New(`"! -p" is not understood`)
			case !slices.Contains([]string{"tcp", "udp", "sctp", "all"}, proto):
				err = fmt.Errorf("protocol %q is not understood", value)
			}
		default:
			err = fmt.Errorf("%q is not understood", option)
		}
		if err != nil {
			return m, "", err
		}
	}
	return m, proto, nil
}

func long(option string) string {
	switch option {
	case "-s", "--src":
		return "--source"
	case "-d", "--dst":
		return "--destination"
	case "-i":
		return "--in-interface"
	case "-p":
		return "--protocol"
	}
	return option
}

// parseNet reads an address, an address with a length, or, for IPv4, with a mask.
func parseNet(s string, is4 bool) (netip.Prefix, error) {
	addr, mask, has := strings.Cut(s, "/")
	ip, err := netip.ParseAddr(addr)
	if err != nil || ip.Is4() != is4 {
		return netip.Prefix{}, fmt.Errorf("%q is not one network of the family", s)
	}
	if !has {
		return netip.PrefixFrom(ip, ip.BitLen()), nil
	}
	if m := net.ParseIP(mask).To4(); m != nil && is4 {
		ones, bits := net.IPMask(m).Size()
		if bits == 0 {
			return netip.Prefix{}, fmt.Errorf("%q is no mask of a network", mask)
		}
		return netip.PrefixFrom(ip, ones).Masked(), nil
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is not a network", s)
	}
	return p.Masked(), nil
}
