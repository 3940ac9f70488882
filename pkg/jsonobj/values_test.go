// SPDX-License-Identifier: Apache-2.0

package jsonobj

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// every has fields of all the types that Sluice's objects have.
//
//jsonobj:object
type every struct {
	inner
	base
	String      string                     `json:"aString,omitempty"`
	Bool        bool                       `json:"aBool"`
	Int         int                        `json:"anInt"`
	Uint32      uint32                     `json:"aUint32"`
	StringPtr   *string                    `json:"stringPtr"`
	BoolPtr     *bool                      `json:"boolPtr"`
	IntPtr      *int                       `json:"intPtr"`
	Uint64Ptr   *uint64                    `json:"uint64Ptr"`
	StringsPtr  *[]string                  `json:"stringsPtr"`
	Raw         json.RawMessage            `json:"raw"`
	Raws        []json.RawMessage          `json:"raws"`
	Strings     []string                   `json:"strings"`
	Object      inner                      `json:"object"`
	ObjectPtr   *inner                     `json:"objectPtr"`
	Objects     []inner                    `json:"objects"`
	ObjectLists [][]inner                  `json:"objectLists"`
	ObjectMap   map[string]inner           `json:"objectMap"`
	RawMap      map[string]json.RawMessage `json:"rawMap"`
	Plain       plainStruct                `json:"plain"`
	Plains      []plainStruct              `json:"plains"`
	Time        time.Time                  `json:"time"`
	One         struct {
		In inner `json:"in"`
	} `json:"one"`
	Several struct {
		A int  `json:"a"`
		B bool `json:"b"`
	} `json:"several"`
	Ignored int `json:"-"`
	private int //nolint:unused // the generator must skip it
}

// base is embedded without a mark: its fields are those of the outer struct.
type base struct {
	Base    string `json:"base"`
	Another *int   `json:"another"`
}

type plainStruct struct {
	ID    *int `json:"id"`
	MinID *int `json:"minID"`
}

// values are of every kind, so that each fits some fields and not others.
var values = []string{
	`null`, `true`, `false`, `0`, `7`, `-1`, `1.5`, `1e3`, `99999999999999999999`, `""`, `"x"`, `"\u00e9\n"`, `"é"`, `"10.1.0.0/16"`, `"2026-03-04T05:06:07Z"`,
	`[]`, `[""]`, ` [ "a" , "b\\" ] `, `["a", null]`, `["a", 1]`, `[1]`, `[null]`, `[{}]`, `[[]]`, `[[{}]]`, `[[null]]`, `[[1]]`, `[[{"word": "x", "list": 1}]]`,
	`{}`, `{"a": 1}`, `{"word": "x"}`, `{"Word": 1}`, `{"id": 1, "minID": "x"}`, `[{"id": 1}, {"MinID": 2}]`, `{"a": {"word": "x"}, "b": null}`, `{"a": {"list": [1]}}`,
	`{"list": ["a"], "word": 1}`, `{"in": {"word": "x", "LIST": ["y"]}, "more": [1]}`, `{"in": 1}`, `{"in": null}`, `{"a": 1, "b": "x"}`,
}

// Every key with every value, in several cases, once and twice, gives what encoding/json makes of the tags.
func TestAsEncodingJSON(t *testing.T) {
	t.Parallel()
	names := tags(reflect.TypeFor[every]())
	if len(names) < 20 {
		t.Fatalf("only the keys %v", names)
	}
	for _, name := range names {
		for _, v := range values {
			for _, key := range []string{name, strings.ToUpper(name), strings.ToLower(name)} {
				same(t, fmt.Sprintf("{ %q :%s}", key, v))
			}
			same(t, fmt.Sprintf(`{%q:%s,"?":{"}":["]",{}]},%q:%s}`, name, v, name, values[len(v)%len(values)]))
		}
	}
}

// named finds the key in an error, and what its value is.
var named = regexp.MustCompile(`key "([^"]+)" is a JSON ([^,]+),`)

func same(t *testing.T, doc string) {
	t.Helper()
	var got, want every
	gotErr, wantErr := Decode("x", []byte(doc), &got), json.Unmarshal([]byte(doc), &want)
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
