// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// STATUS agrees with what ADD would do.
func TestPrivilegedStatus(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name        string
		spoil       func(w *world)
		status, add uint // codes; 0: ready
		words       []string
	}{
		{name: "fresh node"},
		{name: "a bpffs that has to be mounted", spoil: func(w *world) {
			w.onNode(func() error { return os.Mkdir("/run/bpf", 0o700) })
			writeConfig(w.t, w.Node, `{"bpffs": "/run/bpf"}`)
		}},
		{name: "a back end whose tool is missing", status: 50, add: 105, words: []string{"nftables"}, spoil: func(w *world) {
			writeConfig(w.t, w.Node, `{"backend": "nftables"}`)
			nft, err := exec.LookPath("nft")
			if err != nil {
				w.t.Fatal(err)
			}
			// Not executable, in the node's own mount namespace.
			w.onNode(func() error { return unix.Mount("/dev/null", nft, "", unix.MS_BIND, "") })
		}},
		{name: "a broken node configuration", status: 7, add: 7, words: []string{"backend", "cleverness"}, spoil: func(w *world) {
			writeConfig(w.t, w.Node, `{"backend": "cleverness"}`)
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if tt.spoil != nil {
				tt.spoil(w)
			}
			rt := w.runtime(fullChain())
			err := rt.Status(t.Context())
			addErr := w.newPod(rt, "web", somePorts()...).tryAdd()
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

// STATUS says so when no address is left.
func TestPrivilegedStatusExhaustedPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := w.runtime(network{subnets: []string{"10.9.0.0/30"}})
	w.add(rt, "only")
	assertCNIError(t, w.newPod(rt, "more").tryAdd(), 104, "10.9.0.")
	assertCNIError(t, rt.Status(t.Context()), types.ErrPluginNotAvailable, "10.9.0.")
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
