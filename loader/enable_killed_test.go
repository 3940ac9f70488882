// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
)

const enablerEnv = "SLUICE_TEST_ENABLER"

// An Enable that is killed at any call of bpf(2) leaves counters only where DEL finds them, by an address.
func TestPrivilegedKillWhileEnabling(t *testing.T) {
	if dir := os.Getenv(enablerEnv); dir != "" {
		enabler(t, dir)
		return
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal(err)
	}
	e := newEnv(t)
	e.uplink()
	d := e.open()
	e.ok(d.Enable(e.ctx, e.pod("pod0", "10.1.0.1/16"), FeatureMasquerade))
	ep := killedPod(e.pod("pod1", "10.1.0.2/16"))
	maps, err := d.tree.EndpointMaps()
	e.ok(err)
	for call := 1; ; call++ {
		cmd := exec.Command(strace, "-f", "-qq", "-o", "/dev/null", "-e", "trace=bpf", "-e", fmt.Sprintf("inject=bpf:signal=KILL:when=%d", call),
			os.Args[0], "-test.run=^TestPrivilegedKillWhileEnabling$")
		cmd.Env = append(os.Environ(), enablerEnv+"="+filepath.Dir(e.o.RunDir), fmt.Sprintf("%s_INDEX=%d", enablerEnv, ep.HostIfindex))
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && (!errors.As(err, &exit) || exit.Exited()) {
			t.Fatalf("call %d: %v: %s", call, err, out)
		}
		e.ok(d.Disable(e.ctx, ep.Ref.Owner(), FeatureMasquerade, HeldBy(ep.Addrs)))
		if has, herr := maps.Stats.Has(uint32(ep.HostIfindex)); has || herr != nil {
			t.Errorf("killed at call %d: DEL leaves counters: %t %v", call, has, herr)
		}
		for _, p := range ep.Addrs {
			if _, had, gerr := maps.Addrs.Get(p.Addr()); had || gerr != nil {
				t.Errorf("killed at call %d: DEL leaves %s: %v", call, p, gerr)
			}
		}
		if err == nil {
			t.Logf("%d calls", call-1)
			if call < 5 {
				t.Error("nothing was killed")
			}
			return
		}
	}
}

func killedPod(ep Endpoint) Endpoint {
	ep.Addrs = append(ep.Addrs, netip.MustParsePrefix("fd00:1::2/64"))
	return ep
}

// enabler is what is killed: it inherits the namespaces.
func enabler(t *testing.T, dir string) {
	runtime.LockOSThread() // strace counts the calls of a thread
	e := &env{t: t, ctx: t.Context(), o: testOptions(t, dir)}
	index, err := strconv.Atoi(os.Getenv(enablerEnv + "_INDEX"))
	e.ok(err)
	e.netlink()
	e.ok(e.open().Enable(e.ctx, killedPod(e.endpoint("pod1", index, "10.1.0.2/16")), FeatureMasquerade))
}
