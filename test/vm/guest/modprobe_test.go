// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestModuleIndex(t *testing.T) {
	dir := t.TempDir() + "/"
	for name, content := range map[string]string{
		"modules.dep":     "kernel/net/nf_nat.ko: kernel/net/nf_conntrack.ko\nkernel/net/nf_conntrack.ko:\nkernel/x/xt-a.ko:\nkernel/x/xt_b.ko:\n",
		"modules.alias":   "alias rtnl-link-vrf vrf\nalias nft-chain-2-* nf_nat\nalias ipt_A xt_a\nalias ipt_A xt_b\n",
		"modules.softdep": "softdep nf_nat pre: xt_a xt_b\n",
		"modules.builtin": "kernel/drivers/net/loop-back.ko\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	x, err := readIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	for wanted, want := range map[string][]string{
		"nf-nat": {"nf_nat"}, "nft-chain-2-nat": {"nf_nat"}, "ipt_A": {"xt_a", "xt_b"}, "loop_back": {"loop_back"},
		"rtnl-link-vrf": {"vrf"}, "xt_a": {"xt_a"}, "nothing": nil,
	} {
		if d := cmp.Diff(want, x.resolve(normal(wanted))); d != "" {
			t.Errorf("%s: %s", wanted, d)
		}
	}
	if d := cmp.Diff([]string{"kernel/net/nf_nat.ko", "kernel/net/nf_conntrack.ko"}, x.files["nf_nat"]); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"xt_a", "xt_b"}, x.soft["nf_nat"]); d != "" {
		t.Error(d)
	}
	if err := x.load("vrf", nil); err == nil {
		t.Error("a module without file was loaded")
	}
	if err := x.load("loop_back", nil); err != nil {
		t.Errorf("built in: %v", err)
	}
}
