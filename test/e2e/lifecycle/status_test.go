// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// STATUS agrees with what ADD would do.
func TestPrivilegedStatus(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name        string
		spoil       func(w *e2etest.World)
		status, add uint // codes; 0: ready
		words       []string
	}{
		{name: "fresh node"},
		{name: "a bpffs that has to be mounted", spoil: func(w *e2etest.World) {
			w.DoOnNode(func() error { return os.Mkdir("/run/bpf", 0o700) })
			w.Configure(`{"bpffs": "/run/bpf"}`)
		}},
		{name: "a back end whose tool is missing", status: 50, add: 105, words: []string{"nftables"}, spoil: func(w *e2etest.World) {
			w.Configure(`{"backend": "nftables"}`)
			nft, err := exec.LookPath("nft")
			if err != nil {
				w.T.Fatal(err)
			}
			// Not executable, in the node's own mount namespace.
			w.DoOnNode(func() error { return unix.Mount("/dev/null", nft, "", unix.MS_BIND, "") })
		}},
		{name: "a broken node configuration", status: 7, add: 7, words: []string{"backend", "cleverness"}, spoil: func(w *e2etest.World) {
			w.Configure(`{"backend": "cleverness"}`)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := e2etest.NewWorld(t)
			if tt.spoil != nil {
				tt.spoil(w)
			}
			rt := w.Runtime(fullChain())
			err := rt.Status(t.Context())
			addErr := w.NewPod(rt, "web", somePorts()...).TryAdd()
			if tt.status == 0 {
				if err != nil || addErr != nil {
					t.Errorf("STATUS: %v, ADD: %v", err, addErr)
				}
				return
			}
			if addErr == nil {
				t.Error("ADD succeeded")
			}
			assertCNIError(t, err, tt.status, tt.words...)
			assertCNIError(t, addErr, tt.add, tt.words...)
		})
	}
}

// A full pool fails the next ADD, not STATUS: runtimes take the node for not ready then (ADR 31).
func TestPrivilegedStatusExhaustedPool(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	rt := w.Runtime(e2etest.Network{Subnets: []string{"10.9.0.0/30"}})
	w.AddPod(rt, "only")
	assertCNIError(t, w.NewPod(rt, "more").TryAdd(), 104, "10.9.0.")
	if err := rt.Status(t.Context()); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	if said := w.Stderr.String(); !strings.Contains(said, "no free address") || !strings.Contains(said, "10.9.0.1-10.9.0.2") {
		t.Errorf("STATUS does not name the full pool:\n%s", said)
	}
}

// assertCNIError wants a CNI error of a code whose text has all the words.
func assertCNIError(t testing.TB, err error, code uint, words ...string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) {
		t.Errorf("error is %v (%T), want a CNI error with code %d", err, err, code)
		return
	}
	if e.Code != code {
		t.Errorf("code %d, want %d: %s; %s", e.Code, code, e.Msg, e.Details)
	}
	for _, word := range words {
		if !strings.Contains(e.Msg+" "+e.Details, word) {
			t.Errorf("%q does not appear in %q; %q", word, e.Msg, e.Details)
		}
	}
}
