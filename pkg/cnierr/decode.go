// SPDX-License-Identifier: Apache-2.0

package cnierr

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// Decode is json.Unmarshal with an error of code 6, unless a value has a code of its own. It starts with what, the words for the
// whole text, and names the key that does not fit. It never repeats the text, which may hold secrets.
func Decode(what string, text []byte, into any) error {
	err := json.Unmarshal(text, into)
	var own *Error
	if err == nil || errors.As(err, &own) {
		return err //nolint:wrapcheck // it has its words
	}
	var misfit *json.UnmarshalTypeError
	if !errors.As(err, &misfit) {
		return Wrap(CodeDecode, err, "decode %s", what)
	}
	key := keyPath(reflect.TypeOf(into), misfit.Field)
	if key == "" {
		key = what
	}
	wanted := misfit.Type.String()
	if misfit.Type.Kind() == reflect.Struct { // whose name in Go says nothing
		wanted = "an object"
	}
	return New(CodeDecode, fmt.Sprintf("decode %s: key %q is a JSON %s, which does not fit %s", what, key, misfit.Value, wanted), "")
}

// keyPath returns the keys of a field's path in encoding/json's errors, which has the names of embedded structs among them.
func keyPath(t reflect.Type, path string) string {
	var keys []string
	for _, name := range strings.Split(path, ".") {
		f, ok := member(t, name)
		if t = f.Type; !ok || !f.Anonymous || f.Tag.Get("json") != "" {
			keys = append(keys, name)
		}
	}
	return strings.Join(keys, ".")
}

// member returns the field of that key, or the embedded struct of that name, behind any pointers, lists and maps.
func member(t reflect.Type, name string) (reflect.StructField, bool) {
	for t != nil && (t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map) {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct {
		return reflect.StructField{}, false
	}
	for i := range t.NumField() {
		f := t.Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if key == name || key == "" && f.Name == name {
			return f, true
		}
	}
	return reflect.StructField{}, false
}
