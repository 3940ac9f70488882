// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"strings"
	"testing"
)

// go-tc's connection goes to the namespace of the handle, whatever thread asks for the first change.
func TestPrivilegedTCNamespace(t *testing.T) {
	here, there := mustNS(t), mustNS(t)
	tree := Qdisc{Kind: QdiscHTB, Handle: TC(1, 0), Parent: ParentRoot, HTB: &HTB{Default: 1}}
	const loopback = 1
	for _, inside := range []bool{false, true} {
		h := mustHandle(t, here)
		add := func() error { return h.AddQdisc(loopback, tree, false) }
		if inside {
			ok(t, here.Do(add))
		} else {
			ok(t, there.Do(add))
		}
		if _, err := mustHandle(t, there).RootQdisc(loopback); !errors.Is(err, ErrNotFound) {
			t.Errorf("inside %v: the other namespace: %v", inside, err)
		}
		if q := must[Qdisc](t)(h.RootQdisc(loopback)); q.Kind != QdiscHTB {
			t.Errorf("inside %v: %+v", inside, q)
		}
		ok(t, h.DelQdisc(loopback, tree))
	}
}

// What go-tc sends fails with the sentinels and the kernel's words, as what we send does.
func TestPrivilegedTCErrors(t *testing.T) {
	h := mustHandle(t, mustNS(t))
	const loopback = 1
	tree := Qdisc{Kind: QdiscHTB, Handle: TC(1, 0), Parent: ParentRoot, HTB: &HTB{Default: 1}}
	ok(t, h.AddQdisc(loopback, tree, false))
	err := h.AddQdisc(loopback, tree, false)
	if !errors.Is(err, ErrExist) || !strings.HasSuffix(err.Error(), ": file exists: Exclusivity flag on, cannot modify") {
		t.Errorf("a second time: %v", err)
	}
	const nowhere = 99
	if err := h.AddQdisc(nowhere, tree, false); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such device: %v", err)
	}
	if err := h.AddClass(nowhere, Class{Handle: TC(1, 1), Parent: TC(1, 0), Rate: 1000, Ceil: 1000}); !TCGone(err) {
		t.Errorf("no such device: %v", err)
	}
}
