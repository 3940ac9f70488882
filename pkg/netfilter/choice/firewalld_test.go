// SPDX-License-Identifier: Apache-2.0

package choice

import (
	"os"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tooltest"
)

// An answer is believed for a while, by all callers. What is old, damaged or of a time to come is no answer.
func TestNotedAnswer(t *testing.T) {
	t.Parallel()
	n := newTestNode(t, tooltest.NewTools(), tooltest.Kernel{})
	want := func(answer, known bool) {
		t.Helper()
		if a, k := n.noted("x", time.Minute); a != answer || k != known {
			t.Errorf("answer %v, known %v; want %v, %v", a, k, answer, known)
		}
	}
	want(false, false)
	for _, answer := range []bool{true, false} {
		n.note("x", answer)
		want(answer, true)
	}
	path, err := fileOfNamespace(n.env.RunDir, "x")
	if err != nil {
		t.Fatal(err)
	}
	n.note("x", true)
	for _, age := range []time.Duration{2 * time.Minute, -2 * time.Minute} {
		then := time.Now().Add(-age)
		if err := os.Chtimes(path, then, then); err != nil {
			t.Fatal(err)
		}
		want(false, false)
	}
	for _, text := range []string{"", "perhaps"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		want(false, false)
	}
}
