// SPDX-License-Identifier: Apache-2.0

// Package jsonobjtest compares what a struct's Key method says with its JSON tags.
package jsonobjtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/jsonobj"
)

// values are of every kind, so that each fits some fields and not others.
var values = []string{
	`null`, `true`, `false`, `0`, `7`, `-1`, `1.5`, `1e3`, `99999999999999999999`, `""`, `"x"`, `"\u00e9\n"`, `"é"`, `"10.1.0.0/16"`,
	`[]`, `[""]`, ` [ "a" , "b\\" ] `, `["a", null]`, `["a", 1]`, `[1]`, `[null]`, `[{}]`, `[[]]`, `[[{}]]`, `[[null]]`, `[[1]]`, `[[{"subnet": "x", "gateway": 1}]]`,
	`{}`, `{"a": 1}`, `{"type": "x"}`, `{"Type": 1}`, `{"mac": "x"}`, `{"deviceID": true}`, `{"id": 1, "minID": "x"}`, `[{"id": 1}, {"maxID": 2}]`,
	`{"nameservers": ["a"], "search": 1}`, `{"subnet": "x", "RANGES": [[{"rangeStart": "y"}]], "routes": [1, {"dst": "z"}], "dataDir": "d"}`, `{"ranges": [[{"subnet": 1}]]}`,
	`{"bandwidth": {"ingressRate": 1}}`, `{"portMappings": [{"hostPort": 1}]}`, `{"cni": {"ips": ["a"]}}`,
}

// Same decodes one document after the other into a new struct both ways, by the keys and by
// encoding/json, which goes by the tags: every key, with values of all kinds, in
// several cases, once and twice.
func Same(t *testing.T, fresh func() jsonobj.Object) {
	t.Helper()
	names := tags(reflect.TypeOf(fresh()).Elem())
	if len(names) == 0 {
		t.Fatalf("%T has no keys", fresh())
	}
	for _, name := range names {
		for _, v := range values {
			for _, key := range []string{name, strings.ToUpper(name), strings.ToLower(name)} {
				one(t, fresh, fmt.Sprintf("{ %q :%s}", key, v))
			}
			one(t, fresh, fmt.Sprintf(`{%q:%s,"?":{"}":["]",{}]},%q:%s}`, name, v, name, values[len(v)%len(values)]))
		}
	}
}

// named finds the key in an error, and what its value is.
var named = regexp.MustCompile(`key "([^"]+)" is a JSON ([^,]+),`)

func one(t *testing.T, fresh func() jsonobj.Object, doc string) {
	t.Helper()
	got, want := fresh(), fresh()
	gotErr, wantErr := jsonobj.Decode("x", []byte(doc), got), json.Unmarshal([]byte(doc), want)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %+v, encoding/json makes of it %+v", doc, got, want)
	}
	if (gotErr == nil) != (wantErr == nil) {
		t.Errorf("%s: %v, encoding/json says %v", doc, gotErr, wantErr)
	}
	var typ *json.UnmarshalTypeError
	if gotErr == nil || !errors.As(wantErr, &typ) {
		return
	}
	// encoding/json puts the names of embedded structs before the key.
	m := named.FindStringSubmatch(gotErr.Error())
	if m == nil || m[2] != typ.Value || !strings.HasSuffix(strings.ToLower("."+typ.Field), strings.ToLower("."+m[1])) {
		t.Errorf("%s: %v, which should name the key %s and the value %s", doc, gotErr, typ.Field, typ.Value)
	}
}

// tags returns the keys of a struct, those of embedded ones too.
func tags(typ reflect.Type) (names []string) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case tag == "-":
		case tag != "":
			names = append(names, tag)
		case f.Anonymous && f.Type.Kind() == reflect.Struct:
			names = append(names, tags(f.Type)...)
		}
	}
	return names
}
