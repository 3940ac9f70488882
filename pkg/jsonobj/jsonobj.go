// SPDX-License-Identifier: Apache-2.0

// Package jsonobj decodes JSON objects into structs without reflection, which a process that lives for milliseconds would
// pay for at each start (docs/adr/0012-json-without-reflection.md). Everything that reads a configuration or an attachment
// record uses it. The outcome is that of encoding/json: keys match in any case, the last of two equal keys wins, and
// unknown keys are ignored. The generator in gen writes the methods of the structs. Of Sluice it imports only cnierr.
package jsonobj

//go:generate go run ./gen

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// Object is a struct that is filled from a JSON object. Mark a struct with the comment //jsonobj:object and run
// "go generate", which writes the method from the json tags.
type Object interface {
	// Field returns a pointer to the field for a key, or nil for a key that the
	// object does not have. name has no upper-case letters.
	Field(name string) any
}

// Decode fills into from the JSON text b: an Object by its keys, everything else
// as json.Unmarshal does. An error has code 6, unless the value has one of its own;
// it starts with what, the words for the whole text, and names the key that does not
// fit. It never repeats the text, which may hold secrets.
func Decode(what string, b []byte, into any) error {
	return describe(what, unmarshal(b, into))
}

// describe is the error of Decode for what went wrong.
func describe(what string, err error) error {
	if err == nil {
		return nil
	}
	var own *cnierr.Error
	if errors.As(err, &own) {
		return err
	}
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		key := typ.Field
		if key == "" {
			key = what
		}
		return cnierr.New(cnierr.CodeDecode, fmt.Sprintf("decode %s: key %q is a JSON %s, which does not fit %s", what, key, typ.Value, wanted(typ.Type)), "")
	}
	return cnierr.Wrap(cnierr.CodeDecode, err, "decode %s", what)
}

// wanted names a type in the words of JSON where Go's would say nothing.
func wanted(t reflect.Type) string {
	if t.Kind() == reflect.Struct {
		return "an object"
	}
	return t.String()
}

func unmarshal(b []byte, into any) error {
	o, ok := into.(Object)
	if !ok || !json.Valid(b) {
		return json.Unmarshal(b, into) //nolint:wrapcheck // Decode says what it was
	}
	raw := bytes.Trim(b, space)
	if raw[0] != '{' {
		return json.Unmarshal(raw, into) //nolint:wrapcheck // as above
	}
	return object(raw, o)
}

// object fills o from a valid object without white space around it, and returns
// the first error.
func object(raw []byte, o Object) (first error) {
	for m := (members{rest: raw[1:]}); m.next(); {
		name := m.name()
		into := o.Field(fold(name))
		if into == nil {
			continue
		}
		if err := value(m.value, into); err != nil && first == nil {
			first = under(name, err)
		}
	}
	return first
}

// value decodes a valid value.
func value(raw []byte, into any) error {
	switch into := into.(type) {
	case *string:
		if s, ok := plain(raw); ok {
			*into = s
			return nil
		}
	case *bool:
		if raw[0] == 't' || raw[0] == 'f' {
			*into = raw[0] == 't'
			return nil
		}
	case *int:
		if n, err := strconv.Atoi(string(raw)); err == nil {
			*into = n
			return nil
		}
	case *json.RawMessage:
		*into = bytes.Clone(raw)
		return nil
	case *[]json.RawMessage:
		return list[json.RawMessage]{into, Value[json.RawMessage]}.decode(raw)
	case *[]string:
		return list[string]{into, Value[string]}.decode(raw)
	case Object:
		if raw[0] == '{' {
			return object(raw, into)
		}
	case decoder:
		return into.decode(raw)
	}
	return json.Unmarshal(raw, into) //nolint:wrapcheck // Decode says what it was
}

// under puts the name of a key before what an error says of the value's own keys.
func under(name string, err error) error {
	var typ *json.UnmarshalTypeError
	if !errors.As(err, &typ) {
		return err
	}
	named := *typ
	if named.Field = name; typ.Field != "" {
		named.Field += "." + typ.Field
	}
	return &named
}

// fold returns a name without upper-case letters, also those two outside ASCII
// that encoding/json takes for letters of a key's name.
func fold(name string) string {
	for i := range len(name) {
		if c := name[i]; c >= 'A' && c <= 'Z' || c >= 0x80 {
			return strings.Map(foldRune, name)
		}
	}
	return name
}

func foldRune(r rune) rune {
	switch {
	case r >= 'A' && r <= 'Z':
		return r + 'a' - 'A'
	case r == '\u017f': // LATIN SMALL LETTER LONG S
		return 's'
	case r == '\u212a': // KELVIN SIGN
		return 'k'
	}
	return r
}

// plain returns a string of ASCII without escapes.
func plain(raw []byte) (string, bool) {
	if raw[0] != '"' {
		return "", false
	}
	s := raw[1 : len(raw)-1]
	for _, c := range s {
		if c == '\\' || c >= 0x80 {
			return "", false
		}
	}
	return string(s), true
}

// decoder is a place that decodes itself.
type decoder interface{ decode(raw []byte) error }

// Pointer is the place of an Object behind a pointer: null makes the pointer nil.
func Pointer[T any](p **T) any { return pointer[T]{p} }

type pointer[T any] struct{ p **T }

func (d pointer[T]) decode(raw []byte) error {
	if raw[0] == 'n' {
		*d.p = nil
		return nil
	}
	if *d.p == nil {
		*d.p = new(T)
	}
	return value(raw, *d.p)
}

// List is the place of a list; into says where an element goes.
func List[T any](p *[]T, into func(*T) any) any { return list[T]{p, into} }

// Value is the place of a value that is decoded into itself, as an element of a list or a map.
func Value[T any](p *T) any { return p }

type list[T any] struct {
	p    *[]T
	into func(*T) any
}

func (d list[T]) decode(raw []byte) (first error) {
	if raw[0] != '[' {
		return json.Unmarshal(raw, d.p) //nolint:wrapcheck // Decode says what it was
	}
	all, n := *d.p, 0 // as with encoding/json, null leaves an element what it was
	for m := (members{rest: raw[1:]}); m.element(); n++ {
		if n == len(all) {
			var e T
			all = append(all, e)
		}
		if err := value(m.value, d.into(&all[n])); err != nil && first == nil {
			first = err
		}
	}
	if all == nil {
		all = []T{}
	}
	*d.p = all[:n]
	return first
}

// Map is the place of an object with keys of any name, each as it is written; into
// says where the value of one goes, given a new one. null makes the map nil.
func Map[T any](p *map[string]T, into func(*T) any) any { return mapping[T]{p, into} }

type mapping[T any] struct {
	p    *map[string]T
	into func(*T) any
}

func (d mapping[T]) decode(raw []byte) (first error) {
	if raw[0] != '{' {
		return json.Unmarshal(raw, d.p) //nolint:wrapcheck // Decode says what it was
	}
	if *d.p == nil {
		*d.p = map[string]T{}
	}
	for m := (members{rest: raw[1:]}); m.next(); {
		var e T
		if err := value(m.value, d.into(&e)); err != nil && first == nil {
			first = err
		}
		(*d.p)[m.name()] = e
	}
	return first
}

// Single is an Object with a single key, whose value goes to into.
func Single(name string, into any) Object { return &single{fold(name), into} }

type single struct {
	name string
	into any
}

// Field implements Object.
func (s *single) Field(name string) any {
	if name == s.name {
		return s.into
	}
	return nil
}
