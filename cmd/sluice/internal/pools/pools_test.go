// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// files writes a tree below a new directory.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func placesIn(dir string) Places {
	return Places{Networks: filepath.Join(dir, "networks"), Cluster: filepath.Join(dir, "cluster"), Confs: filepath.Join(dir, "net.d")}
}

func TestRead(t *testing.T) {
	t.Parallel()
	dir := files(t, map[string]string{
		"net.d/10-a.conflist": `{"name": "a", "plugins": [{"type": "bridge", "ipam": {"type": "host-local",
			"ranges": [[{"subnet": "10.1.0.0/24"}, {"subnet": "10.2.0.0/24", "rangeStart": "10.2.0.10", "rangeEnd": "10.2.0.19"}], [{"subnet": "fd00::/64"}]]}}, {"type": "portmap"}]}`,
		"net.d/20-b.conf":      `{"name": "b", "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.3.0.0/30", "dataDir": "` + "DIR" + `"}}`,
		"net.d/30-c.conflist":  `{"name": "c", "plugins": [{"type": "bridge", "ipam": {"type": "static"}}]}`,
		"net.d/40-no.conflist": `{"name": `,
		"net.d/README":         `{"name": "d", "ipam": {"type": "host-local", "subnet": "10.4.0.0/24"}}`,
		"networks/a/10.1.0.2":  "x", "networks/a/10.2.0.10": "x", "networks/a/fd00::2": "x", "networks/a/lock": "", "networks/a/last_reserved_ip.0": "10.1.0.2",
		"networks/old/10.9.0.2":      "x",
		"networks/.sluice/a/stamp":   "x",
		"networks/.sluice/a/1.1.1.1": "x",
		"cluster/store/10.20.0.0-16.json": `{"version": 2, "pool": "10.20.0.0-16", "cidr": "10.20.0.0/16", "scarce": true,
			"claims": [{"id": "x", "runs": [[1, 32]]}, {"id": "y", "runs": [[40, 40]], "hold": "sts"}], "free": [3, 4, 5]}`,
		"cluster/store/old.json":  `{"version": 1, "pool": "old", "cidr": "fd00:1::/64", "claims": [{"id": "x", "runs": [[0, 15]]}], "used": {"3": {"id": "c", "ifname": "eth0"}}}`,
		"cluster/store/new.lock":  "",
		"cluster/store/none.json": `{"version": 2}`,
	})
	conf := filepath.Join(dir, "net.d/20-b.conf")
	text, err := os.ReadFile(conf)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(conf, []byte(strings.Replace(string(text), "DIR", dir+"/elsewhere", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir+"/elsewhere/b/10.3.0.2", 0o755); err != nil { // a directory is no reservation
		t.Fatal(err)
	}
	got, err := Read(placesIn(dir))
	if err != nil {
		t.Error(err)
	}
	want := []Pool{
		{Plugin: Cluster, Name: "10.20.0.0-16", Family: "ipv4", Used: 30, Claims: 33, Scarce: true},
		{Plugin: HostLocal, Name: "a", Family: "ipv4", Used: 2, Size: 253 + 10},
		{Plugin: HostLocal, Name: "a", Family: "ipv6", Used: 1, Size: math.MaxUint64 - 1},
		{Plugin: HostLocal, Name: "old", Family: "ipv4", Used: 1},
		{Plugin: Cluster, Name: "old", Family: "ipv6", Used: 1, Claims: 16},
		{Plugin: HostLocal, Name: "b", Family: "ipv4", Size: 1},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A node without any of the files has no pools. What cannot be read is said, and keeps nothing else from being counted.
func TestReadParts(t *testing.T) {
	t.Parallel()
	if got, err := Read(placesIn(t.TempDir())); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	dir := files(t, map[string]string{"cluster/store/p.json": `{"pool": `, "networks/a/10.1.0.2": "x"})
	got, err := Read(placesIn(dir))
	if err == nil || !strings.Contains(err.Error(), "p.json") || len(got) != 1 {
		t.Errorf("%v, %v", got, err)
	}
}

// However many networks there are, the number of pools has a limit, and those in use stay.
func TestReadMost(t *testing.T) {
	t.Parallel()
	content := map[string]string{"networks/busy/10.1.0.2": "", "networks/busy/10.1.0.3": ""}
	for i := range Most + 20 {
		content[fmt.Sprintf("networks/n%03d/10.1.0.2", i)] = ""
	}
	got, err := Read(placesIn(files(t, content)))
	if err != nil || len(got) != Most || got[0].Name != "busy" {
		t.Errorf("%d pools, the first is %+v, %v", len(got), got[0], err)
	}
}
