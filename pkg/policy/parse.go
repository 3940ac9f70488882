// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Error names the key and the value that cannot be used.
type Error struct {
	Key   string // as a path: "rules.ingress[2].ports[0]"
	Value string
	Why   string
}

func (e *Error) Error() string { return fmt.Sprintf("%s %q: %s", e.Key, e.Value, e.Why) }

// rulesJSON is the value of the key "rules".
type rulesJSON struct {
	Ingress        []ruleJSON `json:"ingress"`
	Egress         []ruleJSON `json:"egress"`
	IngressDefault string     `json:"ingressDefault"`
	EgressDefault  string     `json:"egressDefault"`
}

type ruleJSON struct {
	Action   string            `json:"action"`
	CIDRs    []string          `json:"cidrs"`
	Protocol string            `json:"protocol"`
	Ports    []json.RawMessage `json:"ports"` // strings or numbers
}

// Parse reads the values of the keys "ingressPolicy" and "rules"; rules may be nil. Errors are of type *Error. Unknown keys
// inside the rules are errors: a mistyped one would open what was meant to be closed.
func Parse(mode string, rules json.RawMessage) (*Policy, error) {
	p := &Policy{Mode: Mode(mode)}
	switch p.Mode {
	case "":
		p.Mode = ModeOpen
	case ModeOpen, ModeSameBridge, ModeIsolated:
	default:
		return nil, &Error{Key: "ingressPolicy", Value: mode, Why: "must be open, same-bridge or isolated"}
	}
	if len(rules) == 0 || bytes.Equal(bytes.TrimSpace(rules), []byte("null")) {
		return p, nil
	}
	var raw rulesJSON
	dec := json.NewDecoder(bytes.NewReader(rules))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&raw); err != nil {
		return nil, &Error{Key: "rules", Value: shorten(string(rules)), Why: strings.TrimPrefix(err.Error(), "json: ")}
	}
	var err error
	if p.Ingress, p.DenyIngress, err = direction("ingress", raw.Ingress, raw.IngressDefault); err != nil {
		return nil, err
	}
	if p.Egress, p.DenyEgress, err = direction("egress", raw.Egress, raw.EgressDefault); err != nil {
		return nil, err
	}
	if n := CountEntries(p.Ingress) + CountEntries(p.Egress); n > MaxEntries {
		return nil, &Error{Key: "rules", Value: strconv.Itoa(n),
			Why: fmt.Sprintf("both directions may have at most %d entries: each CIDR of a rule with each of its port ranges is one", MaxEntries)}
	}
	return p, nil
}

// direction reads the list of one direction and its default.
func direction(name string, raw []ruleJSON, fallback string) (rules []Rule, deny bool, err error) {
	key := "rules." + name + "Default"
	switch fallback {
	case "", "allow":
	case "deny":
		deny = true
	default:
		return nil, false, &Error{Key: key, Value: fallback, Why: "must be allow or deny"}
	}
	restricts := deny
	for i, r := range raw {
		rule, err := r.parse(fmt.Sprintf("rules.%s[%d]", name, i))
		if err != nil {
			return nil, false, err
		}
		restricts = restricts || !rule.Allow
		rules = append(rules, rule)
	}
	if len(rules) > 0 && !restricts {
		return nil, false, &Error{Key: key, Value: fallback, Why: "rules that only allow restrict nothing while the default is allow: set it to deny"}
	}
	return rules, deny, nil
}

func (r ruleJSON) parse(key string) (Rule, error) {
	var rule Rule
	switch r.Action {
	case "allow":
		rule.Allow = true
	case "deny":
	default:
		return rule, &Error{Key: key + ".action", Value: r.Action, Why: "must be allow or deny"}
	}
	switch p := Protocol(r.Protocol); p {
	case "any", ProtocolAny:
	case ProtocolTCP, ProtocolUDP, ProtocolSCTP, ProtocolICMP:
		rule.Protocol = p
	default:
		return rule, &Error{Key: key + ".protocol", Value: r.Protocol, Why: "must be tcp, udp, sctp, icmp or any"}
	}
	for i, s := range r.CIDRs {
		c, err := parseCIDR(s)
		if err != nil {
			return rule, &Error{Key: fmt.Sprintf("%s.cidrs[%d]", key, i), Value: s, Why: err.Error()}
		}
		rule.CIDRs = append(rule.CIDRs, c)
	}
	if r.CIDRs != nil && len(r.CIDRs) == 0 {
		return rule, &Error{Key: key + ".cidrs", Value: "[]", Why: "an empty list matches nothing: leave the key out to match every address"}
	}
	return rule, r.ports(key, &rule)
}

func (r ruleJSON) ports(key string, rule *Rule) error {
	if r.Ports != nil && len(r.Ports) == 0 {
		return &Error{Key: key + ".ports", Value: "[]", Why: "an empty list matches nothing: leave the key out to match every port"}
	}
	for i, raw := range r.Ports {
		s := string(raw)
		_ = json.Unmarshal(raw, &s) // a number stays as it is
		p, err := parsePorts(s)
		if err != nil {
			return &Error{Key: fmt.Sprintf("%s.ports[%d]", key, i), Value: s, Why: err.Error()}
		}
		rule.Ports = append(rule.Ports, p)
	}
	switch {
	case len(rule.Ports) == 0:
	case rule.Protocol == ProtocolICMP:
		return &Error{Key: key + ".ports", Value: rule.Ports[0].String(), Why: "ICMP has no ports"}
	}
	return nil
}

// parseCIDR takes a network or a single address.
func parseCIDR(s string) (netip.Prefix, error) {
	if !strings.Contains(s, "/") {
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return netip.Prefix{}, errors.New("is neither an address nor a network")
		}
		return netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return p, errors.New("is neither an address nor a network")
	case p.Addr().Is4In6():
		return p, errors.New("write IPv4 networks as a.b.c.d/n")
	case p != p.Masked():
		return p, fmt.Errorf("has bits beyond its length: did you mean %s?", p.Masked())
	}
	return p, nil
}

// parsePorts takes "80" or "8000-8100".
func parsePorts(s string) (PortRange, error) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	switch {
	case errA != nil || errB != nil || a == 0:
		return PortRange{}, errors.New("must be a port (1-65535) or a range such as 8000-8100")
	case a > b:
		return PortRange{}, errors.New("the range ends before it begins")
	}
	return PortRange{uint16(a), uint16(b)}, nil
}

func shorten(s string) string {
	const most = 60
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}
