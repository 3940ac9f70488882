// SPDX-License-Identifier: Apache-2.0

package hostports

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// The file has the format of earlier releases: it outlives an upgrade.
func TestWaiterFile(t *testing.T) {
	t.Parallel()
	const file = `{"key":{"HostIP":"0.0.0.0","Proto":6,"Port":8080},"value":{"PodIP":"10.1.0.2","PodPort":80,"Owner":9223372036854775809,"Gen":7,` +
		`"Flags":3,"Sources":4611686018427387904,"Source":"10.0.0.0/8","Dest":"","In":3,"NotSource":true,"NotDest":false,"NotIndex":true}}`
	p := hostport.Mapping{
		Key:   hostport.Key{HostIP: netip.IPv4Unspecified(), Proto: unix.IPPROTO_TCP, Port: 8080},
		PodIP: netip.MustParseAddr("10.1.0.2"), PodPort: 80,
	}
	p.SNAT, p.MasqAll = true, true
	p.Conditions = hostport.Conditions{Source: netip.MustParsePrefix("10.0.0.0/8"), NotSource: true, InIfindex: 3, NotIn: true}
	want := waiter{hostport.Entry{Mapping: p, Owner: 1<<63 | 1, Generation: 7, Allowlist: 1 << 62}}
	raw, err := json.Marshal(want)
	if err != nil || string(raw) != file {
		t.Errorf("%v\n got %s\nwant %s", err, raw, file)
	}
	var got waiter
	if err := json.Unmarshal([]byte(file), &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n got %s\nwant %s", err, got, want)
	}
}
