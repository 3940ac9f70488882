// SPDX-License-Identifier: Apache-2.0

// Package cniconf decodes what a runtime sends: the network configuration on
// stdin, prevResult, CNI_ARGS and the list of valid attachments. It is lenient
// where the upstream plugins are (case of keys, unknown keys) and strict where
// leniency hides mistakes. It knows no plugin's keys; of Sluice it imports attachments
// and cnierr.
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
)

// Common holds the keys every plugin has. Embed it in a plugin's configuration.
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
func (c *Common) Version() string { return VersionOrDefault(c.CNIVersion) }

// DefaultVersion is the cniVersion of a configuration without one, as the specification says.
const DefaultVersion = "0.1.0"

// VersionOrDefault returns version, or DefaultVersion if it is empty.
func VersionOrDefault(version string) string {
	if version == "" {
		return DefaultVersion
	}
	return version
}

// Load decodes a network configuration. Keys match in any case and unknown
// keys are ignored, as the upstream plugins do. The error (code 6) names the
// key that does not fit; it never repeats the configuration, which may hold
// secrets.
func Load(stdin []byte, into any) error {
	return cnierr.Decode("network configuration", stdin, into)
}

// LoadCommon is Load for who needs no other keys.
func LoadCommon(stdin []byte) (Common, error) {
	var c Common
	err := Load(stdin, &c)
	return c, err
}

// Awaits reports whether the runtime will give a value by that capability, and has not
// yet: a call that is about no container, such as STATUS, has no runtimeConfig. What
// the configuration says in its place may be a placeholder then.
func Awaits(stdin []byte, containerID, capability string) bool {
	var conf struct {
		Capabilities map[string]bool `json:"capabilities"`
	}
	return containerID == "" && Load(stdin, &conf) == nil && conf.Capabilities[capability]
}

// DecodeSection decodes a part of a configuration that Common keeps raw. what names
// it in the error ("runtimeConfig"). An absent or null section leaves into as
// it is.
func DecodeSection(what string, raw json.RawMessage, into any) error {
	if len(raw) == 0 {
		return nil
	}
	return cnierr.Decode(what, raw, into)
}

// ifNameSz is IFNAMSIZ: names have at most one character less.
const ifNameSz = 16

// IfNameFault is what makes a name unusable for a network device.
type IfNameFault int

// The faults. The kernel's dev_valid_name refuses all but the last. Of a name with
// IfNameTemplate the kernel would make another one ("eth%d"), or one that no tool prints.
const (
	IfNameOK        IfNameFault = iota
	IfNameTooLong               // more than 15 bytes
	IfNameDots                  // "." or ".."
	IfNameSeparator             // has "/", ":" or white space
	IfNameTemplate              // has "%" or a control character
)

// CheckIfName returns what is wrong with s as the name of a new device. It does not check
// that s is not empty.
func CheckIfName(s string) IfNameFault {
	if len(s) >= ifNameSz {
		return IfNameTooLong
	}
	return checkName(s)
}

func checkName(s string) IfNameFault {
	switch {
	case s == "." || s == "..":
		return IfNameDots
	case strings.ContainsAny(s, "/:") || strings.ContainsFunc(s, unicode.IsSpace):
		return IfNameSeparator
	case strings.ContainsRune(s, '%') || strings.ContainsFunc(s, unicode.IsControl):
		return IfNameTemplate
	}
	return IfNameOK
}

// BadIfName says why s cannot name a network device, with an empty answer for a
// name that can.
func BadIfName(s string) string { return CheckIfName(s).why() }

func (f IfNameFault) why() string {
	switch f {
	case IfNameTooLong:
		return "an interface name has at most 15 characters"
	case IfNameDots:
		return "not an interface name"
	case IfNameSeparator, IfNameTemplate:
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
	return checkName(s).why()
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

// StoreArg takes an argument into a string.
func StoreArg(into *string) func(string) error {
	return func(s string) error { *into = s; return nil }
}

// IgnoreArg is for a key that another plugin of the same call reads. An IPAM plugin
// uses it for MAC: it gets the CNI_ARGS of the interface plugin.
func IgnoreArg(string) error { return nil }

func badArg(pair, why string) error {
	return cnierr.New(cnierr.CodeEnvironment, fmt.Sprintf("invalid CNI_ARGS %q: %s", pair, why), "")
}

// KeyValidAttachments is the key of the attachments that a GC must keep. libcni writes it exactly so, in lower case.
const KeyValidAttachments = "cni.dev/valid-attachments"

// AttachmentKeys returns KeyValidAttachments and then its alias, which an early text of the specification used.
func AttachmentKeys() []string { return []string{KeyValidAttachments, "cni.dev/attachments"} }

// AttachmentsMember returns the list of valid attachments of a configuration, and the key that it has there. It reports
// false if there is none.
func AttachmentsMember(stdin []byte) (key string, raw json.RawMessage, ok bool) {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(stdin, &members) // what is no object has no list
	for _, key := range AttachmentKeys() {
		if raw, ok := members[key]; ok {
			return key, raw, true
		}
	}
	return "", nil, false
}

// ValidAttachments returns the attachments a GC must keep. An empty or null
// list means that none is valid. A configuration without the list is an error
// (code 7): to take a missing list for an empty one would delete everything.
func ValidAttachments(stdin []byte) ([]types.GCAttachment, error) {
	key, raw, ok := AttachmentsMember(stdin)
	if !ok {
		var object map[string]json.RawMessage
		if err := Load(stdin, &object); err != nil {
			return nil, err
		}
		return nil, cnierr.New(cnierr.CodeConfig, "missing key \""+KeyValidAttachments+"\": nothing is removed without it", "")
	}
	var list []types.GCAttachment
	if err := cnierr.Decode(key, raw, &list); err != nil {
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
