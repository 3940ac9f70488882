// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

var (
	refA = attachments.ID{Network: "n", ContainerID: "a", IfName: "eth0"}
	addr = netip.MustParseAddr("10.1.0.2")
)

func attachment(s State, addrs ...netip.Addr) Attachment {
	return Attachment{Ref: refA, Netns: "/run/netns/a", State: s, Addrs: addrs, From: "cache"}
}

func isA(a Attachment) bool { return a.Ref == refA }

// What a name and an address prove together.
func TestNamed(t *testing.T) {
	tests := []struct {
		name  string
		known Known
		addrs []netip.Addr
		want  verdict
	}{
		{"alive", Known{Attachments: []Attachment{attachment(Alive)}}, nil, verdict{}},
		{"nobody says where", Known{Attachments: []Attachment{attachment(Unknown)}}, nil, verdict{}},
		{"one dead, one alive", Known{Attachments: []Attachment{attachment(Dead), attachment(Alive)}}, nil, verdict{}},
		{"dead", Known{Attachments: []Attachment{attachment(Dead, addr)}}, []netip.Addr{addr}, verdict{gone: true}},
		{"dead, its address is somebody's", Known{
			Attachments: []Attachment{attachment(Dead, addr), {Ref: attachments.ID{ContainerID: "b"}, State: Alive, Addrs: []netip.Addr{addr}}},
			Addrs:       map[netip.Addr]string{addr: "/run/netns/b"},
		}, []netip.Addr{addr}, verdict{gone: true}},
		{"dead, its address is nobody's", Known{
			Attachments: []Attachment{attachment(Dead, addr)}, Addrs: map[netip.Addr]string{addr: "/proc/7/ns/net"},
		}, []netip.Addr{addr}, verdict{doubt: true}},
		{"unknown, reserved", Known{Namespaces: 1, Reserved: []Reserved{{Network: "n", ContainerID: "a", IfName: "eth0", Addr: addr}}}, []netip.Addr{addr}, verdict{doubt: true}},
		{"unknown, in a namespace", Known{Namespaces: 1, Addrs: map[netip.Addr]string{addr: "x"}}, []netip.Addr{addr}, verdict{doubt: true}},
		{"unknown, without address", Known{Namespaces: 1}, nil, verdict{doubt: true}},
		{"unknown, no look inside", Known{}, []netip.Addr{addr}, verdict{doubt: true}},
		{"unknown, nowhere", Known{Namespaces: 1}, []netip.Addr{addr}, verdict{gone: true}},
	}
	for _, tt := range tests {
		got := tt.known.named(isA, tt.addrs)
		if got.gone != tt.want.gone || got.doubt != tt.want.doubt || (got.why == "") != (got == verdict{}) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// What an address alone proves.
func TestAddress(t *testing.T) {
	held := []Reserved{{Network: "n", ContainerID: "a", IfName: "eth0", Addr: addr}}
	tests := []struct {
		name  string
		known Known
		want  verdict
	}{
		{"alive", Known{Namespaces: 1, Attachments: []Attachment{attachment(Alive, addr)}}, verdict{}},
		{"in a namespace", Known{Namespaces: 1, Addrs: map[netip.Addr]string{addr: "x"}}, verdict{}},
		{"dead, and in a namespace", Known{Namespaces: 1, Attachments: []Attachment{attachment(Dead, addr)}, Addrs: map[netip.Addr]string{addr: "x"}}, verdict{}},
		{"reserved", Known{Namespaces: 1, Reserved: held}, verdict{doubt: true}},
		{"reserved for the dead", Known{Namespaces: 1, Reserved: held, Attachments: []Attachment{attachment(Dead, addr)}}, verdict{gone: true}},
		{"no look inside", Known{}, verdict{doubt: true}},
		{"nowhere", Known{Namespaces: 1}, verdict{gone: true}},
	}
	for _, tt := range tests {
		got := tt.known.address(addr)
		if got.gone != tt.want.gone || got.doubt != tt.want.doubt {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// reference's name for n1 and ctr1.
const ifbName = "bwpc189d8b6a7b4"

func TestFindIFBs(t *testing.T) {
	ctr := attachments.ID{Network: "n1", ContainerID: "ctr1", IfName: "eth0"}
	with := func(s State) Known { return Known{Attachments: []Attachment{{Ref: ctr, State: s, Netns: "/x"}}} }
	link := rtnl.Link{Index: 9, Name: ifbName, Kind: "ifb"}
	tests := []struct {
		name      string
		inventory Inventory
		items     int
		sweep     bool
	}{
		{"nobody's", Inventory{Links: []rtnl.Link{link}}, 1, true},
		{"of the dead", Inventory{Links: []rtnl.Link{link}, Known: with(Dead)}, 1, true},
		{"of the living", Inventory{Links: []rtnl.Link{link}, Known: with(Alive)}, 1, false},
		{"in use", Inventory{Links: []rtnl.Link{link}, Redirected: map[int]bool{9: true}}, 0, false},
		{"other kind", Inventory{Links: []rtnl.Link{{Index: 9, Name: ifbName, Kind: "dummy"}}}, 0, false},
		{"a stranger's name", Inventory{Links: []rtnl.Link{{Index: 9, Name: "bwpmydevice0001", Kind: "ifb"}, {Name: "ifb0", Kind: "ifb"}}}, 0, false},
	}
	for _, tt := range tests {
		items := findIFBs(&tt.inventory)
		if len(items) != tt.items || tt.items > 0 && items[0].Removable != tt.sweep {
			t.Errorf("%s: %+v", tt.name, items)
		}
	}
}

func TestFindEntries(t *testing.T) {
	device := func(name string) []loader.EndpointStatus {
		return []loader.EndpointStatus{{Owner: refA.Owner(), HostIfindex: 4, HostIfName: name, Addrs: []netip.Prefix{netip.PrefixFrom(addr, 16)}}}
	}
	record := attachment(Alive, addr)
	record.Record = true
	gone := attachment(Dead, addr)
	gone.Record = true
	ports := []hostport.Entry{{Mapping: hostport.Mapping{PodIP: addr}, Owner: refA.Owner()}}
	tests := []struct {
		name      string
		inventory Inventory
		items     int
		sweep     bool
	}{
		{"recorded", Inventory{Endpoints: device("v0"), Ports: ports, Known: Known{Attachments: []Attachment{record}}}, 0, false},
		{"recorded and dead", Inventory{Endpoints: device(""), Known: Known{Attachments: []Attachment{gone}}}, 1, true},
		{"record lost, device there", Inventory{Endpoints: device("v0"), Known: Known{Namespaces: 1}}, 1, false},
		{"record lost, device gone", Inventory{Endpoints: device(""), Known: Known{Namespaces: 1}}, 1, true},
		{"record lost, a runtime knows it", Inventory{Endpoints: device(""), Known: Known{Namespaces: 1, Attachments: []Attachment{attachment(Alive, addr)}}}, 1, false},
		{"ports alone", Inventory{Ports: ports, Known: Known{Namespaces: 1}}, 1, true},
		{"ports alone, the address lives", Inventory{Ports: ports, Known: Known{Namespaces: 1, Addrs: map[netip.Addr]string{addr: "x"}}}, 1, false},
		{"limits alone, of the dead", Inventory{RateLimits: []loader.RateLimitStatus{{Owner: refA.Owner()}}, Known: Known{Attachments: []Attachment{gone}}}, 1, true},
		{"limits alone, of the living", Inventory{RateLimits: []loader.RateLimitStatus{{Owner: refA.Owner()}}, Known: Known{Attachments: []Attachment{record}}}, 0, false},
		{"inside a pod", Inventory{Endpoints: []loader.EndpointStatus{{Owner: 5, Netns: "/run/netns/x", Ifindex: 2}}, Known: Known{Namespaces: 1}}, 1, false},
	}
	for _, tt := range tests {
		items := findEntries(&tt.inventory)
		if len(items) != tt.items || tt.items > 0 && items[0].Removable != tt.sweep {
			t.Errorf("%s: %+v", tt.name, items)
		}
	}
}

// A DEL that ends between the looks at maps and records is no leftover, and neither is one in each of two scans.
func TestSearchAgain(t *testing.T) {
	of := func(owners ...uint64) *Inventory {
		s := &Inventory{Known: Known{Namespaces: 1}}
		for _, o := range owners {
			s.Endpoints = append(s.Endpoints, loader.EndpointStatus{Owner: o, Addrs: []netip.Prefix{netip.PrefixFrom(addr, 16)}})
		}
		return s
	}
	blind := errors.New("the maps cannot be read")
	for name, tt := range map[string]struct {
		scans []*Inventory
		left  []uint64
	}{
		"nothing":      {[]*Inventory{of()}, nil},
		"a DEL":        {[]*Inventory{of(1), of()}, nil},
		"two DELs":     {[]*Inventory{of(1), of(2)}, nil},
		"one leftover": {[]*Inventory{of(1, 2), of(2, 3)}, []uint64{2}},
	} {
		n := 0
		inventory, r, err := Search(func() (*Inventory, error) {
			n++
			return tt.scans[n-1], blind
		})
		var left []uint64
		for _, i := range r.Items {
			left = append(left, i.owner)
		}
		if n != len(tt.scans) || inventory != tt.scans[n-1] || !slices.Equal(left, tt.left) || !errors.Is(err, blind) {
			t.Errorf("%s: %d scans, left %v, %v", name, n, left, err)
		}
	}
}

func TestFindRecords(t *testing.T) {
	dead := attachment(Dead)
	dead.Record = true
	tests := []struct {
		name    string
		plugins map[string]attachments.Section
		state   State
		items   int
		sweep   bool
	}{
		{"alive", nil, Alive, 0, false},
		{"dead", map[string]attachments.Section{"bridge": {}, "portmap": {Data: json.RawMessage(`{}`)}}, Dead, 1, true},
		{"firewalld", map[string]attachments.Section{"firewall": {Data: json.RawMessage(`{"backend":"firewalld"}`)}}, Dead, 1, false},
		{"hardware", map[string]attachments.Section{"host-device": {}}, Dead, 1, false},
	}
	for _, tt := range tests {
		dead.State = tt.state
		s := Inventory{Records: []*attachments.Record{{ID: refA, Plugins: tt.plugins}}, Known: Known{Attachments: []Attachment{dead}}}
		items := findRecords(&s)
		if len(items) != tt.items || tt.items > 0 && items[0].Removable != tt.sweep {
			t.Errorf("%s: %+v", tt.name, items)
		}
	}
}

// A reservation is said and never swept.
func TestFindReservations(t *testing.T) {
	r := []Reserved{{Network: "n", ContainerID: "a", IfName: "eth0", Addr: addr}}
	for name, tt := range map[string]struct {
		known Known
		items int
	}{
		"nobody knows":    {Known{Reserved: r}, 1},
		"dead":            {Known{Reserved: r, Attachments: []Attachment{attachment(Dead)}}, 1},
		"alive":           {Known{Reserved: r, Attachments: []Attachment{attachment(Alive)}}, 0},
		"in a namespace":  {Known{Reserved: r, Addrs: map[netip.Addr]string{addr: "x"}}, 0},
		"perhaps a pod's": {Known{Reserved: r, Attachments: []Attachment{attachment(Unknown)}}, 0},
	} {
		items := findReservations(&Inventory{Known: tt.known})
		if len(items) != tt.items || tt.items > 0 && items[0].Removable {
			t.Errorf("%s: %+v", name, items)
		}
	}
}

func TestParseCached(t *testing.T) {
	tests := []struct {
		name, raw string
		want      Attachment
	}{
		{"1.0.0", `{"kind":"cniCacheV1","containerId":"a","ifName":"eth0","networkName":"n","config":"e30=","result":{"cniVersion":"1.0.0",
			"interfaces":[{"name":"cni0"},{"name":"eth0","sandbox":"/no/such/ns"}],"ips":[{"address":"10.1.0.2/16","gateway":"10.1.0.1"}]}}`,
			Attachment{Ref: refA, Netns: "/no/such/ns", State: Dead, Addrs: []netip.Addr{addr}}},
		{"netns said apart", `{"containerId":"a","ifName":"eth0","networkName":"n","netns":"/proc/self/ns/net","result":{}}`,
			Attachment{Ref: refA, Netns: "/proc/self/ns/net", State: Alive}},
		{"0.2.0", `{"containerId":"a","ifName":"eth0","networkName":"n","result":{"ip4":{"ip":"10.1.0.2/16"}}}`, Attachment{Ref: refA, Addrs: []netip.Addr{addr}}},
	}
	for _, tt := range tests {
		got, err := parseCached([]byte(tt.raw))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if d := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
	for _, bad := range []string{`{"ips":[]}`, `half`} {
		if _, err := parseCached([]byte(bad)); err == nil {
			t.Errorf("%s: no error: somebody alive would be overlooked", bad)
		}
	}
}

func TestReadReserved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"10.1.0.2": "a\r\neth0", "10.1.0.3": "old\n", "last_reserved_ip.0": "10.1.0.3", "lock": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readReserved(filepath.Dir(dir))
	if err != nil || len(got) != 2 || got[0].ContainerID != "a" || got[0].IfName != "eth0" || got[0].Network != "n" || got[0].Addr != addr || got[1].ContainerID != "old" {
		t.Errorf("%+v, %v", got, err)
	}
}

// A path that is a namespace no more is as gone as one that does not exist; one
// that cannot be looked at may be alive.
func TestStateOf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]State{"": Unknown, "/proc/self/ns/net": Alive, file: Dead, file + "/x": Dead, "/no/such": Dead} {
		if got := stateOf(path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

func TestRecordedAddrs(t *testing.T) {
	r := &attachments.Record{Plugins: map[string]attachments.Section{"x": {Data: json.RawMessage(
		`{"ports":[{"hostIP":"192.0.2.1","podIP":"10.1.0.2"}],"addrs":["10.1.0.2/16","fd00::2/64"],"gateway":"10.1.0.1","name":"veth1"}`)}}}
	var text []string
	for _, a := range recordedAddrs(r) {
		text = append(text, a.String())
	}
	got := strings.Join(text, " ")
	if len(text) != 2 || !strings.Contains(got, "10.1.0.2") || !strings.Contains(got, "fd00::2") {
		t.Errorf("%s", got)
	}
}

// What is said of a record does not change from one call to the next.
func TestRecordSaysTheSame(t *testing.T) {
	r := &attachments.Record{ID: refA, NetNS: "/run/netns/a", Plugins: map[string]attachments.Section{}}
	for _, name := range []string{"bridge", "dhcp", "flannel", "host-device", "host-local", "static"} {
		r.Plugins[name] = attachments.Section{}
	}
	s := &Inventory{Records: []*attachments.Record{r}, Known: Known{Attachments: []Attachment{{Ref: refA, State: Dead, Record: true}}}}
	first := findRecords(s)
	if len(first) != 1 || first[0].Removable {
		t.Fatalf("%+v", first)
	}
	for range 50 {
		if diff := cmp.Diff(first[0].Why, findRecords(s)[0].Why); diff != "" {
			t.Fatal(diff)
		}
	}
}
