// SPDX-License-Identifier: Apache-2.0

package garbage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sluice-cni/sluice/pkg/agent/conflist"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/log"
)

// A node that leaves the network: pods whose namespace is gone are detached, the others are returned. A namespace that is named by a process
// is the runtime's to judge. Attachments of other networks count if Sluice has made them.
func TestLeaving(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	records := attachments.Open(filepath.Join(n.dir, "records"))
	record := func(network, id, netns string) {
		t.Helper()
		if err := records.Complete(attachments.ID{Network: network, ContainerID: id, IfName: "eth0"}, "ptp", nil); err != nil {
			t.Fatal(err)
		}
		if err := records.Begin(attachments.ID{Network: network, ContainerID: id, IfName: "eth0"}, netns, "ptp", nil); err != nil {
			t.Fatal(err)
		}
	}
	alive := filepath.Join(n.dir, "netns-alive")
	if err := os.WriteFile(alive, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"gone", "alive", "no-pod"} {
		n.add(id, 0)
	}
	record("sluice", "gone", filepath.Join(n.dir, "netns-gone"))
	record("other", "elsewhere", alive)
	record("other", "process", "/proc/1/ns/net")
	gc, err := conflist.ForGC("sluice")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range gc.Plugins[1:] { // the records stay here, so the plugins' GC is asked too
		if err := os.Link(filepath.Join(n.dir, "ptp"), filepath.Join(n.dir, p.Network.Type)); err != nil {
			t.Fatal(err)
		}
	}
	away := false
	l := &Leaving{
		Network: "sluice", CacheDir: n.dir, Records: records, GC: gc, Log: log.NewNop(), Plugins: func() ([]string, error) { return []string{n.dir}, nil },
		Sandboxes: func(context.Context) (map[string]bool, error) {
			if away {
				return nil, errors.New("away")
			}
			return n.known, nil
		},
	}
	want := func(when string, bad bool, ids ...string) {
		t.Helper()
		living, err := l.Sweep(t.Context())
		var got []string
		for _, id := range living {
			got = append(got, id.Network+"/"+id.ContainerID)
		}
		if !slices.Equal(got, ids) || (err != nil) != bad {
			t.Errorf("%s: %q, %v, want %q", when, got, err, ids)
		}
	}
	n.known["process"] = true
	want("first", false, "other/elsewhere", "other/process", "sluice/alive")
	if got := n.dels(); fmt.Sprint(got) != "[gone  no-pod ]" {
		t.Errorf("DEL of %q", got)
	}
	away = true
	want("the runtime is away", true, "other/elsewhere", "other/process", "sluice/alive")
	away = false
	clear(n.known)
	want("the runtime has lost one", false, "other/elsewhere", "sluice/alive")
	if err := os.Remove(alive); err != nil {
		t.Fatal(err)
	}
	want("all are gone", false)
	if got := n.dels(); fmt.Sprint(got) != "[alive  gone  no-pod ]" {
		t.Errorf("DEL of %q", got)
	}
}
