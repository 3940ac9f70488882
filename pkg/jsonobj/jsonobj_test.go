// SPDX-License-Identifier: Apache-2.0

package jsonobj

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

//jsonobj:object
type inner struct {
	Word string   `json:"word"`
	List []string `json:"list"`
}

//jsonobj:object
type outer struct {
	inner
	Skips  bool                          `json:"skips"` // with both letters that have a second lower-case form
	Number int                           `json:"number"`
	Raw    json.RawMessage               `json:"raw"`
	Raws   []json.RawMessage             `json:"raws"`
	Inner  inner                         `json:"inner"`
	Behind *inner                        `json:"behind"`
	Many   [][]inner                     `json:"many"`
	Other  map[string]int                `json:"other"`
	Named  map[string]inner              `json:"named"`
	Groups map[string]map[string][]inner `json:"groups"`
}

var documents = []string{
	``, ` `, `{`, `{}x`, `null`, `1`, `"x"`, `[]`, "\t{ \n} ", `{"a" : 1, "word":"x","WORD":"y"}`, `{"\u0077ord":"\u0041\ud83d\ude00"}`,
	`{"\u017f\u212aips":true}`, `{"ſKips":true}`, `{"skips":tru}`, `{"number":-0,"raw": [1, {"a":"]"}] ,"raws":[1 , "a" , {} ]}`,
	`{"inner":{"word":1,"list":["a"]},"number":"x","word":"kept"}`, `{"behind":{"list":[]}, "many":[[{"word":"a"},null],null]}`, `{"behind":{"word":"a"},"behind":{"list":["b"]}}`,
	`{"behind":{"word":"a"},"behind":null}`, `{"many":[[{"word":1}]]}`, `{"other":{"a":1}}`, `{"other":[]}`, `{"word":"a\"b\\","list":["\\"]}`, "{\"word\":\"\xff\"}",
	`{"":1,"word":""}`, `{"raw":null,"raws":null,"list":null,"number":null}`, `{"many":{}}`, `{"inner":[]}`, `{"raws":{}}`,
	`{"named":{"A":{"word":"x"}, "a" :{"word":"y"},"\u0061b":null,"":{}}}`, `{"named":{}}`, `{"named":null}`, `{"named":{"a":{}},"NAMED":null}`, "{\"named\":{\"\xff\":{}}}",
	`{"named":{"a":{"word":"x","list":["y"]},"b":{"word":"z"}},"Named":{"a":{"list":[]},"c":{}}}`, `{"named":{"a":{"word":"x"},"a":{"list":["y"]}}}`,
	`{"named":[]}`, `{"named":"x"}`, `{"named":{"a":1,"b":{"word":[]},"c":{"word":"kept"}},"word":"kept"}`,
	`{"groups":{"a":{"b":[{"word":"x"},null],"c":null},"d":null,"e":{}}}`, `{"groups":{"a":{"b":[1]}}}`, `{"groups":{"a":{"b":{}}},"Groups":{"a":{"c":[]}}}`,
}

// Whatever the text is, the outcome is encoding/json's.
func FuzzDecode(f *testing.F) {
	for _, d := range documents {
		f.Add(d)
	}
	f.Fuzz(func(t *testing.T, doc string) {
		var got, want outer
		err, wantErr := Decode("text", []byte(doc), &got), json.Unmarshal([]byte(doc), &want)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, encoding/json says %v", err, wantErr)
		}
		if !repeats(doc) && !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, encoding/json makes of it %+v", got, want)
		}
		d := NewDocument([]byte(doc))
		for range 2 {
			var again outer
			if dErr := d.Decode("text", &again); !reflect.DeepEqual(again, got) || fmt.Sprint(dErr) != fmt.Sprint(err) {
				t.Fatalf("as a document: %+v, %v, want %+v, %v", again, dErr, got, err)
			}
		}
	})
}

// repeats reports whether a text may have an object twice under one name: then
// encoding/json fills the elements of the earlier list.
func repeats(doc string) bool {
	folded := strings.ToLower(doc)
	return strings.Count(folded, "many") > 1 || strings.Count(folded, `\u`) > 1
}

func TestErrors(t *testing.T) {
	for doc, want := range map[string]string{
		`{"Number":"x"}`:             `decode text: key "Number" is a JSON string, which does not fit int`,
		`{"inner":{"word":[]}}`:      `decode text: key "inner.word" is a JSON array, which does not fit string`,
		`{"many":[[{"list":"x"}]]}`:  `decode text: key "many.list" is a JSON string, which does not fit []string`,
		`{"named":{"a":{"word":1}}}`: `decode text: key "named.word" is a JSON number, which does not fit string`,
		`{"named":[]}`:               `decode text: key "named" is a JSON array, which does not fit map[string]jsonobj.inner`,
		`{"behind":1}`:               `decode text: key "behind" is a JSON number, which does not fit an object`,
		`[]`:                         `decode text: key "text" is a JSON array, which does not fit an object`,
		`{"secret"`:                  `decode text: unexpected end of JSON input`,
	} {
		var o outer
		err := cnierr.From(Decode("text", []byte(doc), &o))
		if err == nil || err.Code != cnierr.CodeDecode || !strings.HasPrefix(strings.TrimSpace(err.Msg+": "+err.Details), want) {
			t.Errorf("%s: %v, want %s", doc, err, want)
		}
	}
}

func TestDocument(t *testing.T) {
	t.Parallel()
	d := NewDocument([]byte(` { "a" : [1] , "A":2, "a": {"b": 3} } `))
	for name, want := range map[string]string{"a": `{"b": 3}`, "A": "2", "b": "", "": ""} {
		if got, ok := d.Member(name); string(got) != want || ok != (want != "") {
			t.Errorf("%q: %s, %t, want %s", name, got, ok, want)
		}
	}
	for _, d := range []*Document{nil, NewDocument(nil), NewDocument([]byte(`[]`)), NewDocument([]byte(`{"a":1`))} {
		if got, ok := d.Member("a"); ok || got != nil {
			t.Errorf("%s: %s", d.Bytes(), got)
		}
		var o outer
		err, want := d.Decode("text", &o), Decode("text", d.Bytes(), &o)
		if err == nil || err.Error() != want.Error() {
			t.Errorf("%s: %v, want %v", d.Bytes(), err, want)
		}
	}
	var all map[string]json.RawMessage
	if err := d.Decode("text", &all); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
}

func TestSingle(t *testing.T) {
	var mac string
	if err := Decode("args", []byte(`{"CNI":{"x":1,"mac":"m"}}`), Single("cni", Single("mac", &mac))); err != nil || mac != "m" {
		t.Errorf("%q, %v", mac, err)
	}
	if err := Decode("args", []byte(`{"cni":7}`), Single("cni", Single("mac", &mac))); err == nil || !strings.Contains(err.Error(), `key "cni" is a JSON number, which does not fit an object`) {
		t.Error(err)
	}
}
