// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What is said of a full map can be done: the key exists.
func TestFullSaysWhatHelps(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		MapEndpoints: `raise "endpoints"`, MapPodnsDevices: `raise "endpoints"`, MapHostPorts: `raise "hostPorts"`,
		MapUplinks: `"uplinks"`, MapNodeAddrs: "fixed", MapEpStats: `raise "endpoints"`, MapPodDevices: `raise "endpoints"`, MapPolicies: `raise "endpoints"`,
		MapEDTLimits: `raise "endpoints"`, MapConntrackPlaces: `raise "conntrack"`,
	} {
		err := WrapFull(name, unix.E2BIG)
		if !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
		if strings.Contains(want, "raise") != strings.Contains(err.Error(), "mapSizes") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
