// SPDX-License-Identifier: Apache-2.0

package nodeconf

import (
	"bytes"
	"encoding/json"
	"net/netip"
)

const nonMasqueradeKey = "nonMasqueradeCIDRs"

// WithNonMasquerade returns the file's content with those nonMasqueradeCIDRs. The other keys keep their values and their order, as the
// administrator wrote them. Content that Parse refuses is an *Error, and stays for the administrator to look at.
func WithNonMasquerade(raw []byte, cidrs []netip.Prefix) ([]byte, error) {
	if _, err := Parse(raw); err != nil {
		return nil, err
	}
	keys, values, err := members(raw)
	if err != nil {
		return nil, err
	}
	if _, ok := values[nonMasqueradeKey]; !ok && len(cidrs) > 0 {
		keys = append(keys, nonMasqueradeKey)
	}
	if values[nonMasqueradeKey], err = json.Marshal(cidrs); err != nil {
		return nil, err
	}
	var flat bytes.Buffer
	flat.WriteByte('{')
	for _, key := range keys {
		if key == nonMasqueradeKey && len(cidrs) == 0 {
			continue
		}
		name, err := json.Marshal(key)
		if err != nil {
			return nil, err
		}
		if flat.Len() > 1 {
			flat.WriteByte(',')
		}
		flat.Write(name)
		flat.WriteByte(':')
		flat.Write(values[key])
	}
	flat.WriteByte('}')
	var out bytes.Buffer
	if err := json.Indent(&out, flat.Bytes(), "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// members returns the members of a JSON object, the names in their order. Of two with one name the last counts, as in Parse.
func members(raw []byte) (keys []string, values map[string]json.RawMessage, err error) {
	values = map[string]json.RawMessage{}
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, values, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	if _, err := d.Token(); err != nil { // the opening brace: Parse has seen it
		return nil, nil, err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, nil, err
		}
		key, _ := name.(string)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, nil, err
		}
		if _, twice := values[key]; !twice {
			keys = append(keys, key)
		}
		values[key] = value
	}
	return keys, values, nil
}
