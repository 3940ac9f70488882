// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"fmt"

	"github.com/sluice-cni/sluice/pkg/maps/cacheepoch"
	"github.com/sluice-cni/sluice/pkg/maps/endpoint"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/maps/podns"
)

// EndpointMaps are the views of the maps about pods.
type EndpointMaps struct {
	Addrs   endpoint.Map
	Stats   endpoint.Stats
	Devices endpoint.Devices
}

// EndpointMaps returns the views. A tree of an earlier build has no map of devices: that view is empty and takes nothing.
func (t *Tree) EndpointMaps() (EndpointMaps, error) {
	am, err := t.Pinned(MapEndpoints)
	if err != nil {
		return EndpointMaps{}, err
	}
	sm, err := t.Pinned(MapEpStats)
	if err != nil {
		return EndpointMaps{}, err
	}
	em, err := t.Pinned(MapCacheEpoch)
	if err != nil {
		return EndpointMaps{}, err
	}
	dm, err := t.Pinned(MapPodDevices)
	if IgnoreNotLoaded(err) != nil {
		return EndpointMaps{}, err
	}
	return EndpointMaps{endpoint.New(am, cacheepoch.New(em)), endpoint.NewStats(sm), endpoint.NewDevices(dm)}, nil
}

// HostPortMap returns the view of the map of hostPorts.
func (t *Tree) HostPortMap() (hostport.Map, error) {
	m, err := t.Pinned(MapHostPorts)
	if err != nil {
		return hostport.Map{}, err
	}
	e, err := t.Pinned(MapCacheEpoch)
	return hostport.New(m, cacheepoch.New(e)), err
}

// PodMACs returns the view of the map of source MAC checks.
func (t *Tree) PodMACs() (endpoint.PodMACs, error) {
	m, err := t.Pinned(MapPodMACs)
	return endpoint.NewPodMACs(m), err
}

// MACCheckedDevices returns the devices with a source MAC check. A set of programs of an older build has none.
func (t *Tree) MACCheckedDevices() (map[int]bool, error) {
	m, err := t.PodMACs()
	if err != nil {
		return nil, IgnoreNotLoaded(err)
	}
	all, err := m.All()
	if err != nil {
		return nil, fmt.Errorf("source MAC checks: %w", err)
	}
	set := make(map[int]bool, len(all))
	for index := range all {
		set[int(index)] = true
	}
	return set, nil
}

// AttachedDevices returns the devices that have, or should have, programs: by the maps and by the pins. The value of an uplink
// says whether it is without Ethernet header.
func (t *Tree) AttachedDevices() (pods, uplinks map[int]bool, err error) {
	pods, uplinks = make(map[int]bool), make(map[int]bool)
	em, err := t.Pinned(MapEpStats)
	if err != nil {
		return nil, nil, err
	}
	keys, err := endpoint.NewStats(em).Keys()
	if err != nil {
		return nil, nil, err
	}
	for _, k := range keys {
		if !podns.IsKey(k) {
			pods[int(k)] = true
		}
	}
	um, err := t.Pinned(MapUplinks)
	if err != nil {
		return nil, nil, err
	}
	all, err := endpoint.NewUplinks(um).All()
	if err != nil {
		return nil, nil, err
	}
	for k, src := range all {
		uplinks[int(k)] = src.Bare
	}
	return pods, uplinks, nil
}
