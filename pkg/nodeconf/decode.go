// SPDX-License-Identifier: Apache-2.0

package nodeconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// set decodes one key of the file, checks its value and puts it into c. The bool is false for an unknown key.
func set(c *Config, key string, raw json.RawMessage) (bool, error) {
	switch key {
	case "firewallBackend":
		return true, oneOf(raw, &c.Firewall, BackendAuto, BackendEBPF, BackendNFTables, BackendIPTables, BackendFirewalld)
	case "iptablesVariant":
		return true, oneOf(raw, &c.IPTables, VariantAuto, VariantNFT, VariantLegacy)
	case "backend":
		return true, oneOf(raw, &c.Backend, BackendAuto, BackendEBPF, BackendNFTables, BackendIPTables)
	case "bandwidthBackend":
		return true, oneOf(raw, &c.Bandwidth, BandwidthAuto, BandwidthEDT, BandwidthTBF)
	case "fastPath":
		return true, oneOf(raw, &c.FastPath, FastPathEstablished, FastPathImmediate, FastPathOff)
	case "relearnSeconds":
		return true, setRelearn(c, raw)
	case "attach":
		return true, oneOf(raw, &c.Attach, AttachAuto, AttachTCX, AttachClsact)
	case "antiSpoof":
		return true, decode(raw, &c.AntiSpoof)
	case "uplinks":
		return true, setUplinks(c, raw)
	case "firewallMark":
		return true, setAdmitMark(c, raw)
	case "snatPorts":
		return true, setSNATPorts(c, raw)
	case "nonMasqueradeCIDRs":
		return true, setNonMasquerade(c, raw)
	case "mapSizes":
		return true, setMapSizes(c, raw)
	case "hostPortsPerAttachment":
		return true, setPerAttachment(&c.HostPortsPerAttachment, raw)
	case "hostPortConflicts":
		return true, oneOf(raw, &c.HostPortConflicts, ConflictsAllow, ConflictsWarn, ConflictsRefuse)
	case "allowedSourcesPerAttachment":
		return true, setPerAttachment(&c.AllowedSourcesPerAttachment, raw)
	case "bpffs":
		return true, setBPFFS(c, raw)
	case "cgroupRoot":
		return true, setCgroupRoot(c, raw)
	case "log":
		return true, setLog(c, raw)
	}
	return false, nil
}

// decode is json.Unmarshal that refuses unknown members and says what it wanted in the reader's words.
func decode(raw json.RawMessage, into any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) {
		return fmt.Errorf("want %s, got %s", wrong.Type, wrong.Value)
	}
	return err
}

func oneOf[T ~string](raw json.RawMessage, into *T, allowed ...T) error {
	var v T
	if err := decode(raw, &v); err != nil {
		return err
	}
	if !slices.Contains(allowed, v) {
		return fmt.Errorf("want one of %v", allowed)
	}
	*into = v
	return nil
}

// maxRelearn is the idle time of an established TCP connection: no entry lives longer without a packet.
const maxRelearn = 86400

func setRelearn(c *Config, raw json.RawMessage) error {
	var v uint32
	if err := decode(raw, &v); err != nil {
		return err
	}
	if v > maxRelearn {
		return fmt.Errorf("want 0 (never) to %d", maxRelearn)
	}
	c.Relearn = v
	return nil
}

func setUplinks(c *Config, raw json.RawMessage) error {
	var names []string
	if err := decode(raw, &names); err != nil {
		return err
	}
	for i, n := range names {
		// The kernel's own rule for names, dev_valid_name. It allows control characters, which belong in no log.
		bad := func(c rune) bool {
			return c == '/' || c == ':' || c == utf8.RuneError || unicode.IsSpace(c) || unicode.IsControl(c)
		}
		if n == "" || len(n) > 15 || n == "." || n == ".." || strings.ContainsFunc(n, bad) {
			return fmt.Errorf("%q is not the name of a network device", n)
		}
		if slices.Contains(names[:i], n) {
			return fmt.Errorf("%q is named twice", n)
		}
	}
	c.Uplinks = names
	return nil
}

// setAdmitMark takes a number or a string such as "0x1000".
func setAdmitMark(c *Config, raw json.RawMessage) error {
	var s string
	if err := decode(raw, &s); err != nil {
		s = string(raw)
	}
	v, err := strconv.ParseUint(s, 0, 32)
	if err != nil {
		return errors.New("want a 32-bit number, such as \"0x1000\"")
	}
	c.AdmitMark = uint32(v)
	return nil
}

func setSNATPorts(c *Config, raw json.RawMessage) error {
	var s string
	if err := decode(raw, &s); err != nil {
		return err
	}
	ranges, err := ParsePorts(s)
	if err != nil {
		return err
	}
	if len(ranges) > 2 {
		return errors.New("at most two ranges")
	}
	c.SNATPorts = ranges
	return nil
}

// ParsePorts reads a list such as "61000-65535,8080": ports and inclusive ranges separated by commas, in the given order,
// none of them overlapping. An empty string is an error; port 0 is none.
func ParsePorts(s string) ([]PortRange, error) {
	var ranges []PortRange
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, errA := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
		b, errB := strconv.ParseUint(strings.TrimSpace(last), 10, 16)
		if errA != nil || errB != nil || a == 0 || a > b {
			return nil, fmt.Errorf("%q is not a range of ports", part)
		}
		r := PortRange{First: uint16(a), Last: uint16(b)}
		for _, o := range ranges {
			if r.First <= o.Last && o.First <= r.Last {
				return nil, fmt.Errorf("%s overlaps %s", r, o)
			}
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// maxNonMasquerade is what the map sl_nomasq_cidrs has room for (bpf/lib/endpoint/endpoint_maps.h).
const maxNonMasquerade = 1024

func setNonMasquerade(c *Config, raw json.RawMessage) error {
	var cidrs []string
	if err := decode(raw, &cidrs); err != nil {
		return err
	}
	if len(cidrs) > maxNonMasquerade {
		return fmt.Errorf("at most %d networks", maxNonMasquerade)
	}
	out := make([]netip.Prefix, 0, len(cidrs))
	for _, s := range cidrs {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return fmt.Errorf("%q is not a CIDR", s)
		}
		if p.Addr().Is4In6() {
			return fmt.Errorf("%q: write IPv4 networks in IPv4 notation", s)
		}
		if p.Masked() != p {
			return fmt.Errorf("%q has bits beyond its prefix length: did you mean %s?", s, p.Masked())
		}
		out = append(out, p)
	}
	c.NonMasqueradeCIDRs = out
	return nil
}

// maxMapEntries keeps a slip of the keyboard from locking gigabytes: an entry of the largest map is about 200 bytes.
const maxMapEntries = 1 << 23

func setMapSizes(c *Config, raw json.RawMessage) error {
	var m MapSizes
	if err := decode(raw, &m); err != nil {
		return err
	}
	for _, s := range []struct {
		key string
		n   uint32
	}{{"conntrack", m.Conntrack}, {"conntrackUnassured", m.ConntrackUnassured}, {"endpoints", m.Endpoints}, {"hostPorts", m.HostPorts}, {"networkPolicy", m.NetworkPolicy}} {
		if s.n != 0 && (s.n < 64 || s.n > maxMapEntries) { // 0 is the loader's default
			return fmt.Errorf("%s: want 64 to %d", s.key, maxMapEntries)
		}
	}
	c.MapSizes = m
	return nil
}

func setPerAttachment(to *int, raw json.RawMessage) error {
	var n int
	if err := decode(raw, &n); err != nil {
		return err
	}
	if n < 1 || n > maxMapEntries {
		return fmt.Errorf("want 1 to %d", maxMapEntries)
	}
	*to = n
	return nil
}

func setBPFFS(c *Config, raw json.RawMessage) error {
	var s string
	if err := decode(raw, &s); err != nil {
		return err
	}
	if !filepath.IsAbs(s) {
		return errors.New("want an absolute path")
	}
	c.BPFFS = filepath.Clean(s)
	return nil
}

func setCgroupRoot(c *Config, raw json.RawMessage) error {
	var s string
	if err := decode(raw, &s); err != nil {
		return err
	}
	if s != CgroupAuto && s != CgroupOff && !filepath.IsAbs(s) {
		return errors.New("want an absolute path, \"auto\" or \"off\"")
	}
	c.CgroupRoot = s
	if filepath.IsAbs(s) {
		c.CgroupRoot = filepath.Clean(s)
	}
	return nil
}

func setLog(c *Config, raw json.RawMessage) error {
	var l Log
	if err := decode(raw, &l); err != nil {
		return err
	}
	if l.Level != "" && !slices.Contains([]string{"debug", "info", "warn", "error"}, l.Level) {
		return fmt.Errorf("level %q: want debug, info, warn or error", l.Level)
	}
	if l.File != "" && !filepath.IsAbs(l.File) {
		return fmt.Errorf("file %q: want an absolute path", l.File)
	}
	c.Log = l
	return nil
}
