// SPDX-License-Identifier: Apache-2.0

package scenarios

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-cni/sluice/test/cluster/kube"
)

// fullDisks fill what an ADD writes to, and empty it again. /run is a file system of its own. /var/lib/cni gets one for a while.
var fullDisks = map[string]struct{ fill, empty string }{
	"run": {
		fill: `used=$(df --output=used -k /run | tail -1)
mount -o remount,size=$((used + 16))k /run
cat /dev/zero > /run/full 2>/dev/null || true`,
		empty: `rm /run/full; mount -o remount,size=50% /run`,
	},
	"var-lib-cni": {
		fill: `mkdir -p /tmp/small; mount -t tmpfs -o size=256k,mode=755 tmpfs /tmp/small; cp -a /var/lib/cni/. /tmp/small
mount --bind /tmp/small /var/lib/cni; cat /dev/zero > /var/lib/cni/full 2>/dev/null || true`,
		empty: `rm /var/lib/cni/full; umount /var/lib/cni; find /var/lib/cni -mindepth 1 -delete; cp -a /tmp/small/. /var/lib/cni; umount /tmp/small`,
	},
}

// A disk is full: a new pod waits and is told why, those that run are reached, one of them can be deleted. With room, the new one comes up and
// nothing is left of its failed starts.
func TestPrivilegedDiskFull(t *testing.T) {
	s := open(t)
	last := len(s.Node) - 1
	before := s.settledState()
	w := underLoad(s)
	for name, disk := range fullDisks {
		kept := s.pod(name+"-kept", last, corev1.ContainerPort{ContainerPort: httpPort, HostPort: 27000})
		goes := s.pod(name+"-goes", last, corev1.ContainerPort{ContainerPort: httpPort, HostPort: 27001})
		_, err := s.Node[last].Shell(t.Context(), disk.fill)
		s.must(err)
		spec := podSpec(name+"-waits", s.Node[last].Name, nil, corev1.ContainerPort{ContainerPort: httpPort, HostPort: 27002})
		s.createOnly(spec)
		s.until("the failure is told", func(ctx context.Context) error {
			for _, e := range s.failedAdds(ctx) {
				if e.InvolvedObject.Name == spec.Name && strings.Contains(e.Message, "no space left on device") {
					return nil
				}
			}
			return errors.New("no Event says so")
		})
		s.reaches("outside", s.asMachine(s.Outside), kube.NodeAddrs(last)[0], map[string]int{"http": 27000}, kept.name)
		s.delete(goes)
		_, err = s.Node[last].Shell(t.Context(), disk.empty)
		s.must(err)
		waits := s.ready(spec.Name)
		s.reaches("outside", s.asMachine(s.Outside), kube.NodeAddrs(last)[0], map[string]int{"http": 27002}, waits.name)
		s.delete(waits, kept)
	}
	w.unharmed()
	w.delete()
	s.nothingLeft(before)
	s.doctor()
}

// stamps gives what the node's files say of the time another value. The clock itself is the real machine's.
const stamps = `find /run/sluice /var/lib/cni /var/lib/sluice /etc/sluice /etc/cni/net.d /opt/cni/bin -exec touch -h -d "$1" {} + 2>/dev/null || true`

// The clock jumps, as far as files tell of it: their times are of the future, then of the distant past. Pods are reached, come and go.
func TestPrivilegedClockJump(t *testing.T) {
	s := open(t)
	before := s.settledState()
	w := underLoad(s)
	pods := startChurn(s)
	old := s.pod("old", 0, corev1.ContainerPort{ContainerPort: httpPort, HostPort: 27100})
	for _, when := range []string{"now + 10 years", "1980-01-01", "now"} {
		for i := range s.Node {
			_, err := s.Node[i].Run(t.Context(), "sh", "-c", stamps, "stamps", when)
			s.must(err)
			s.must(s.Resync(t.Context(), i, kube.Sluice))
		}
		time.Sleep(3 * time.Second) // pods come and go
		s.reaches("outside", s.asMachine(s.Outside), kube.NodeAddrs(0)[0], map[string]int{"http": 27100}, old.name)
	}
	pods.unharmed(3 * len(s.Node))
	w.unharmed()
	w.delete(old)
	s.nothingLeft(before)
	s.doctor()
}
