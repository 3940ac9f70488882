// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"net/netip"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Namespaces are looked into whatever their paths are called: an address that is not seen is taken for one without an owner.
func TestPrivilegedLookInsideOddNames(t *testing.T) {
	l := netlab.NewT(t, netlab.Options{})
	want := map[netip.Addr]string{}
	for name, addr := range map[string]string{"plain": "10.9.0.1", "a b": "10.9.0.2", "a\tb": "10.9.0.3", "a\nb": "10.9.0.4", `a\b`: "10.9.0.5", `a\040b`: "10.9.0.6"} {
		p := l.Node.PodT(t, name)
		if err := p.Do(func() error {
			_, err := netlab.Run("ip", "addr", "add", addr+"/32", "dev", "lo")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		want[netip.MustParseAddr(addr)] = name
	}
	if err := l.Node.Do(func() error {
		k, err := Look(nil, Places{})
		for addr, name := range want {
			if _, ok := k.Addrs[addr]; !ok {
				t.Errorf("the namespace %q was not looked into: %v", name, k.Addrs)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
