// SPDX-License-Identifier: Apache-2.0

package cnierr

import (
	"encoding/json"
	"strings"
	"testing"
)

type words struct {
	Word string   `json:"word"`
	List []string `json:"list"`
}

type base struct {
	words
	Inner words `json:"inner"`
}

// coded refuses every value in its own words.
type coded struct{}

func (*coded) UnmarshalJSON([]byte) error { return Config("coded", "x", "not that") }

type outer struct {
	base
	Number int                `json:"number"`
	Behind *words             `json:"behind"`
	Many   [][]words          `json:"many"`
	Named  map[string]words   `json:"named"`
	Raw    json.RawMessage    `json:"raw"`
	One    struct{ In words } `json:"one"`
	Coded  *coded             `json:"coded"`
}

// An error names the key as a user writes it, and what its value is.
func TestDecodeNamesKey(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"number":"s3cret"}`:            `decode text: key "number" is a JSON string, which does not fit int`,
		`{"NUMBER":1.5}`:                 `decode text: key "number" is a JSON number 1.5, which does not fit int`,
		`{"word":7}`:                     `decode text: key "word" is a JSON number, which does not fit string`,
		`{"inner":{"word":[]}}`:          `decode text: key "inner.word" is a JSON array, which does not fit string`,
		`{"many":[[{"list":"s3cret"}]]}`: `decode text: key "many.list" is a JSON string, which does not fit []string`,
		`{"named":{"a":{"word":1}}}`:     `decode text: key "named.word" is a JSON number, which does not fit string`,
		`{"one":{"in":{"word":true}}}`:   `decode text: key "one.In.word" is a JSON bool, which does not fit string`,
		`{"behind":1}`:                   `decode text: key "behind" is a JSON number, which does not fit an object`,
		`[]`:                             `decode text: key "text" is a JSON array, which does not fit an object`,
		`{"secret"`:                      `decode text: unexpected end of JSON input`,
		``:                               `decode text: unexpected end of JSON input`,
	} {
		err := From(Decode("text", []byte(text), &outer{}))
		if err == nil || err.Code != CodeDecode || strings.TrimSuffix(err.Msg+": "+err.Details, ": ") != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestDecodeKeepsCode(t *testing.T) {
	t.Parallel()
	if err := From(Decode("text", []byte(`{"coded":1}`), &outer{})); err == nil || err.Code != CodeConfig {
		t.Errorf("%v", err)
	}
}

// Keys match in any case, the last of two wins, and the rest of an object is read although one key does not fit.
func TestDecode(t *testing.T) {
	t.Parallel()
	var got outer
	err := Decode("text", []byte(`{"Number":1,"unknown":{},"number":2,"WORD":"a","raw":{"b": 1},"inner":7,"behind":{"li\u017ft":["x"]}}`), &got)
	if err == nil || got.Number != 2 || got.Word != "a" || string(got.Raw) != `{"b": 1}` || got.Behind == nil || len(got.Behind.List) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}
