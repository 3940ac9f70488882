// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"math"
	"path"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/sysctl"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// An accepted parameter is a file below /proc/sys/net, each has one value, and each number fits the kernel's.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddConfigurations(f, Name,
		`{"cniVersion":"1.1.0","name":"n","type":"tuning","sysctl":{"net.core.somaxconn":"500","net/ipv4/conf/IFNAME/arp_filter":"1"},"mac":"02:00:00:00:00:01","mtu":1400,"promisc":true,"allmulti":false,"txQLen":0,"args":{"cni":{"sysctl":{"net.ipv4.ip_forward":"1"},"mac":"","mtu":9000}}}`)
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		size := len(stdin) + len(args)
		var w *wanted
		var err error
		fuzztest.Bounded(t, size, func() { w, err = parse(stdin, "c", args, "eth0") })
		if err != nil {
			fuzztest.Refused(t, err, size, "sysctl", "args.cni.sysctl")
			return
		}
		fuzztest.UnicastMAC(t, w.mac)
		fuzztest.Between(t, "mtu", w.mtu, 0, math.MaxInt32)
		if w.txQLen != nil {
			fuzztest.Between(t, "txQLen", *w.txQLen, 0, math.MaxUint32)
		}
		values := map[string]string{}
		for _, s := range w.sysctls {
			if !strings.HasPrefix(s.path, "net/") || path.Clean(s.path) != s.path || strings.ContainsRune(s.path, 0) {
				t.Errorf("accepted the path %q", s.path)
			}
			if v, ok := values[s.path]; ok && !sysctl.Equal(v, s.value) {
				t.Errorf("%s gets %q and %q", s.path, v, s.value)
			}
			values[s.path] = s.value
		}
	})
}
