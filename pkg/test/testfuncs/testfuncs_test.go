// SPDX-License-Identifier: Apache-2.0

package testfuncs

import (
	"slices"
	"testing"
)

func TestFind(t *testing.T) {
	t.Chdir("../../..")
	all, err := Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []Func{{"plugins/main/bridge", "FuzzParseConfig"}, {"pkg/test/testfuncs", "TestFind"}, {"bpf/tests", "FuzzNAT"}, {"loader/internal/attach", "FuzzPlace"}} {
		if !slices.Contains(all, want) {
			t.Errorf("%s is not among them", want)
		}
	}
	if slices.ContainsFunc(all, func(f Func) bool { return f.Name == "TestMain" }) {
		t.Error("TestMain is no test")
	}
}
