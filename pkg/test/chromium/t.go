// SPDX-License-Identifier: Apache-2.0

package chromium

import (
	"os"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// StartT runs Chromium in a namespace for a test: it reaches that namespace's loopback, and nothing else that the test does not make.
// It ends with the test, and its files with it.
func StartT(t testing.TB, ns *netlab.NS) *Browser {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice-page-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // helpers of the browser may still write
		late := time.Now().Add(netlab.Patient(10 * time.Second))
		err := os.RemoveAll(dir)
		for ; err != nil && time.Now().Before(late); err = os.RemoveAll(dir) {
			time.Sleep(50 * time.Millisecond)
		}
		if err != nil {
			t.Error(err)
		}
	})
	b, err := Start(dir, ns.Start)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}
