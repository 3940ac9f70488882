// SPDX-License-Identifier: Apache-2.0

// Package cniconf decodes what a runtime sends: the network configuration on
// stdin, prevResult, CNI_ARGS and the list of valid attachments. It is lenient
// where the reference plugins are (case of keys, unknown keys) and strict where
// leniency hides mistakes. It knows no plugin's keys; of ours it imports cnierr,
// keys and store.
package cniconf

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/jsonobj"
)

//go:generate go run ../jsonobj/gen

// Common holds the keys every plugin has. Embed it in a plugin's configuration.
//
//jsonobj:object
type Common struct {
	CNIVersion    string          `json:"cniVersion,omitempty"`
	Name          string          `json:"name,omitempty"`
	Type          string          `json:"type,omitempty"`
	RawPrevResult json.RawMessage `json:"prevResult,omitempty"`
	RuntimeConfig json.RawMessage `json:"runtimeConfig,omitempty"`
	Args          json.RawMessage `json:"args,omitempty"`
}

// Version returns the configuration's CNI version; absent means 0.1.0, as the
// specification says.
func (c *Common) Version() string { return orFirst(c.CNIVersion) }

func orFirst(version string) string {
	if version == "" {
		return "0.1.0"
	}
	return version
}

// Load decodes a network configuration. Keys match in any case and unknown
// keys are ignored, as the reference plugins do. The error (code 6) names the
// key that does not fit; it never repeats the configuration, which may hold
// secrets.
func Load(stdin []byte, into any) error {
	return jsonobj.Decode("network configuration", stdin, into)
}

// LoadCommon is Load for who needs no other keys.
func LoadCommon(stdin []byte) (Common, error) {
	var c Common
	err := Load(stdin, &c)
	return c, err
}

// Section decodes a part of a configuration that Common keeps raw. what names
// it in the error ("runtimeConfig"). An absent or null section leaves into as
// it is.
func Section(what string, raw json.RawMessage, into any) error {
	if len(raw) == 0 {
		return nil
	}
	return jsonobj.Decode(what, raw, into)
}

// ifNameSz is IFNAMSIZ: names have at most one character less.
const ifNameSz = 16

// BadIfName says why s cannot name a network device, with an empty answer for a
// name that can.
func BadIfName(s string) string {
	if len(s) >= ifNameSz {
		return "an interface name has at most 15 characters"
	}
	return badName(s)
}

func badName(s string) string {
	switch {
	case s == "." || s == "..":
		return "not an interface name"
	case strings.ContainsFunc(s, func(c rune) bool {
		return c == '/' || c == ':' || c == '%' || unicode.IsSpace(c) || unicode.IsControl(c)
	}):
		return "an interface name has no slash, colon, percent sign, white space or control character"
	}
	return ""
}

// altIfNameSz is ALTIFNAMSIZ: the size of a device's alternative names.
const altIfNameSz = 128

// BadLinkName is BadIfName for the name of a device that exists, which may be
// one of its alternative names.
func BadLinkName(s string) string {
	if len(s) >= altIfNameSz {
		return "an interface name has at most 15 characters, an alternative one 127"
	}
	return badName(s)
}

// ParseMAC parses the hardware address of an Ethernet interface given under a
// key. An address the kernel would refuse (multicast, all zero, not 6 bytes)
// is an error with code 7 that names the key.
func ParseMAC(key, s string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(s)
	switch {
	case err != nil:
		return nil, cnierr.Config(key, s, "not a MAC address")
	case len(mac) != 6:
		return nil, cnierr.Config(key, s, "an Ethernet address has 6 bytes")
	case mac[0]&1 != 0:
		return nil, cnierr.Config(key, s, "a multicast address cannot be an interface's own")
	case mac.String() == "00:00:00:00:00:00":
		return nil, cnierr.Config(key, s, "all zero is no address")
	}
	return mac, nil
}

// ParseArgs parses CNI_ARGS ("K=V;K=V") and hands the value of each known key
// to its function. Keys match exactly. An unknown key is an error unless
// IgnoreUnknown is given and true; a pair without exactly one "=" always is.
// Errors have code 4 and name key and value.
func ParseArgs(args string, known map[string]func(string) error) error {
	if args == "" {
		return nil
	}
	ignore := false
	var unknown []string
	for _, pair := range strings.Split(args, ";") {
		kv := strings.Split(pair, "=")
		if len(kv) != 2 {
			return badArg(pair, "not of the form KEY=VALUE")
		}
		if kv[0] == "IgnoreUnknown" {
			var b types.UnmarshallableBool
			if err := b.UnmarshalText([]byte(kv[1])); err != nil {
				return badArg(pair, "not a boolean")
			}
			ignore = bool(b)
			continue
		}
		set, ok := known[kv[0]]
		if !ok {
			unknown = append(unknown, pair)
			continue
		}
		if err := set(kv[1]); err != nil {
			return badArg(pair, cnierr.From(err).Error())
		}
	}
	if len(unknown) > 0 && !ignore {
		return badArg(strings.Join(unknown, ";"), "unknown key, and IgnoreUnknown is not set")
	}
	return nil
}

// Elsewhere is for a key that another plugin of the same call reads, as MAC for
// an IPAM plugin, which gets the interface plugin's CNI_ARGS.
func Elsewhere(string) error { return nil }

func badArg(pair, why string) error {
	return cnierr.New(cnierr.CodeEnvironment, fmt.Sprintf("invalid CNI_ARGS %q: %s", pair, why), "")
}

// ValidAttachments returns the attachments a GC must keep. An empty or null
// list means that none is valid. A configuration without the list is an error
// (code 7): to take a missing list for an empty one would delete everything.
// The key "cni.dev/attachments", which an early specification text used, is
// read when the right one is absent.
func ValidAttachments(stdin []byte) ([]types.GCAttachment, error) {
	var all map[string]json.RawMessage
	if err := Load(stdin, &all); err != nil {
		return nil, err
	}
	for _, key := range []string{"cni.dev/valid-attachments", "cni.dev/attachments"} {
		raw, ok := all[key]
		if !ok {
			continue
		}
		var list []types.GCAttachment
		if err := jsonobj.Decode(key, raw, &list); err != nil {
			return nil, err
		}
		for i, a := range list {
			if a.ContainerID == "" {
				return nil, cnierr.Config(fmt.Sprintf("%s[%d].containerID", key, i), "", "every attachment has one")
			}
			if a.IfName == "" { // or none of the container's would be kept
				return nil, cnierr.Config(fmt.Sprintf("%s[%d].ifname", key, i), "", "every attachment has one")
			}
		}
		return list, nil
	}
	return nil, cnierr.New(cnierr.CodeConfig, `missing key "cni.dev/valid-attachments": nothing is removed without it`, "")
}

// ValidRefs are the ValidAttachments as the names of records of that network.
func ValidRefs(stdin []byte, network string) (map[attachments.ID]bool, error) {
	list, err := ValidAttachments(stdin)
	if err != nil {
		return nil, err
	}
	valid := make(map[attachments.ID]bool, len(list))
	for _, v := range list {
		valid[attachments.ID{Network: network, ContainerID: v.ContainerID, IfName: v.IfName}] = true
	}
	return valid, nil
}
