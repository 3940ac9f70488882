// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

func netlinkMessage(kind, flags uint16, data ...[]byte) []byte {
	b := slices.Concat(make([]byte, unix.SizeofNlMsghdr), slices.Concat(data...))
	order := vnl.NativeEndian()
	order.PutUint32(b, uint32(len(b)))
	order.PutUint16(b[4:], kind)
	order.PutUint16(b[6:], flags)
	return b
}

func errnoOf(e unix.Errno) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(-int32(e))) }

func TestMessageError(t *testing.T) {
	t.Parallel()
	why := attrString(ackMessage, "too much").Serialize()
	echo := netlinkMessage(unix.RTM_NEWLINK, 0, []byte("request!"))
	tests := []struct {
		name string
		m    []byte
		want error
		text string
	}{
		{"acknowledged", netlinkMessage(unix.NLMSG_ERROR, ackCapped, errnoOf(0), echo[:16]), nil, ""},
		{"end without data", netlinkMessage(unix.NLMSG_DONE, 0), nil, ""},
		{"end", netlinkMessage(unix.NLMSG_DONE, 0, errnoOf(0)), nil, ""},
		{"refused", netlinkMessage(unix.NLMSG_ERROR, 0, errnoOf(unix.EPERM), echo), unix.EPERM, "operation not permitted"},
		{"refused, explained", netlinkMessage(unix.NLMSG_ERROR, ackTLVs, errnoOf(unix.EINVAL), echo, why), unix.EINVAL, "invalid argument: too much"},
		{"refused, explained, without the request", netlinkMessage(unix.NLMSG_ERROR, ackTLVs|ackCapped, errnoOf(unix.EINVAL), echo[:16], why), unix.EINVAL, "invalid argument: too much"},
		{"dump refused, explained", netlinkMessage(unix.NLMSG_DONE, ackTLVs, errnoOf(unix.ENOENT), why), unix.ENOENT, "no such file or directory: too much"},
		{"cut in the request", netlinkMessage(unix.NLMSG_ERROR, ackTLVs, errnoOf(unix.EINVAL), echo[:16]), unix.EINVAL, "invalid argument"},
		{"cut in the explanation", netlinkMessage(unix.NLMSG_DONE, ackTLVs, errnoOf(unix.EINVAL), why[:6]), unix.EINVAL, "invalid argument"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got error
			if err := eachMessage(tt.m, func(m message) (bool, error) { got = m.err(); return true, nil }); err != nil {
				t.Fatal(err)
			}
			if !errors.Is(got, tt.want) || got != nil && got.Error() != tt.text {
				t.Errorf("got %v, want %v (%q)", got, tt.want, tt.text)
			}
		})
	}
}

func TestEachMessage(t *testing.T) {
	t.Parallel()
	two := append(netlinkMessage(1, 0, []byte{1, 2, 3, 4}), netlinkMessage(2, 0, []byte{5})...)
	bad := append(netlinkMessage(1, 0), 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	tests := []struct {
		name string
		b    []byte
		want string
		ok   bool
	}{
		{"none", nil, "", true},
		{"two, the last not padded", two, "12", true},
		{"too long for the datagram", bad, "1", false},
		{"shorter than a header", binary.NativeEndian.AppendUint64(make([]byte, 0, 16), 4), "", true},
		{"length below a header", append(binary.NativeEndian.AppendUint64(nil, 4), make([]byte, 8)...), "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got strings.Builder
			err := eachMessage(tt.b, func(m message) (bool, error) {
				got.WriteByte('0' + byte(m.kind))
				return true, nil
			})
			if got.String() != tt.want || (err == nil) != tt.ok {
				t.Errorf("got %q, %v; want %q, ok %v", got.String(), err, tt.want, tt.ok)
			}
		})
	}
}

// What was not wanted of one answer must not be taken for the next one.
func TestPrivilegedExchange(t *testing.T) {
	h := mustHandle(t, mustNS(t))
	ok(t, h.AddVeth(VethSpec{HostName: "v0", PeerName: "v1"}))
	for range 3 {
		seen := 0
		req := h.request(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		req.AddData(vnl.NewIfInfomsg(unix.AF_UNSPEC))
		if err := h.sock.exchange(req, unix.RTM_NEWLINK, func([]byte) bool { seen++; return false }); err != nil || seen != 1 {
			t.Fatalf("%d messages after the first was enough, %v", seen, err)
		}
		if _, err := h.LinkByName("v1"); err != nil {
			t.Fatal(err)
		}
	}
	// The kernel's own words are part of the error, of a change as of a dump.
	tooSmall, v0 := 10, must[Link](t)(h.LinkByName("v0"))
	for text, err := range map[string]error{
		"invalid argument: mtu less than device minimum": h.SetLink(v0.Index, LinkChange{MTU: &tooSmall}),
		"no such file or directory: ipv4: FIB table does not exist": h.dump(func() *vnl.NetlinkRequest {
			req := h.request(unix.RTM_GETROUTE, 0)
			req.AddData(&vnl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET}})
			req.AddData(attr32(unix.RTA_TABLE, 12345))
			return req
		}, unix.RTM_NEWROUTE, func() {}, func([]byte) error { return nil }),
	} {
		if err == nil || !strings.HasSuffix(err.Error(), text) {
			t.Errorf("got %v, want %q", err, text)
		}
	}
}
