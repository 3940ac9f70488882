// SPDX-License-Identifier: Apache-2.0

package attachments

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// A plugin writes a record twice in a process that lives for milliseconds; encoding/json would prepare the types of this package
// by reflection for that alone. The tags still say how a record looks: the tests compare what is here with them.

// encode is json.Marshal(rec).
func encode(rec *Record) (b []byte, err error) {
	b = make([]byte, 0, 512) // most are smaller
	b = strconv.AppendInt(append(b, `{"version":`...), int64(rec.Version), 10)
	b = appendString(append(b, `,"network":`...), rec.Network)
	b = appendString(append(b, `,"containerID":`...), rec.ContainerID)
	b = appendString(append(b, `,"ifname":`...), rec.IfName)
	if rec.NetNS != "" {
		b = appendString(append(b, `,"netns":`...), rec.NetNS)
	}
	if b, err = rec.Created.AppendText(append(b, `,"created":"`...)); err != nil {
		return nil, fmt.Errorf("time of creation: %w", err)
	}
	if b, err = appendSections(append(b, `","plugins":`...), rec.Plugins); err != nil {
		return nil, err
	}
	return append(b, '}'), nil
}

func appendSections(b []byte, sections map[string]Section) (_ []byte, err error) {
	if sections == nil {
		return append(b, "null"...), nil
	}
	b = append(b, '{')
	for i, name := range slices.Sorted(maps.Keys(sections)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, name), ':')
		if b, err = appendSection(b, sections[name]); err != nil {
			return nil, fmt.Errorf("section %s: %w", name, err)
		}
	}
	return append(b, '}'), nil
}

func appendSection(b []byte, s Section) ([]byte, error) {
	b = appendString(append(b, `{"state":`...), s.State)
	if len(s.Data) > 0 {
		data, err := compact(s.Data)
		if err != nil {
			return nil, err
		}
		b = append(append(b, `,"data":`...), data...)
	}
	return append(b, '}'), nil
}

// compact returns what json.Marshal makes of raw: raw itself, unless another program wrote it or it is no JSON.
func compact(raw json.RawMessage) ([]byte, error) {
	for _, c := range raw {
		if c <= ' ' || escaped(c) {
			return json.Marshal(raw) // the caller names the section
		}
	}
	if !json.Valid(raw) {
		return json.Marshal(raw) // as above; it says what is wrong
	}
	return raw, nil
}

func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || escaped(c) {
			text, _ := json.Marshal(s) // every string can be encoded
			return append(b, text...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// escaped reports whether encoding/json may write a byte of a text otherwise: what means something to HTML, and whatever is
// not ASCII, since two line separators and broken encodings are among it.
func escaped(c byte) bool { return c == '<' || c == '>' || c == '&' || c >= 0x80 }
