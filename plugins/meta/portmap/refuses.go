// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// refuses says why the eBPF back end cannot do a mapping; nil if it can.
func (c *Conf) refuses(hp loader.HostPort) error {
	if hp.Proto == unix.IPPROTO_SCTP && hp.Port != hp.PodPort {
		return cnierr.Unsupported("runtimeConfig.portMappings[].containerPort", hp.PodPort,
			"of protocol sctp must be the hostPort with the ebpf back end: SCTP's checksum covers its ports")
	}
	key, words := c.conditions(hp.PodIP)
	if _, _, err := matches(words, hp.PodIP.Is4()); err != nil {
		return cnierr.Unsupported(key, words, "the ebpf back end knows -s, -d, -i and -p: "+err.Error())
	}
	return nil
}

// conditions returns the words for a family, with their key.
func (c *Conf) conditions(of netip.Addr) (string, []string) {
	if of.Is4() {
		return "conditionsV4", c.ConditionsV4
	}
	return "conditionsV6", c.ConditionsV6
}

// narrowed puts the conditions into a mapping. False: they cannot be met by a
// mapping of its protocol.
func (c *Conf) narrowed(hp loader.HostPort) (loader.HostPort, bool) {
	_, words := c.conditions(hp.PodIP)
	m, proto, err := matches(words, hp.PodIP.Is4())
	if err != nil {
		return hp, true // see refuses
	}
	hp.Match = m
	return hp, proto == "" || proto == "all" || proto == protoName(hp.Proto)
}

func protoName(proto uint8) string {
	switch proto {
	case unix.IPPROTO_UDP:
		return "udp"
	case unix.IPPROTO_SCTP:
		return "sctp"
	}
	return "tcp"
}
