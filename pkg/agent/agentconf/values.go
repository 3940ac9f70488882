// SPDX-License-Identifier: Apache-2.0

package agentconf

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	minRotation = time.Hour        // a rotation is an update of the Node object that every other node gets
	minInterval = 10 * time.Second // a look is two requests
	minMTU      = 576              // what each IPv4 host must be able to receive, RFC 791
	maxMTU      = 65535
	// maxEventRate keeps the agent below a tenth of a core.
	maxEventRate = 10000
)

// word decodes a string. JSON's null is none: what a template left empty must not silently mean the default.
func word(raw json.RawMessage) (string, error) {
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil || s == nil {
		return "", errors.New("want a string")
	}
	return *s, nil
}

func text(into *string, check func(string) error) setter {
	return func(raw json.RawMessage) error {
		s, err := word(raw)
		if err != nil {
			return err
		}
		if err := check(s); err != nil {
			return err
		}
		*into = s
		return nil
	}
}

func optional(check func(string) error) func(string) error {
	return func(s string) error {
		if s == "" {
			return nil
		}
		return check(s)
	}
}

func oneOf[T ~string](into *T, allowed ...T) setter {
	return func(raw json.RawMessage) error {
		s, err := word(raw)
		if err != nil || !slices.Contains(allowed, T(s)) {
			return fmt.Errorf("want one of %v", allowed)
		}
		*into = T(s)
		return nil
	}
}

func boolean(into *bool) setter {
	return func(raw json.RawMessage) error {
		var v *bool
		if err := json.Unmarshal(raw, &v); err != nil || v == nil {
			return errors.New("want true or false")
		}
		*into = *v
		return nil
	}
}

func integer[T uint16 | uint32 | int](into *T, least, most int64) setter {
	return func(raw json.RawMessage) error {
		var v *int64
		if err := json.Unmarshal(raw, &v); err != nil || v == nil || *v < least || *v > most {
			return fmt.Errorf("want a number from %d to %d", least, most)
		}
		*into = T(*v)
		return nil
	}
}

func mtu(into *int) setter {
	inRange := integer(into, minMTU, maxMTU)
	return func(raw json.RawMessage) error {
		if string(raw) == "0" {
			*into = 0
			return nil
		}
		if err := inRange(raw); err != nil {
			return fmt.Errorf("want 0 (the uplink's) or a number from %d to %d", minMTU, maxMTU)
		}
		return nil
	}
}

func duration(into *Duration, least time.Duration) setter {
	return func(raw json.RawMessage) error {
		s, err := word(raw)
		v, perr := time.ParseDuration(s)
		if err != nil || perr != nil || v < least {
			return fmt.Errorf(`want a duration such as "720h", at least %s`, least)
		}
		*into = Duration(v)
		return nil
	}
}

// durationOrNever also takes zero.
func durationOrNever(into *Duration, least time.Duration) setter {
	set := duration(into, least)
	return func(raw json.RawMessage) error {
		s, err := word(raw)
		if v, perr := time.ParseDuration(s); err == nil && perr == nil && v == 0 {
			*into = 0
			return nil
		}
		if err := set(raw); err != nil {
			return fmt.Errorf(`%w, or "0s" for never`, err)
		}
		return nil
	}
}

func networks(into *[]netip.Prefix) setter {
	return func(raw json.RawMessage) error {
		var list []string
		if err := json.Unmarshal(raw, &list); err != nil || list == nil {
			return errors.New("want a list of networks, such as [10.0.0.0/8]")
		}
		out := make([]netip.Prefix, 0, len(list))
		for _, s := range list {
			p, err := network(s)
			if err != nil {
				return err
			}
			if slices.Contains(out, p) {
				return fmt.Errorf("%q is named twice", s)
			}
			out = append(out, p)
		}
		*into = out
		return nil
	}
}

func network(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return p, fmt.Errorf("%q is not a CIDR", s)
	case p.Addr().Is4In6():
		return p, fmt.Errorf("%q: write IPv4 networks in IPv4 notation", s)
	case p.Masked() != p:
		return p, fmt.Errorf("%q has bits beyond its prefix length: did you mean %s?", s, p.Masked())
	}
	return p, nil
}

// networkName is what libcni demands of a network's name. The name is also that of host-local's directory.
func networkName(s string) error {
	good := func(r rune) bool {
		return r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r)) || r == '_' || r == '.' || r == '-'
	}
	first, _ := utf8.DecodeRuneInString(s)
	if s == "" || len(s) > 63 || strings.ContainsRune("_.-", first) || strings.ContainsFunc(s, func(r rune) bool { return !good(r) }) {
		return errors.New("want letters, digits, \".\", \"_\" and \"-\", a letter or digit first, at most 63")
	}
	return nil
}

// conflistName demands the extension by which runtimes know a list of plugins.
func conflistName(s string) error {
	base, ok := strings.CutSuffix(s, ".conflist")
	if !ok || base == "" || len(s) > 200 || strings.HasPrefix(s, ".") || strings.ContainsAny(s, "/\x00") {
		return errors.New("want a file name that ends with .conflist, without a directory")
	}
	return nil
}

// deviceName has the kernel's own rule, dev_valid_name. It allows control characters, which belong in no log.
func deviceName(s string) error {
	bad := func(c rune) bool {
		return c == '/' || c == ':' || c == utf8.RuneError || unicode.IsSpace(c) || unicode.IsControl(c)
	}
	if s == "" || len(s) > 15 || s == "." || s == ".." || strings.ContainsFunc(s, bad) {
		return errors.New("is not the name of a network device")
	}
	return nil
}

// routeDevice leaves room for what the name of a second device has behind it.
func routeDevice(s string) error {
	const most = 12
	good := func(c rune) bool {
		return c < utf8.RuneSelf && (unicode.IsLetter(c) || unicode.IsDigit(c)) || c == '.' || c == '-' || c == '_'
	}
	bad := func(c rune) bool { return !good(c) }
	if s == "" || len(s) > most || s == "." || s == ".." || strings.ContainsFunc(s, bad) {
		return fmt.Errorf("want at most %d letters, digits, \".\", \"-\" and \"_\"", most)
	}
	return nil
}

func directory(s string) error {
	if !filepath.IsAbs(s) || filepath.Clean(s) != s || strings.ContainsRune(s, 0) {
		return errors.New("want an absolute path without \"..\" or a final \"/\"")
	}
	return nil
}

func listenAddress(s string) error {
	a, err := netip.ParseAddrPort(s)
	if err != nil || a.Addr().Zone() != "" {
		return errors.New("want an IP address and a port, such as 127.0.0.1:9879 or [::1]:9879")
	}
	return nil
}

// socketPath takes kubelet's notation too.
func socketPath(s string) error {
	if directory(strings.TrimPrefix(s, "unix://")) != nil {
		return errors.New("want an absolute path, or unix:// and one")
	}
	return nil
}

// serviceAccount is a namespace and a name, as the API server takes them.
func serviceAccount(s string) error {
	namespace, name, _ := strings.Cut(s, "/")
	parts := append(strings.Split(name, "."), namespace)
	if len(namespace) > 63 || len(name) > 253 || slices.ContainsFunc(parts, func(part string) bool { return !label(part) }) {
		return errors.New("want NAMESPACE/NAME of a ServiceAccount")
	}
	return nil
}

// label reports whether s is a label of a DNS name, but for its length.
func label(s string) bool {
	return s != "" && strings.Trim(s, "-") == s && !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	})
}
