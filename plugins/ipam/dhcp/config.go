// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// DefaultSocketPath is where the daemon listens.
const DefaultSocketPath = "/run/cni/dhcp.sock"

// maxOption is the longest value of an option, bytes (RFC 2132 2).
const maxOption = 255

type config struct {
	cniconf.Common
	IPAM *ipamConfig `json:"ipam"`
}

type ipamConfig struct {
	Type             string          `json:"type"`
	DaemonSocketPath string          `json:"daemonSocketPath"`
	Request          []requestOption `json:"request"`
	Provide          []provideOption `json:"provide"`
	Priority         int             `json:"priority"`
}

// requestOption asks the server for an option. SkipDefault drops the options
// that are asked for otherwise.
type requestOption struct {
	Option      string `json:"option"`
	SkipDefault bool   `json:"skipDefault"`
}

// provideOption tells the server something: a fixed value, or what the key
// FromArg of CNI_ARGS holds, which goes first.
type provideOption struct {
	Option  string `json:"option"`
	Value   string `json:"value"`
	FromArg string `json:"fromArg"`
}

func load(stdin []byte) (*config, error) {
	c := &config{}
	if err := cniconf.Load(stdin, c); err != nil {
		return nil, err
	}
	if c.IPAM == nil {
		return nil, cnierr.New(cnierr.CodeConfig, `missing key "ipam"`, "")
	}
	if c.IPAM.Priority < 0 {
		return nil, cnierr.Config("ipam.priority", c.IPAM.Priority, "a metric is not negative")
	}
	return c, nil
}

func (c *config) socket() string {
	if c.IPAM.DaemonSocketPath == "" {
		return DefaultSocketPath
	}
	return c.IPAM.DaemonSocketPath
}

// optionNames are the names that may stand for an option's number.
var optionNames = map[string]dhcpv4.GenericOptionCode{
	"dhcp-client-identifier":  61,
	"subnet-mask":             1,
	"routers":                 3,
	"host-name":               12,
	"user-class":              77,
	"vendor-class-identifier": 60,
}

func optionCode(key, name string) (dhcpv4.GenericOptionCode, error) {
	if code, ok := optionNames[name]; ok {
		return code, nil
	}
	n, err := strconv.ParseUint(name, 10, 8)
	if err != nil {
		return 0, cnierr.Config(key, name, "it is neither a number from 0 to 255 nor one of the names known")
	}
	return dhcpv4.GenericOptionCode(n), nil
}

// exchangeOptions is what goes into every message to a server.
type exchangeOptions struct {
	request []dhcpv4.OptionCode
	provide []dhcpv4.Option
}

// exchangeOptions reads request and provide; args is CNI_ARGS.
func (c *config) exchangeOptions(args string) (*exchangeOptions, error) {
	o := &exchangeOptions{}
	skip := false
	for i, r := range c.IPAM.Request {
		skip = skip || r.SkipDefault
		if r.Option == "" {
			continue
		}
		code, err := optionCode(fmt.Sprintf("ipam.request[%d].option", i), r.Option)
		if err != nil {
			return nil, err
		}
		o.request = append(o.request, code)
	}
	if !skip {
		o.request = append(o.request, dhcpv4.OptionRouter, dhcpv4.OptionSubnetMask)
	}
	values := splitArgs(args)
	for i, p := range c.IPAM.Provide {
		key := fmt.Sprintf("ipam.provide[%d]", i)
		code, err := optionCode(key+".option", p.Option)
		if err != nil {
			return nil, err
		}
		value, from := p.Value, key+".value"
		if v, ok := values[p.FromArg]; ok && p.FromArg != "" {
			value, from = v, "CNI_ARGS "+p.FromArg
		}
		if len(value) > maxOption {
			return nil, cnierr.Config(from, value, "longer than 255 bytes")
		}
		if value != "" {
			o.provide = append(o.provide, dhcpv4.OptGeneric(code, []byte(value)))
		}
	}
	return o, nil
}

// splitArgs reads CNI_ARGS leniently: whatever key provide names may be there.
func splitArgs(args string) map[string]string {
	values := map[string]string{}
	for pair := range strings.SplitSeq(args, ";") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			values[key] = value
		}
	}
	return values
}

// modifiers apply the options to a message. The client identifier comes first,
// so that a provided one replaces it.
func (o *exchangeOptions) modifiers(id string) []dhcpv4.Modifier {
	m := []dhcpv4.Modifier{
		dhcpv4.WithOption(dhcpv4.OptClientIdentifier(clientIdentifier(id))),
		func(d *dhcpv4.DHCPv4) {
			if len(o.request) > 0 { // else the library's list stays: an empty option 55 is none (RFC 2132 9.8)
				d.UpdateOption(dhcpv4.OptParameterRequestList(slices.Clone(o.request)...))
			}
		},
	}
	for _, p := range o.provide {
		m = append(m, dhcpv4.WithOption(p))
	}
	return m
}

// clientIdentifier is upstream's: type 0 (no hardware address, RFC 2132
// 9.14) and the attachment's name, cut to what the option holds.
func clientIdentifier(id string) []byte {
	b := append([]byte{0}, id...)
	return b[:min(len(b), maxOption)]
}

// clientID names an attachment toward servers and in the daemon's table.
func clientID(containerID, network, ifname string) string {
	return containerID + "/" + network + "/" + ifname
}
