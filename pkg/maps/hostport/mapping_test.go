// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"net/netip"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

func testMapping() Mapping {
	return Mapping{
		Key:   Key{HostIP: netip.MustParseAddr("192.0.2.1"), Proto: unix.IPPROTO_UDP, Port: 53},
		PodIP: netip.MustParseAddr("10.1.0.3"), PodPort: 5353, SNAT: true, MasqAll: true,
		AllowedSources: nets("10.0.0.0/8"),
		Conditions:     Conditions{Source: nets("10.1.0.0/16")[0], Dest: nets("192.0.2.0/24")[0], NotDest: true, InDevice: "eth0", InIfindex: 2, NotIn: true},
	}
}

// Each field that the map holds makes a difference, and the others make none.
func TestEntryEqual(t *testing.T) {
	t.Parallel()
	e := NewEntry(testMapping(), 1, 2)
	same := func(change func(*Entry)) bool {
		o := e
		change(&o)
		return e.Equal(o) && o.Equal(e)
	}
	for name, change := range map[string]func(*Entry){
		"host address": func(o *Entry) { o.HostIP = o.HostIP.Next() }, "protocol": func(o *Entry) { o.Proto++ }, "port": func(o *Entry) { o.Port++ },
		"pod": func(o *Entry) { o.PodIP = o.PodIP.Next() }, "pod's port": func(o *Entry) { o.PodPort++ },
		"snat": func(o *Entry) { o.SNAT = false }, "masqAll": func(o *Entry) { o.MasqAll = false },
		"owner": func(o *Entry) { o.Owner++ }, "generation": func(o *Entry) { o.Generation++ }, "allowlist": func(o *Entry) { o.Allowlist++ },
		"source": func(o *Entry) { o.Conditions.Source = netip.Prefix{} }, "not source": func(o *Entry) { o.Conditions.NotSource = true },
		"destination": func(o *Entry) { o.Conditions.Dest = nets("192.0.2.0/25")[0] }, "not destination": func(o *Entry) { o.Conditions.NotDest = false },
		"device": func(o *Entry) { o.Conditions.InIfindex++ }, "not device": func(o *Entry) { o.Conditions.NotIn = false },
	} {
		if same(change) {
			t.Errorf("another %s makes no difference", name)
		}
	}
	if !same(func(o *Entry) { o.AllowedSources, o.Conditions.InDevice = nil, "" }) {
		t.Error("what the map does not hold makes a difference")
	}
}

// NewEntry brings everything into the form of the map.
func TestNewEntry(t *testing.T) {
	t.Parallel()
	m := testMapping()
	m.HostIP, m.PodIP = netip.AddrFrom16(m.HostIP.As16()), netip.AddrFrom16(m.PodIP.As16())
	m.AllowedSources = []netip.Prefix{netip.MustParsePrefix("10.1.2.3/8")}
	m.Conditions.Source = netip.MustParsePrefix("10.1.2.3/16")
	want := Entry{Mapping: testMapping(), Owner: 1, Generation: 2, Allowlist: AllowlistID(nets("10.0.0.0/8"))}
	if got := NewEntry(m, 1, 2); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// Messages tell entries apart.
func TestEntryString(t *testing.T) {
	t.Parallel()
	const want = "192.0.2.1:53/udp to 10.1.0.3:5353 snat masqAll from [10.0.0.0/8] if " +
		"{Source:10.1.0.0/16 Dest:192.0.2.0/24 InDevice:eth0 NotSource:false NotDest:true NotIn:true InIfindex:2} (owner 1, generation 2, allowlist f00)"
	e := NewEntry(testMapping(), 1, 2)
	e.Allowlist = 0xf00
	if got := e.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	if err := testMapping().Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Mapping){
		"no host address": func(m *Mapping) { m.HostIP = netip.Addr{} }, "no pod address": func(m *Mapping) { m.PodIP = netip.Addr{} },
		"unspecified pod": func(m *Mapping) { m.PodIP = netip.IPv4Unspecified() }, "other family": func(m *Mapping) { m.PodIP = netip.MustParseAddr("fd00::2") },
		"no port": func(m *Mapping) { m.Port = 0 }, "no pod port": func(m *Mapping) { m.PodPort = 0 }, "no protocol": func(m *Mapping) { m.Proto = 0 },
		"no source": func(m *Mapping) { m.AllowedSources = []netip.Prefix{{}} },
	} {
		m := testMapping()
		change(&m)
		if m.Validate() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
