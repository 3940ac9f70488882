// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolTxCsum is ETHTOOL_STXCSUM of linux/ethtool.h.
const ethtoolTxCsum = 0x17

// noTxChecksums makes a device's packets carry whole checksums, as hardware
// without offload does. It runs inside the namespace of the device.
func noTxChecksums(dev string) error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	value := struct{ cmd, data uint32 }{ethtoolTxCsum, 0}
	req := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // the kernel copies a whole struct ifreq
	}{data: unsafe.Pointer(&value)}
	copy(req.name[:], dev)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
		return errno
	}
	return nil
}

// A veth carries packets with half-made checksums that nobody ever looks at.
// With offload off, senders or the uplink make whole ones, and receivers check
// them: a wrong update of either kind loses every packet.
func TestPrivilegedChecksums(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		off  func(w *world, pods ...*pod) error
	}{
		{"made by the senders", func(w *world, pods ...*pod) error {
			for _, p := range pods {
				if err := p.Do(func() error { return noTxChecksums("eth0") }); err != nil {
					return err
				}
			}
			return w.Client().Do(func() error { return noTxChecksums("eth0") })
		}},
		{"made by the uplink", func(w *world, _ ...*pod) error {
			return w.Node.Do(func() error { return noTxChecksums("eth0") })
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			rt := w.runtime(net0())
			web, app := w.add(rt, "web", tcp(8080, 80), udp(8080, 80)), w.add(rt, "app")
			serve(t, web, "web", ":80")
			serve(t, w.Client(), "client", ":9000")
			if err := tt.off(w, web, app); err != nil {
				t.Fatal(err)
			}
			eachTransport(t, func(t *testing.T, fam family, proto string) {
				ask(t, w.Client(), proto, at(fam.node(w.Client()), 8080))
				ask(t, app, proto, at(fam.client(w.Client()), 9000))
				ask(t, w.Client(), proto, at(fam.pod(web), 80))
				ask(t, app, proto, at(fam.pod(web), 80))
				ask(t, w.Node, proto, at(fam.pod(web), 80))
			})
			eachFamily(t, func(t *testing.T, fam family) {
				if err := ping(app, fam, fam.client(w.Client()), 7, 1); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
