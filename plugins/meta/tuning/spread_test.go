// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// set writes kernel parameters of the pod, in order.
func (d *pod) set(keys ...string) {
	d.t.Helper()
	d.do(func() error {
		for i := 0; i < len(keys); i += 2 {
			if err := sysctl.Apply(keys[i], keys[i+1]); err != nil {
				return err
			}
		}
		return nil
	})
}

func (d *pod) get(keys ...string) map[string]string {
	d.t.Helper()
	got := map[string]string{}
	d.do(func() error {
		for _, k := range keys {
			v, err := sysctl.Get(k)
			if err != nil {
				return err
			}
			got[k] = v
		}
		return nil
	})
	return got
}

// A write to some keys changes the key of each device too. DEL restores what each device had, and a
// key of one device that the configuration sets wins over the key of all.
func TestPrivilegedSpreadKeys(t *testing.T) {
	const (
		v4, v6 = "net/ipv4/conf/", "net/ipv6/conf/"
		fwd    = "/forwarding"
	)
	tests := []struct {
		name   string
		before []string
		keys   string
		after  []string
	}{
		{
			"IPv4, one device differs", []string{"net/ipv4/ip_forward", "0", v4 + "eth0" + fwd, "1"}, `,"sysctl":{"net.ipv4.ip_forward":"1"}`,
			[]string{"net/ipv4/ip_forward", "1", v4 + "eth0" + fwd, "1", v4 + "lo" + fwd, "1", v4 + "default" + fwd, "1"},
		},
		{
			"IPv4, by conf.all, off", []string{"net/ipv4/ip_forward", "1", v4 + "peer0" + fwd, "0"}, `,"sysctl":{"net.ipv4.conf.all.forwarding":"0"}`,
			[]string{"net/ipv4/ip_forward", "0", v4 + "eth0" + fwd, "0", v4 + "peer0" + fwd, "0"},
		},
		{
			"IPv6, the value that it has", []string{v6 + "all" + fwd, "1", v6 + "eth0" + fwd, "0"}, `,"sysctl":{"net.ipv6.conf.all.forwarding":"1"}`,
			[]string{v6 + "all" + fwd, "1", v6 + "eth0" + fwd, "1"},
		},
		{
			"IPv6 off", []string{v6 + "all/disable_ipv6", "0", v6 + "peer0/disable_ipv6", "1"}, `,"sysctl":{"net.ipv6.conf.all.disable_ipv6":"1"}`,
			[]string{v6 + "all/disable_ipv6", "1", v6 + "eth0/disable_ipv6", "1", v6 + "peer0/disable_ipv6", "1"},
		},
		{
			"all and one", []string{"net/ipv4/ip_forward", "0", v4 + "eth0" + fwd, "1"}, `,"sysctl":{"net.ipv4.ip_forward":"1","net.ipv4.conf.IFNAME.forwarding":"0"}`,
			[]string{"net/ipv4/ip_forward", "1", v4 + "eth0" + fwd, "0", v4 + "peer0" + fwd, "1"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newPod(t)
			d.set(tt.before...)
			var keys []string
			want := map[string]string{}
			for i := 0; i < len(tt.after); i += 2 {
				keys = append(keys, tt.after[i])
				want[tt.after[i]] = tt.after[i+1]
			}
			before := d.get(keys...)
			for range 2 { // again: the record must keep what the first ADD found
				d.add(tt.keys)
				if diff := cmp.Diff(want, d.get(keys...)); diff != "" {
					t.Errorf("after ADD (-want +got):\n%s", diff)
				}
			}
			if err := d.p.check(context.Background(), d.args(tt.keys)); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			if err := d.p.del(context.Background(), d.args("")); err != nil {
				t.Errorf("DEL: %v", err)
			}
			if diff := cmp.Diff(before, d.get(keys...)); diff != "" {
				t.Errorf("after DEL (-want +got):\n%s", diff)
			}
		})
	}
}
