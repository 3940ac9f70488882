// SPDX-License-Identifier: Apache-2.0

package cniconf

import (
	"strings"
	"testing"
)

// Every reader refuses a value that is no object in the same words.
func TestLoadCommonOfNoObject(t *testing.T) {
	_, err := LoadCommon([]byte(`[]`))
	if want := `key "network configuration" is a JSON array, which does not fit an object`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
}
