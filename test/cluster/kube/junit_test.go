// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// A test passes, fails or was left out. A suite that could not begin is a failure too.
func TestReadJUnit(t *testing.T) {
	dir := t.TempDir()
	report := `<?xml version="1.0"?><testsuites><testsuite name="e2e">
<testcase name="[It] good" status="passed"></testcase>
<testcase name="[It] bad" status="failed"><failure message="no"></failure></testcase>
<testcase name="[It] broken" status="panicked"><error message="no"></error></testcase>
<testcase name="[It] out" status="skipped"><skipped message="skipped"></skipped></testcase>
<testcase name="[SynchronizedBeforeSuite]" status="passed"></testcase>
<testcase name="[SynchronizedAfterSuite]" status="failed"><failure message="no"></failure></testcase>
</testsuite></testsuites>`
	if err := os.WriteFile(filepath.Join(dir, "junit_01.xml"), []byte(report), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := ReadJUnit(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := Results{"good": Passed, "bad": Failed, "broken": Failed, "[SynchronizedAfterSuite]": Failed}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got.Count(Failed) != 3 {
		t.Errorf("%d failed", got.Count(Failed))
	}
}
