// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// namespace makes an empty network namespace and returns a path to it.
func (e *env) namespace() string {
	e.t.Helper()
	made := make(chan *os.File)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			e.t.Errorf("unshare: %v", err)
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			e.t.Errorf("own namespace: %v", err)
		}
		made <- f
	}()
	f := <-made
	e.t.Cleanup(func() { _ = f.Close() })
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd())
}

func TestPrivilegedResolve(t *testing.T) {
	e := newEnv(t)
	ns := e.namespace()
	e.ip("link", "add", "br0", "type", "bridge")
	e.ip("link", "set", "br0", "address", "02:00:00:00:00:b0")
	e.ip("link", "add", "vethx", "mtu", "1400", "type", "veth", "peer", "name", "eth0", "address", "02:00:00:00:00:01", "mtu", "1400", "netns", ns)
	e.ip("link", "set", "vethx", "up")
	in := func(args ...string) { e.run("nsenter", append([]string{"--net=" + ns, "ip"}, args...)...) }
	in("addr", "add", "10.1.0.2/16", "dev", "eth0")
	in("addr", "add", "fd00::2/64", "dev", "eth0", "nodad")
	in("link", "set", "eth0", "up")

	got, err := Resolve(e.ctx, ns, "eth0")
	e.ok(err)
	host, err := e.h.LinkByName("vethx")
	e.ok(err)
	if got.HostIfindex != host.Index || got.RouteIfindex != host.Index || got.HostIfName != "vethx" || got.MTU != 1400 ||
		got.MAC.String() != "02:00:00:00:00:01" || got.GatewayMAC.String() != host.MAC.String() {
		t.Errorf("without a bridge: %+v", got)
	}
	var addrs []string
	for _, a := range got.Addrs {
		addrs = append(addrs, a.String())
	}
	if diff := cmp.Diff([]string{"10.1.0.2/16", "fd00::2/64"}, addrs); diff != "" {
		t.Error(diff)
	}

	e.ip("link", "set", "vethx", "master", "br0")
	got, err = Resolve(e.ctx, ns, "eth0")
	e.ok(err)
	if got.RouteIfindex != e.index("br0") || got.GatewayMAC.String() != "02:00:00:00:00:b0" {
		t.Errorf("behind a bridge: %+v", got)
	}

	for _, tt := range []struct{ ns, name string }{{ns, "eth9"}, {ns, "lo"}} {
		if _, err := Resolve(e.ctx, tt.ns, tt.name); !errors.Is(err, ErrNoDevice) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if _, err := Resolve(e.ctx, "/nowhere", "eth0"); err == nil {
		t.Error("a namespace that does not exist: no error")
	}
}
