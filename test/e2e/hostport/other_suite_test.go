// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// A container of another suite uses a hostPort of its node at each of the node's addresses, and a host behind the node. Its bridge is
// there before the pods, or comes later and is looked at then.
func TestPrivilegedHostPortFromOtherSuite(t *testing.T) {
	t.Parallel()
	require.BridgeNetfilter(t)
	dirs := map[string]string{"sluice": e2etest.Programs.Dir}
	if dir, err := testbin.Reference(t.Context(), "bridge", "ptp", "host-local", "portmap", "firewall"); err == nil {
		dirs["upstream"] = dir
	} else {
		t.Logf("no upstream plugins here: %v", err)
	}
	for suite, dir := range dirs {
		for _, network := range []e2etest.Network{e2etest.Net0(), e2etest.PTPNetwork()} {
			for i, rules := range e2etest.ContainerRules {
				late := i == 1
				t.Run(fmt.Sprintf("%s/to %s/%s", suite, cmp.Or(network.Main, "bridge"), rules.Name), func(t *testing.T) {
					t.Parallel()
					w := e2etest.NewWorld(t)
					var c e2etest.Place
					if !late {
						c = e2etest.AddContainer(t, w, rules.Script)
					}
					web := w.AddPod(w.RuntimeFrom(network, dir), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
					if late {
						c = e2etest.AddContainer(t, w, rules.Script)
						e2etest.MustRun(t, w.Node, e2etest.Programs.Path("sluice")+" resync")
					}
					e2etest.Serve(t, web, "web", ":80")
					e2etest.Serve(t, w.Client(), "client", ":9000")
					fromContainer(t, w, c)
				})
			}
		}
	}
}

func fromContainer(t *testing.T, w *e2etest.World, c e2etest.Place) {
	t.Helper()
	e2etest.EachTransport(t, func(t *testing.T, fam e2etest.Family, proto string) {
		for _, to := range []struct{ addr, server string }{
			{e2etest.At(fam.Node(w.Client()), 8080), "web"},
			{e2etest.At(e2etest.ContainerGateway(fam), 8080), "web"},
			{e2etest.At(fam.Client(w.Client()), 9000), "client"},
		} {
			if got := e2etest.Ask(t, c, proto, to.addr); got.Server != to.server {
				t.Errorf("%s: answered by %s, want %s", to.addr, got.Server, to.server)
			}
		}
	})
}

// With the packages' udev rule and systemd unit, a bridge that another suite makes after the last ADD waits for nobody. udev is the real one.
// In place of systemd, which is no process of a test, the test runs what the unit says.
func TestPrivilegedHostPortFromLateBridge(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	runUdev(t, w)
	web := w.AddPod(w.Runtime(e2etest.Net0()), "web", e2etest.TCP(8080, 80), e2etest.UDP(8080, 80))
	e2etest.Serve(t, web, "web", ":80")
	e2etest.Serve(t, w.Client(), "client", ":9000")
	done := make(chan error, 1)
	go func() { done <- w.Node.Do(runWanted) }()
	c := e2etest.AddContainer(t, w, "")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	fromContainer(t, w, c)
}

// runUdev starts udevd on the node, with the packages' rule alone.
func runUdev(t *testing.T, w *e2etest.World) {
	t.Helper()
	rule, err := os.ReadFile(deployed + "udev/80-sluice.rules")
	if err != nil {
		t.Fatal(err)
	}
	w.DoOnNode(func() error {
		if err := unix.Mount("tmpfs", "/lib/udev/rules.d", "tmpfs", 0, "mode=755"); err != nil {
			return err
		}
		return os.WriteFile("/lib/udev/rules.d/80-sluice.rules", rule, 0o600)
	})
	cmd := exec.Command("/lib/systemd/systemd-udevd")
	if err := w.Node.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	e2etest.Eventually(t, 10*time.Second, func() error {
		return w.Node.Do(func() error { _, err := os.Stat("/run/udev/control"); return err })
	})
}

const deployed = "../../../deploy/"

// runWanted runs the unit that udev wants for docker0, once it does.
func runWanted() error {
	const wanted = "E: SYSTEMD_WANTS=sluice-resync@docker0.service"
	for range 100 {
		out, _ := exec.Command("udevadm", "info", "/sys/class/net/docker0").Output() // an error until the bridge is there
		if slices.Contains(strings.Split(string(out), "\n"), wanted) {
			return startUnit(deployed+"systemd/sluice-resync@.service", "docker0")
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("docker0 without " + wanted)
}

func startUnit(file, instance string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	_, line, _ := strings.Cut(string(text), "\nExecStart=")
	line, _, _ = strings.Cut(line, "\n")
	args := strings.Fields(strings.ReplaceAll(line, "%i", instance))
	out, err := exec.Command(e2etest.Programs.Path(args[0]), args[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return nil
}
