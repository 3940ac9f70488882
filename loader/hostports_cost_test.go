// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"testing"

	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// countingMap counts what a change does to the map of hostPorts.
type countingMap struct {
	hostPortMap
	calls int // for one key
	reads int // of the whole map
}

func (m *countingMap) Get(k hostport.Key) (hostport.Entry, bool, error) {
	m.calls++
	return m.hostPortMap.Get(k)
}

func (m *countingMap) Put(e hostport.Entry) error {
	m.calls++
	return m.hostPortMap.Put(e)
}

func (m *countingMap) Delete(k hostport.Key) error {
	m.calls++
	return m.hostPortMap.Delete(k)
}

func (m *countingMap) Each(f func(hostport.Entry) bool) error {
	m.reads++
	return m.hostPortMap.Each(f)
}

// With the keys of the attachment record, ADD and DEL cost O(own ports), however many the node has. Without them they read the whole
// map.
func TestPrivilegedHostPortsCost(t *testing.T) {
	const foreign, own = 10_000, 3
	e := newEnv(t)
	e.o.Config.MapSizes.HostPorts = foreign + 100
	d := e.open()
	real, err := d.tree.HostPortMap()
	e.ok(err)
	for i := range foreign {
		e.ok(real.Put(hostport.NewEntry(port(uint16(20_000+i), "10.1.0.9", 80), 9, 1)))
	}
	ports := make([]hostport.Mapping, own)
	for i := range ports {
		ports[i] = port(uint16(8080+i), "10.1.0.2", 80)
	}
	const owner = 1
	none, keys := []hostport.Key{}, keysOf(ports...)
	for _, step := range []struct {
		name  string
		reads int
		do    func(m hostPortMap) error
	}{
		{"first ADD", 0, func(m hostPortMap) error { return d.setHostPortsLocked(e.ctx, m, owner, none, ports) }},
		{"the same ADD", 0, func(m hostPortMap) error { return d.setHostPortsLocked(e.ctx, m, owner, keys, ports) }},
		{"ADD of fewer", 0, func(m hostPortMap) error { return d.setHostPortsLocked(e.ctx, m, owner, keys, ports[:1]) }},
		{"DEL", 0, func(m hostPortMap) error { return d.removeHostPortsLocked(m, owner, keys, false) }},
		{"ADD, record not readable", 1, func(m hostPortMap) error { return d.setHostPortsLocked(e.ctx, m, owner, nil, ports) }},
		{"DEL without a record", 1, func(m hostPortMap) error { return d.removeHostPortsLocked(m, owner, nil, false) }},
	} {
		m := &countingMap{hostPortMap: real}
		unlock, err := d.tree.Writer(e.ctx)
		e.ok(err)
		err = step.do(m)
		unlock()
		e.ok(err)
		if m.reads != step.reads || m.calls > 3*own {
			t.Errorf("%s: %d reads of the whole map, want %d; %d calls for one key, want at most %d", step.name, m.reads, step.reads, m.calls, 3*own)
		}
	}
	if n, err := real.Len(); n != foreign || err != nil {
		t.Errorf("%d hostPorts are left of %d: %v", n, foreign, err)
	}
}
