// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/jsonobj"
)

// A route is what the library's decoder makes of it.
func TestDecodeRoute(t *testing.T) {
	for _, text := range []string{
		`{"dst":"10.0.0.0/8"}`, `{"dst":"10.1.2.3/8","gw":"10.0.0.1"}`, `{"Dst":"fd00::1/64","GW":"fd00::1","mtu":1400,"advmss":1300,"priority":7}`,
		`{"dst":"10.0.0.0/8","gw":""}`, `{"dst":"10.0.0.0/8","gw":null,"table":null}`, `{"dst":"10.0.0.0/8","table":0,"scope":253}`, `{"dst":"10.0.0.0/8","table":"x"}`,
		`{"dst":"x"}`, `{"dst":1}`, `{"dst":null}`, `{"gw":"10.0.0.1"}`, `{"dst":"10.0.0.0/8","gw":"x"}`, `null`, `[]`, `{}`, `{"dst":"::ffff:10.0.0.0/104"}`,
	} {
		got, err := decodeRoute(json.RawMessage(text))
		var want *types.Route
		wantErr := json.Unmarshal([]byte(text), &want)
		if (err == nil) != (wantErr == nil) || err == nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v; the library makes of it %v, %v", text, got, err, want, wantErr)
		}
	}
}

// Every reader refuses a value that is no object in the same words.
func TestLoadCommonOfNoObject(t *testing.T) {
	_, err := LoadCommon(jsonobj.NewDocument([]byte(`[]`)))
	if want := `key "network configuration" is a JSON array, which does not fit an object`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}
