// SPDX-License-Identifier: Apache-2.0

package jsonobj

import (
	"bytes"
	"encoding/json"
)

// space is JSON's white space.
const space = " \t\r\n"

// members goes through what is in a valid object or array; rest begins behind
// its opening bracket.
type members struct {
	rest []byte
	key  []byte // with its quotes
	// value is that of the member; white space around it is not part of it.
	value []byte
}

// next goes to the next member of an object.
func (m *members) next() bool {
	if !m.begin() {
		return false
	}
	m.key = m.take()
	m.skip()
	m.rest = m.rest[1:] // the colon
	m.skip()
	m.value = m.take()
	return true
}

// element goes to the next element of an array.
func (m *members) element() bool {
	if !m.begin() {
		return false
	}
	m.value = m.take()
	return true
}

// begin goes to where the next member begins; false at the end.
func (m *members) begin() bool {
	m.skip()
	if m.rest[0] == ',' {
		m.rest = m.rest[1:]
		m.skip()
	}
	return m.rest[0] != '}' && m.rest[0] != ']'
}

func (m *members) skip() { m.rest = bytes.TrimLeft(m.rest, space) }

// take cuts the value that rest begins with.
func (m *members) take() []byte {
	n := length(m.rest)
	v := m.rest[:n:n]
	m.rest = m.rest[n:]
	return v
}

// name is the decoded key.
func (m *members) name() string {
	if s, ok := plain(m.key); ok {
		return s
	}
	var s string
	_ = json.Unmarshal(m.key, &s) // a valid string decodes
	return s
}

// length returns how long the value is that b begins with.
func length(b []byte) int {
	depth := 0
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			i += stringEnd(b[i+1:])
			if depth == 0 {
				return i + 1
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // of what the value is in
				return i
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\t', '\r', '\n':
			if depth == 0 {
				return i
			}
		}
	}
	return len(b)
}

// stringEnd returns how far behind the opening quote's next byte the closing one is, plus one.
func stringEnd(b []byte) int {
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}
