// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/plugins/main/internal/veth"
)

// A section is read as it was written.
func TestSection(t *testing.T) {
	t.Parallel()
	want := section{
		Recorded: veth.Recorded{HostIfName: "veth0", HostIndex: 7, HostMAC: "02:00:00:00:00:01", DeviceKind: "netkit", NoNetkit: "an old kernel"},
		Bridge:   "cni0", PodMAC: "02:00:00:00:00:02", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/16"), netip.MustParsePrefix("fd00::2/64")},
		Masquerade: "ebpf", SpoofCheck: true, SpoofBackend: "ebpf", IPAM: json.RawMessage(`{"type":"host-local"}`),
	}
	raw, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	v := reflect.ValueOf(want)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("the test leaves %s empty", v.Type().Field(i).Name)
		}
	}
	var got section
	if ok, err := recordOf(raw).Section(Name, &got); !ok || err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v %v; want %+v", got, ok, err, want)
	}
	if _, err := recordOf([]byte(`{"hostIfIndex":"seven"}`)).Section(Name, &got); err == nil || !strings.Contains(err.Error(), `key "hostIfIndex"`) {
		t.Errorf("%v does not name the key that does not fit", err)
	}
}

func recordOf(raw []byte) *attachments.Record {
	return &attachments.Record{Plugins: map[string]attachments.Section{Name: {Data: raw}}}
}
