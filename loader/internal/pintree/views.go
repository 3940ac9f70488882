// SPDX-License-Identifier: Apache-2.0

package pintree

import (
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
