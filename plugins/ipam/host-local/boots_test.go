// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// age moves the mtimes of address files back, as if written before the boot;
// nanoseconds stay.
func (b *bench) age(by time.Duration, names ...string) {
	b.t.Helper()
	for _, n := range names {
		p := filepath.Join(b.data, "net", n)
		fi, err := os.Stat(p)
		if err != nil {
			b.t.Fatal(err)
		}
		at := fi.ModTime().Add(-by)
		if err := os.Chtimes(p, at, at); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bench) reboot(id string, booted time.Time) { b.node.BootID, b.node.Booted = id, booted }

func TestRebootReclaims(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	b.put("10.1.0.6", "ref\r\neth0") // upstream's, seen by the next call
	b.mustAdd("a")
	b.mustAdd("b")
	b.age(time.Hour, "10.1.0.2", "10.1.0.3", "10.1.0.6")
	b.put("10.1.0.5", "unseen\r\neth0") // upstream's, after our last call
	b.age(time.Hour, "10.1.0.5")
	b.reboot("boot-2", time.Now().Add(-time.Minute))
	b.put("10.1.0.4", "alive\r\neth0") // upstream's, in this boot before our first call
	b.mustAdd("a")
	want := []string{"10.1.0.4", "10.1.0.5", "10.1.0.6", "last_reserved_ip.0"}
	// The cursor stood at .3, so the next free one is .6, just reclaimed.
	if diff := cmp.Diff(want, sorted(b.files())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := b.files()["10.1.0.6"]; got != "a\r\neth0" {
		t.Errorf(".6 holds %q", got)
	}
	// One more reboot: now the unseen one was seen in boot-2, and goes as well.
	b.age(time.Hour, "10.1.0.4", "10.1.0.5", "10.1.0.6")
	b.reboot("boot-3", time.Now().Add(-time.Minute))
	b.mustAdd("z")
	if diff := cmp.Diff([]string{"10.1.0.2", "last_reserved_ip.0"}, sorted(b.files())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A reservation of upstream's made in this boot is never reclaimed, even
// when the clock stood in the past at that time and was set right later.
func TestRebootWrongClock(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	b.mustAdd("a")
	b.reboot("boot-2", time.Now().Add(-time.Minute))
	b.put("10.1.0.3", "alive\r\neth0")
	b.age(50*365*24*time.Hour, "10.1.0.3", "10.1.0.2")
	b.mustAdd("b")
	if diff := cmp.Diff(map[string]string{"10.1.0.3": "alive\r\neth0", "10.1.0.4": "b\r\neth0", "last_reserved_ip.0": "10.1.0.4"}, b.files()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// With the clock behind at boot, old files seem new; they go when the pool needs them.
func TestRebootLateClock(t *testing.T) {
	t.Parallel()
	b := newBench(t, onePool)
	for _, id := range []string{"a", "b", "c", "d"} {
		b.mustAdd(id)
	}
	b.reboot("boot-2", time.Now().Add(-10*time.Hour)) // files seem to be of this boot
	b.mustAdd("e")
	if n := len(b.files()); n != 6 {
		t.Fatalf("files %v", b.files())
	}
	_, err := b.add("f", "eth0")
	wantCode(t, err, 104)
	b.node.Booted = time.Now().Add(time.Hour) // the clock is right now: they are old
	b.mustAdd("f")
	if diff := cmp.Diff(map[string]string{"10.1.0.6": "e\r\neth0", "10.1.0.2": "f\r\neth0", "last_reserved_ip.0": "10.1.0.2"}, b.files()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRebootOfUnknownMachine(t *testing.T) {
	t.Parallel()
	for name, node := range map[string]Node{
		"another machine": {MachineID: "other", BootID: "boot-2", Booted: time.Now()},
		"no machine id":   {BootID: "boot-2", Booted: time.Now()},
		"no boot id":      {MachineID: "m", Booted: time.Now()},
		"no uptime":       {MachineID: "m", BootID: "boot-2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, onePool)
			b.mustAdd("a")
			b.age(2*time.Hour, "10.1.0.2")
			b.node = node
			b.mustAdd("b")
			if got := b.files()["10.1.0.2"]; got != "a\r\neth0" {
				t.Errorf("the reservation is %q", got)
			}
		})
	}
}

// Whatever of ours vanishes or is garbage, reservations are safe.
func TestSideFilesMayVanish(t *testing.T) {
	t.Parallel()
	for _, name := range []string{noteName, stampName, ownersName, ""} {
		for _, how := range []string{"gone", "garbage"} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, onePool)
				b.mustAdd("a")
				b.age(2*time.Hour, "10.1.0.2")
				p := filepath.Join(b.data, sideDir, "net", name)
				if err := os.RemoveAll(p); err != nil {
					t.Fatal(err)
				}
				if how == "garbage" {
					if err := os.WriteFile(p, []byte("{x"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				b.mustAdd("b")
				_, err := b.add("a", "eth0")
				wantCode(t, err, 103)
				b.mustDel("b")
			})
		}
	}
}

func TestThisNode(t *testing.T) {
	t.Parallel()
	n := thisNode()
	if n.BootID == "" || n.Booted.After(time.Now()) || n.Booted.IsZero() {
		t.Errorf("node %+v", n)
	}
	if a, b := tag("x"), tag("y"); a == b || a <= 0 || a >= 1e9 {
		t.Errorf("tags %d, %d", a, b)
	}
}
