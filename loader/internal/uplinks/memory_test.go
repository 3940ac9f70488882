// SPDX-License-Identifier: Apache-2.0

package uplinks

import (
	"net/netip"
	"strings"
	"testing"
)

func aMemory() *Memory {
	m := &Memory{newest: 1017, routes: true, checked: netip.MustParseAddr("10.5.0.1")}
	m.add(ownDevice{index: 9, deviceRoutes: deviceRoutes{nets: true, far: true}})
	m.add(ownDevice{index: 1, addrScope: singleAddress})
	m.add(ownDevice{index: 2, addrScope: inSubnet, deviceRoutes: deviceRoutes{far: true}})
	m.add(ownDevice{index: 4, gone: true})
	return m
}

func TestMemory(t *testing.T) {
	text := aMemory().String()
	m, err := ParseMemory(text)
	if err != nil || m.String() != text || !m.has(9) || m.has(3) {
		t.Errorf("%+v %v", m, err)
	}
	for name, bad := range map[string]string{
		"empty":            "",
		"another format":   strings.Replace(text, "look 1", "look 2", 1),
		"half a file":      text[:len(text)/2],
		"without its end":  strings.TrimSuffix(text, "end\n"),
		"no newest device": strings.Replace(text, "newest 1017\n", "", 1),
		"not a number":     strings.Replace(text, "own 4", "own x", 1),
		"no order":         strings.Replace(text, "own 4", "own 1", 1),
		"unknown flag":     strings.Replace(text, " gone", " lost", 1),
		"unknown line":     strings.Replace(text, "routes", "rules", 1),
		"not an address":   strings.Replace(text, "10.5.0.1", "10.5.0", 1),
		"something behind": text + "own 12\n",
	} {
		if m, err := ParseMemory(bad); err == nil {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

// Devices that are gone come back with their numbers, but not every one is waited for.
func TestMemoryKeepsGone(t *testing.T) {
	m := aMemory()
	var before []ownDevice
	for index := range 3 * maxGone {
		before = append(before, ownDevice{index: index + 1, addrScope: inSubnet})
	}
	m.keepGone(before)
	if !m.has(1) || !m.has(2) || !m.has(3*maxGone) || m.has(3) || len(m.own) != 3+maxGone {
		t.Errorf("%d devices: %s", len(m.own), m)
	}
}

func FuzzMemory(f *testing.F) {
	f.Add(aMemory().String())
	f.Add("sluice-look 1\nnewest 0\nend\n")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseMemory(s)
		if err != nil {
			return
		}
		again, err := ParseMemory(m.String())
		if err != nil || again.String() != m.String() {
			t.Errorf("%q: %v", m, err)
		}
	})
}
