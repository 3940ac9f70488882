// SPDX-License-Identifier: Apache-2.0

package jsonobj

import (
	"bytes"
	"encoding/json"
)

// Document is a JSON text that several readers decode, each into what it needs. The text is checked and split into its
// members once, by the first of them. A nil Document is an empty text. The first Decode must not run beside others.
type Document struct {
	text    []byte
	split   bool
	object  bool // the text is a valid object, and members are its members
	members []field
}

// field is a member of a document.
type field struct {
	name, folded string
	value        json.RawMessage
}

// NewDocument returns the document of a text, which must not change any more.
func NewDocument(text []byte) *Document { return &Document{text: text} }

// Bytes returns the text.
func (d *Document) Bytes() []byte {
	if d == nil {
		return nil
	}
	return d.text
}

// Decode is Decode of the document's text.
func (d *Document) Decode(what string, into any) error {
	o, ok := into.(Object)
	if !ok || !d.isObject() {
		return Decode(what, d.Bytes(), into)
	}
	var first error
	for _, m := range d.members {
		place := o.Field(m.folded)
		if place == nil {
			continue
		}
		if err := value(m.value, place); err != nil && first == nil {
			first = under(m.name, err)
		}
	}
	return describe(what, first)
}

// Member returns the value of the member with exactly that name, the last one of several. The caller must not change it.
func (d *Document) Member(name string) (json.RawMessage, bool) {
	if !d.isObject() {
		return nil, false
	}
	for i := len(d.members) - 1; i >= 0; i-- {
		if d.members[i].name == name {
			return d.members[i].value, true
		}
	}
	return nil, false
}

// isObject splits the text, if no other call has. It reports whether the text is a valid object.
func (d *Document) isObject() bool {
	if d == nil || d.split {
		return d != nil && d.object
	}
	d.split = true
	raw := bytes.Trim(d.text, space)
	if len(raw) == 0 || raw[0] != '{' || !json.Valid(raw) {
		return false
	}
	d.object = true
	for m := (members{rest: raw[1:]}); m.next(); {
		name := m.name()
		d.members = append(d.members, field{name, fold(name), m.value})
	}
	return true
}
