// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// SluiceJSON runs "sluice ARGS -o json" on the node and decodes what it prints.
func (w *World) SluiceJSON(t testing.TB, into any, args ...string) {
	t.Helper()
	line := strings.Join(append([]string{Programs.Path("sluice")}, args...), " ") + " -o json"
	out := MustRun(t, w.Node, line)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("sluice %v: %v\n%s", args, err, out)
	}
}

// Counters are what "sluice endpoints" prints about one endpoint.
type Counters struct {
	Addresses []netip.Prefix `json:"addresses"`
	RxPackets uint64         `json:"rx_packets"`
	TxPackets uint64         `json:"tx_packets"`
	RxFast    uint64         `json:"rx_fast_packets"`
	TxFast    uint64         `json:"tx_fast_packets"`
	Drops     uint64         `json:"drops"`
}

// Counters returns what the datapath counted for a pod.
func (w *World) Counters(t testing.TB, p *Pod) Counters {
	t.Helper()
	var endpoints []Counters
	w.SluiceJSON(t, &endpoints, "endpoints")
	for _, e := range endpoints {
		if slices.ContainsFunc(e.Addresses, func(a netip.Prefix) bool { return a.Addr() == p.IP4 || a.Addr() == p.IP6 }) {
			return e
		}
	}
	t.Fatalf("sluice endpoints does not know %s (%s, %s): %+v", p.Name, p.IP4, p.IP6, endpoints)
	return Counters{}
}

// NodeStatus is the part of "sluice status -o json" that tests look at.
type NodeStatus struct {
	Drops []struct {
		Reason  string `json:"reason"`
		Packets int    `json:"packets"`
	} `json:"drops"`
	Local struct {
		Cgroup   string `json:"cgroup"`
		Attached bool   `json:"attached"`
		Reason   string `json:"reason"`
	} `json:"local"`
}

// Status runs "sluice status".
func (w *World) Status() NodeStatus {
	w.T.Helper()
	var s NodeStatus
	if err := json.Unmarshal([]byte(MustRun(w.T, w.Node, Programs.Path("sluice")+" status -o json")), &s); err != nil {
		w.T.Fatal(err)
	}
	return s
}

// Drops is the number of packets dropped for a reason, as "sluice status" words it.
func (w *World) Drops(reason string) int {
	w.T.Helper()
	total := 0
	for _, d := range w.Status().Drops {
		if d.Reason == reason {
			total += d.Packets
		}
	}
	return total
}

// pinRoot is where the datapath pins its objects.
const pinRoot = "/sys/fs/bpf/sluice"

// pins returns the pinned objects whose path contains text. None is an error.
func pins(text string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(pinRoot, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(path, text) {
			found = append(found, path)
		}
		return err
	})
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("nothing is pinned under %s with %q in its path", pinRoot, text)
	}
	return found, err
}

// RemovePins removes the pinned objects whose path contains text.
func RemovePins(w *World, text string) {
	w.T.Helper()
	w.DoOnNode(func() error {
		found, err := pins(text)
		for _, path := range found {
			err = errors.Join(err, os.Remove(path))
		}
		return err
	})
}

// EmptyMap deletes every entry of a pinned hash map, which must have some.
func EmptyMap(w *World, name string) {
	w.T.Helper()
	w.DoOnNode(func() error {
		path, err := PinnedMap(name)
		if err != nil {
			return err
		}
		return emptyPinned(path)
	})
}

// PinnedMap returns the path of a pinned map, on the node of the calling thread.
func PinnedMap(name string) (string, error) {
	found, err := pins("/maps/")
	if err != nil {
		return "", err
	}
	for _, path := range found {
		if filepath.Base(path) == name {
			return path, nil
		}
	}
	return "", fmt.Errorf("no map %s among %v", name, found)
}

func emptyPinned(path string) error {
	m, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return err
	}
	defer m.Close()
	key := make([]byte, m.KeySize())
	for n := 0; ; n++ {
		if err := m.NextKey(nil, &key); errors.Is(err, ebpf.ErrKeyNotExist) {
			if n == 0 {
				return fmt.Errorf("%s was empty", path)
			}
			return nil
		} else if err != nil {
			return err
		}
		if err := m.Delete(key); err != nil {
			return err
		}
	}
}
