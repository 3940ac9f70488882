// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

// openTUN makes a device without Ethernet header in the calling thread's namespace.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	req := struct {
		name  [unix.IFNAMSIZ]byte
		flags uint16
		_     [22]byte // the kernel copies a whole struct ifreq
	}{flags: unix.IFF_TUN | unix.IFF_NO_PI}
	copy(req.name[:], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&req))); errno != 0 {
		_ = unix.Close(fd)
		return nil, errno
	}
	return os.NewFile(uintptr(fd), name), nil
}

// tunnel joins the node and the client by a pair of TUN devices, each with packets of
// the other: 10.77.0.1 and fd00:77::1 are the node's ends.
func tunnel(t testing.TB, w *world) {
	t.Helper()
	var files []*os.File
	for i, ns := range []interface{ Do(func() error) error }{w.Node, w.Client()} {
		var f *os.File
		err := ns.Do(func() (err error) {
			f, err = openTUN("tun0")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		files = append(files, f)
		end := string(rune('1' + i))
		for _, line := range []string{
			"ip link set tun0 up", "ip addr add 10.77.0." + end + "/24 dev tun0", "ip addr add fd00:77::" + end + "/64 dev tun0 nodad",
		} {
			sh(t, ns, line)
		}
	}
	for i := range files {
		go func(from, to *os.File) {
			b := make([]byte, 1<<16)
			for {
				n, err := from.Read(b)
				if err != nil {
					return
				}
				_, _ = to.Write(b[:n])
			}
		}(files[i], files[1-i])
	}
}

// An uplink without Ethernet header (TUN, as WireGuard's) carries hostPorts and masquerade.
func TestPrivilegedL3Uplink(t *testing.T) {
	t.Parallel()
	require.Link(t, "tun")
	w := newWorld(t)
	tunnel(t, w)
	anotherUplink(t, w)
}

// anotherUplink sees a hostPort and masquerade by a device whose ends are 10.77.0.1 and fd00:77::1 on the node, .2 and ::2 on the
// client. It returns the pods.
func anotherUplink(t *testing.T, w *world) (web, app *pod) {
	t.Helper()
	rt := w.runtime(net0())
	web, app = w.add(rt, "web", tcp(8080, 80), udp(8080, 80)), w.add(rt, "app")
	serve(t, web, "web", ":80")
	serve(t, w.Client(), "client", ":9000")
	eachTransport(t, func(t *testing.T, fam family, proto string) {
		ends := map[string][2]string{"4": {"10.77.0.1:", "10.77.0.2:"}, "6": {"[fd00:77::1]:", "[fd00:77::2]:"}}[fam.suffix]
		for _, x := range []struct {
			from       place
			to         string
			name, seen string
		}{
			{w.Client(), ends[0] + "8080", "web", ends[1]},
			{app, ends[1] + "9000", "client", ends[0]},
		} {
			c, err := dial(x.from, proto+fam.suffix, "", x.to)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if c.answer.name != x.name || !strings.HasPrefix(c.answer.peer.String(), x.seen) {
				t.Errorf("%s saw %s, want %s to see %s", c.answer.name, c.answer.peer, x.name, x.seen)
			}
			if err := c.rounds(longTalk); err != nil {
				t.Error(err)
			}
			if proto == "tcp" {
				say(t, c, strings.Repeat("x", much))
			}
		}
	})
	return web, app
}

// A VLAN device is an uplink as any other, shortcut and all; what it carries is tagged on the wire.
func TestPrivilegedVLANUplink(t *testing.T) {
	t.Parallel()
	require.Link(t, "vlan")
	w := newWorld(t)
	for i, ns := range []interface{ Do(func() error) error }{w.Node, w.Client()} {
		for _, line := range []string{
			"ip link add link eth0 name tagged type vlan id 100", fmt.Sprintf("ip addr add 10.77.0.%d/24 dev tagged", i+1),
			fmt.Sprintf("ip addr add fd00:77::%d/64 dev tagged nodad", i+1), "ip link set tagged up",
		} {
			sh(t, ns, line)
		}
	}
	web, app := anotherUplink(t, w)
	if c := w.counters(t, web); c.RxFast == 0 || c.TxFast == 0 {
		t.Errorf("hostPort: %+v, want packets on the shortcut", c)
	}
	if c := w.counters(t, app); c.RxFast == 0 || c.TxFast == 0 {
		t.Errorf("masquerade: %+v, want packets on the shortcut", c)
	}
}
