// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"
)

// encode is json.Marshal of the record, which learns what it has to know of the type anew in every process: for the two
// records that an ADD writes that takes longer than writing them.
func (r *Record) encode() ([]byte, error) {
	e := encoder{b: make([]byte, 0, 512)}
	e.raw(`{"version":` + strconv.Itoa(r.Version))
	e.text(`,"network":`, r.Network)
	e.text(`,"containerID":`, r.ContainerID)
	e.text(`,"ifname":`, r.IfName)
	if r.NetNS != "" {
		e.text(`,"netns":`, r.NetNS)
	}
	e.text(`,"created":`, r.Created.Format(time.RFC3339Nano))
	e.raw(`,"plugins":`)
	if r.Plugins == nil {
		e.raw(`null}`)
		return e.b, e.err
	}
	sep := "{"
	for _, name := range slices.Sorted(maps.Keys(r.Plugins)) {
		s := r.Plugins[name]
		e.text(sep, name)
		e.text(`:{"state":`, s.State)
		if len(s.Data) > 0 {
			e.raw(`,"data":`)
			e.b = append(e.b, s.Data...)
		}
		e.raw("}")
		sep = ","
	}
	if len(r.Plugins) == 0 {
		e.raw("{")
	}
	e.raw("}}")
	return e.b, e.err
}

type encoder struct {
	b   []byte
	err error
}

func (e *encoder) raw(s string) { e.b = append(e.b, s...) }

// text appends what goes before and then s as a JSON string.
func (e *encoder) text(before, s string) {
	q, err := json.Marshal(s)
	if err != nil && e.err == nil {
		e.err = err
	}
	e.raw(before)
	e.b = append(e.b, q...)
}
