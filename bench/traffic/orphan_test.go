// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// benchArg makes the test binary a benchmark that waits to be killed.
const benchArg = "bench"

// killed is its life.
func killed() error {
	l, err := netlab.New(netlab.Options{})
	if err != nil {
		return err
	}
	a, err := Start(l.Node.NS)
	if err != nil {
		return err
	}
	if _, err := a.Call(Request{Op: "serve", Addr: netip.AddrPortFrom(netlab.IP4(l.Client().Uplink.Node), 7000)}); err != nil {
		return err
	}
	fmt.Println(a.cmd.Process.Pid)
	time.Sleep(time.Minute)
	return nil
}

// What a killed benchmark has started must not take CPU time from the next one, whatever it is at: an agent that is stopped does
// not see that its input ends.
func TestPrivilegedAgentEndsWithItsParent(t *testing.T) {
	bench := exec.Command("/proc/self/exe", benchArg)
	bench.Stderr = os.Stderr
	out, err := bench.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := bench.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = bench.Wait() }()
	defer func() { _ = bench.Process.Kill() }()
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	agent, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(agent) }()
	if err := unix.PidfdSendSignal(agent, unix.SIGSTOP, nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := bench.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if done, err := netlab.Ended(agent, netlab.Patient(3*time.Second)); !done || err != nil {
		_ = unix.PidfdSendSignal(agent, unix.SIGKILL, nil, 0)
		t.Errorf("the agent lives on after its parent (%v)", err)
	}
}
