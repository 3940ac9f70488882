// SPDX-License-Identifier: Apache-2.0

package drops

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

// Event is a record of sl_drop_events: one dropped packet.
type Event struct {
	Place
	Time    time.Duration // CLOCK_MONOTONIC
	Owner   uint64        // 0: no endpoint, or not known to the program
	Program string        // as the kernel names it
	Len     int           // of the frame, bytes
	Packet  Packet
	Data    []byte // its first bytes, from the link header on
}

var programs = [...]string{
	bpfgen.TypesSlProgramSL_PROGRAM_FROM_POD:     "sl_from_pod",
	bpfgen.TypesSlProgramSL_PROGRAM_TO_POD:       "sl_to_pod",
	bpfgen.TypesSlProgramSL_PROGRAM_FROM_UPLINK:  "sl_from_uplink",
	bpfgen.TypesSlProgramSL_PROGRAM_TO_UPLINK:    "sl_to_uplink",
	bpfgen.TypesSlProgramSL_PROGRAM_NS_EGRESS:    "sl_ns_egress",
	bpfgen.TypesSlProgramSL_PROGRAM_NS_INGRESS:   "sl_ns_ingress",
	bpfgen.TypesSlProgramSL_PROGRAM_EDT:          "sl_edt",
	bpfgen.TypesSlProgramSL_PROGRAM_XDP_DENYLIST: "sl_xdp_denylist",
	bpfgen.TypesSlProgramSL_PROGRAM_MAC_CHECK:    "sl_mac_check",
	bpfgen.TypesSlProgramSL_PROGRAM_PARENT:       "sl_parent",
}

// DecodeEvent decodes a record. Its Data is a copy.
func DecodeEvent(b []byte) (*Event, error) {
	var raw bpfgen.TypesSlEvent
	if n, err := binary.Decode(b, binary.NativeEndian, &raw); err != nil {
		return nil, fmt.Errorf("event of %d bytes: %w", n, err)
	}
	e := &Event{
		Place: Place{Device: raw.Device, Endpoint: raw.Endpoint, Reason: Reason(raw.Reason)},
		Time:  time.Duration(raw.Time), Owner: raw.Owner, Len: int(raw.Len),
		Data: append([]byte{}, raw.Data[:min(int(raw.Captured), len(raw.Data))]...),
	}
	if int(raw.Program) < len(programs) {
		e.Program = programs[raw.Program]
	}
	e.Packet = DecodePacket(e.Data, int(raw.L2Len))
	return e, nil
}

// EventControl is the view of sl_event_lease and sl_event_state: whether programs write events, and how many they could not.
type EventControl struct{ wish, cpu *bpfsys.Map }

// NewEventControl returns a view of the two maps.
func NewEventControl(wish, cpu *bpfsys.Map) EventControl { return EventControl{wish, cpu} }

// Want asks for events for a while, at most burst of each CPU in a window; 0 for no more.
func (c EventControl) Want(d, window time.Duration, burst uint64) error {
	var v bpfgen.TypesSlEventLease
	if d > 0 {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			return err
		}
		v = bpfgen.TypesSlEventLease{Until: uint64(ts.Nano()) + uint64(d), Window: uint64(window), Burst: burst}
	}
	return bpfsys.Put(c.wish, uint32(0), v)
}

// Lost returns the drops that a reader would have got but for its limit, or for a full buffer, since the maps were made.
func (c EventControl) Lost() (uint64, error) {
	perCPU, err := bpfsys.LookupPerCPU[bpfgen.TypesSlEventState](c.cpu, uint32(0))
	if err != nil {
		return 0, err
	}
	var sum uint64
	for _, v := range perCPU {
		sum += v.Lost
	}
	return sum, nil
}
