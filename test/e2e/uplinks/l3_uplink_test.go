// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
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
func tunnel(t testing.TB, w *e2etest.World) {
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
			e2etest.MustRun(t, ns, line)
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
	w := e2etest.NewWorld(t)
	tunnel(t, w)
	anotherUplink(t, w)
}

// anotherUplink sees a hostPort and masquerade by a device whose ends are 10.77.0.1 and fd00:77::1 on the node, .2 and ::2 on the
// client. Both use the fast path.
func anotherUplink(t *testing.T, w *e2etest.World) {
	t.Helper()
	rt := w.Runtime(e2etest.Net0())
	web, app := w.AddPod(rt, "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80)), w.AddPod(rt, "app")
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		ends := map[string][2]string{"4": {"10.77.0.1:", "10.77.0.2:"}, "6": {"[fd00:77::1]:", "[fd00:77::2]:"}}[fam.Suffix]
		for _, x := range []struct {
			from       e2etest.Place
			to         string
			name, seen string
		}{
			{w.Client(), ends[0] + "8080", "web", ends[1]},
			{app, ends[1] + "9000", "client", ends[0]},
		} {
			c, err := e2etest.Dial(x.from, proto+fam.Suffix, "", x.to)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if c.Answer.Server != x.name || !strings.HasPrefix(c.Answer.Peer.String(), x.seen) {
				t.Errorf("%s saw %s, want %s to see %s", c.Answer.Server, c.Answer.Peer, x.name, x.seen)
			}
			if err := c.SendRounds(e2etest.LongTalk); err != nil {
				t.Error(err)
			}
			if proto == "tcp" {
				e2etest.SendLong(t, c, strings.Repeat("x", e2etest.LongerThanQueues))
			}
		}
	})
	for _, p := range []*e2etest.Pod{web, app} {
		if c := w.Counters(t, p); c.RxFast < c.RxPackets/2 || c.TxFast < c.TxPackets/2 {
			t.Errorf("%s: %+v, want most packets on the fast path", p.Name, c)
		}
	}
}

// A VLAN device is an uplink as any other; what it carries is tagged on the wire.
func TestPrivilegedVLANUplink(t *testing.T) {
	t.Parallel()
	require.Link(t, "vlan")
	w := e2etest.NewWorld(t)
	for i, ns := range []interface{ Do(func() error) error }{w.Node, w.Client()} {
		for _, line := range []string{
			"ip link add link eth0 name tagged type vlan id 100", fmt.Sprintf("ip addr add 10.77.0.%d/24 dev tagged", i+1),
			fmt.Sprintf("ip addr add fd00:77::%d/64 dev tagged nodad", i+1), "ip link set tagged up",
		} {
			e2etest.MustRun(t, ns, line)
		}
	}
	anotherUplink(t, w)
}
