// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// An address that comes or goes is told, in both families. One that another device has too is not, nor is a link-local one.
func TestPrivilegedFollowAddresses(t *testing.T) {
	n, err := netlab.NewNode()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	run := func(do string) {
		t.Helper()
		if err := n.Do(func() error {
			_, err := netlab.Run("sh", "-ec", do)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	run("ip link set lo up; ip link add va type veth peer name vb; ip link set va up; ip link set vb up")
	run("ip addr add 192.0.2.9/32 dev va; ip addr add 2001:db8::9/128 dev va nodad")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	told := make(chan struct{}, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- n.Do(func() error { var f follower; return f.follow(ctx, func() { told <- struct{}{} }) })
	}()
	time.Sleep(netlab.Patient(time.Second)) // it looks once at the start
	for _, tt := range []struct {
		do   string
		want bool
	}{
		{"ip addr add 192.0.2.1/24 dev va", true},
		{"ip addr add 192.0.2.1/32 dev vb", false},
		{"ip addr del 192.0.2.1/24 dev va", false},
		{"ip addr del 192.0.2.1/32 dev vb", true},
		{"ip addr add 2001:db8::1/64 dev va nodad", true},
		{"ip addr del 2001:db8::1/64 dev va", true},
		{"ip addr add fe80::77/64 dev vb nodad", false},
		{"ip addr add 127.0.0.9/8 dev lo", false},
	} {
		for len(told) > 0 {
			<-told
		}
		run(tt.do)
		wait := netlab.Patient(5 * time.Second)
		if !tt.want {
			wait = 500 * time.Millisecond
		}
		select {
		case <-told:
			if !tt.want {
				t.Errorf("%s: told", tt.do)
			}
		case <-time.After(wait):
			if tt.want {
				t.Errorf("%s: not told", tt.do)
			}
		}
	}
	stop()
	if err := <-ended; err == nil {
		t.Error("it ended without an error")
	}
}
