// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/cniskel"
)

// TestMain lets this test binary be the plugin, so that many real processes
// can compete for addresses.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_HOST_LOCAL") != "" {
		os.Exit(New(Deps{}).Main(cniskel.Options{}))
	}
	os.Exit(m.Run())
}

func process(t testing.TB, verb, id, conf string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = []string{
		"TEST_HOST_LOCAL=1", "CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0",
		"CNI_NETNS=/no/such/ns", "CNI_PATH=/no/such/dir",
		"GORACE=atexit_sleep_ms=0", // with the race detector a process would wait a second at its end
	}
	c.Stdin = strings.NewReader(conf)
	return c
}

func processConf(dir string) string {
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00::/64"}]]}}`, dir)
}

func TestProcessesNeverShareAnAddress(t *testing.T) {
	t.Parallel()
	const workers, rounds = 12, 8
	dir := t.TempDir()
	conf := processConf(dir)
	var mu sync.Mutex
	holder := map[string]string{}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for r := range rounds {
				id := fmt.Sprintf("c%d-%d", w, r)
				out, err := process(t, "ADD", id, conf).Output()
				if err != nil {
					t.Errorf("ADD %s: %v: %s", id, err, out)
					return
				}
				var res struct {
					IPs []struct{ Address string } `json:"ips"`
				}
				if err := json.Unmarshal(out, &res); err != nil || len(res.IPs) != 2 {
					t.Errorf("ADD %s printed %s: %v", id, out, err)
					return
				}
				mu.Lock()
				for _, ip := range res.IPs {
					if other, ok := holder[ip.Address]; ok {
						t.Errorf("%s was given to %s and %s", ip.Address, other, id)
					}
					holder[ip.Address] = id
				}
				mu.Unlock()
				if r%3 == 2 {
					continue // stays
				}
				mu.Lock()
				for _, ip := range res.IPs {
					delete(holder, ip.Address)
				}
				mu.Unlock()
				if out, err := process(t, "DEL", id, conf).Output(); err != nil {
					t.Errorf("DEL %s: %v: %s", id, err, out)
				}
			}
		}()
	}
	wg.Wait()
	left := reservations(t, dir)
	if len(left) != len(holder) {
		t.Errorf("%d reservations are left, want %d", len(left), len(holder))
	}
}

func reservations(t testing.TB, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "net"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err == nil {
			b, err := os.ReadFile(filepath.Join(dir, "net", e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			out[e.Name()] = string(b)
		}
	}
	return out
}

// A plugin killed at any moment leaves addresses with an owner or no file.
func TestKilledProcessesLeaveNothingUnowned(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf := processConf(dir)
	const n = 60
	begun := time.Now()
	if out, err := process(t, "ADD", fmt.Sprintf("k%d", n-1), conf).Output(); err != nil {
		t.Fatalf("ADD: %v: %s", err, out)
	}
	whole := time.Since(begun) // most of it is the start of the process, more so on a slow machine
	for i := range n - 1 {
		c := process(t, "ADD", fmt.Sprintf("k%d", i), conf)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(whole * time.Duration(i) / n)
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	for addr, owner := range reservations(t, dir) {
		if !strings.HasPrefix(owner, "k") || !strings.HasSuffix(owner, "\r\neth0") {
			t.Errorf("%s has the owner %q", addr, owner)
		}
	}
	for i := range n {
		if out, err := process(t, "DEL", fmt.Sprintf("k%d", i), conf).Output(); err != nil {
			t.Fatalf("DEL: %v: %s", err, out)
		}
	}
	if left := reservations(t, dir); len(left) != 0 {
		t.Errorf("left after DEL: %v", left)
	}
}

// A lock that another process holds ends in "try again", not in a hang.
func TestLockedDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "net", lockName))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	c := process(t, "ADD", "pod", processConf(dir))
	var out bytes.Buffer
	c.Stdout = &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	waitUntilBlocked(t, c.Process.Pid)
	time.Sleep(time.Second) // a plugin listens to signals when it has run for a while
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = c.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(out.String(), `"code": 11`) {
		t.Errorf("%v: %s", err, out.String())
	}
}

// waitUntilBlocked returns when the process waits for a lock.
func waitUntilBlocked(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		locks, err := os.ReadFile("/proc/locks")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range strings.Split(string(locks), "\n") {
			if f := strings.Fields(l); len(f) > 5 && f[1] == "->" && f[5] == fmt.Sprint(pid) {
				return
			}
		}
	}
	t.Fatal("the process does not wait for the lock")
}

// Where unnamed files are impossible, a reservation is made as upstream
// makes it.
func TestWithoutUnnamedFiles(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "10.1.0.2")
	f := &unnamed{owner: "pod\r\neth0", mtime: time.Unix(1e9, 77)}
	if err := f.link(path); err != nil {
		t.Fatal(err)
	}
	if err := f.link(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a taken name gave %v", err)
	}
	b, err := os.ReadFile(path)
	if err != nil || string(b) != f.owner {
		t.Errorf("content %q, %v", b, err)
	}
	if fi, err := os.Stat(path); err != nil || !fi.ModTime().Equal(f.mtime) || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
}

// A pod that was at /proc/PID/ns/net has gone, and the PID is one of the node's by now: DEL says so, as upstream does,
// and still gives the address back.
func TestDelWithOwnNetNS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	conf := processConf(dir)
	if out, err := process(t, "ADD", "c1", conf).Output(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := process(t, "DEL", "c1", conf)
	c.Env = append(c.Env, "CNI_NETNS=/proc/self/ns/net")
	if out, err := c.Output(); err == nil || !strings.Contains(string(out), `"code": 8`) {
		t.Errorf("%v: %s", err, out)
	}
	if left := reservations(t, dir); len(left) != 0 {
		t.Errorf("still reserved: %v", left)
	}
}
