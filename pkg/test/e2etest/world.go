// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// Programs holds the binaries under test. Main builds them once for a package.
var Programs *testbin.Set

// Main is what a package's TestMain calls: it builds the binaries under test,
// runs the package's tests and ends the process with their exit status. extra are programs that few tests need.
func Main(m *testing.M, extra ...string) {
	set, err := testbin.Build(extra...)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	Programs = set
	code := m.Run()
	if err := set.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// VerbTimeout bounds one verb of a whole chain.
var VerbTimeout = netlab.Patient(time.Minute)

// World is a node with its clients, made for one test.
type World struct {
	*netlab.Lab
	T testing.TB
	// Stderr collects what the plugins write there.
	Stderr *LogBuffer
}

// NewWorld makes a node with the uplinks that o asks for, netlab's default without. It
// goes with the test. A test that fails logs what the plugins wrote to stderr.
func NewWorld(t *testing.T, o ...netlab.Options) *World {
	t.Helper()
	w := &World{Lab: netlab.NewT(t, o...), T: t, Stderr: &LogBuffer{}}
	t.Cleanup(func() {
		if t.Failed() && w.Stderr.String() != "" {
			t.Logf("the plugins' stderr:\n%s", w.Stderr)
		}
	})
	return w
}

// TwoUplinks is a node with two devices and a client on each.
func TwoUplinks() netlab.Options {
	return netlab.Options{Uplinks: []netlab.Uplink{netlab.DefaultUplink(0), netlab.DefaultUplink(1)}}
}

// Runtime loads a network into the node's container runtime, with the plugins under test.
func (w *World) Runtime(n Network) *netlab.Runtime {
	w.T.Helper()
	return w.RuntimeFrom(n, Programs.Dir)
}

// RuntimeFrom is Runtime with the plugins of another directory, such as upstream's.
func (w *World) RuntimeFrom(n Network, dir string) *netlab.Runtime {
	w.T.Helper()
	rt, err := w.Node.CNI(netlab.CNIOptions{Path: []string{dir}, Conflist: n.Conflist(w.T), Stderr: w.Stderr})
	if err != nil {
		w.T.Fatal(err)
	}
	return rt
}

// Configure writes the node's /etc/sluice/config.json.
func (w *World) Configure(conf string) {
	w.T.Helper()
	if err := w.Node.Do(func() error { return os.WriteFile("/etc/sluice/config.json", []byte(conf), 0o644) }); err != nil {
		w.T.Fatal(err)
	}
}

// DoOnNode runs f inside the node and ends the test on an error.
func (w *World) DoOnNode(f func() error) {
	w.T.Helper()
	if err := w.Node.Do(f); err != nil {
		w.T.Fatal(err)
	}
}

// MustRun runs a command line in a namespace and returns what it prints. It splits the
// line at spaces and knows no quotes: see RunScript. A failure ends the test.
func MustRun(t testing.TB, ns interface{ Do(func() error) error }, line string) string {
	t.Helper()
	var out string
	err := ns.Do(func() (err error) {
		args := strings.Fields(line)
		out, err = netlab.Run(args[0], args[1:]...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// RunScript runs a shell script on the node. A failure ends the test.
func RunScript(t testing.TB, w *World, script string) {
	t.Helper()
	if err := w.Node.Do(func() error {
		_, err := netlab.Run("sh", "-ec", script)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// Has reports whether the node has a device of that name.
func (w *World) Has(name string) bool {
	w.T.Helper()
	return w.Node.Do(func() error { _, err := netlab.Run("ip", "link", "show", name); return err }) == nil
}

// Eventually calls f until it succeeds, for what the kernel does in its own time. After
// limit (times netlab.EnvPatience) the last error ends the test.
func Eventually(t testing.TB, limit time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(netlab.Patient(limit))
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// AtOnce runs functions side by side and waits for all of them: checks that mostly
// wait. They may fail the test, but must not end it (testing.T.FailNow).
func AtOnce(fs ...func()) {
	var wg sync.WaitGroup
	for _, f := range fs {
		wg.Go(f)
	}
	wg.Wait()
}

// LogBuffer is a bytes.Buffer that many processes may write to at once.
type LogBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write appends to the buffer.
func (b *LogBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns what was written so far.
func (b *LogBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Namespace runs a function on a thread inside: a node, a client or a pod.
type Namespace interface{ Do(func() error) error }
