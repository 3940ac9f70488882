// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
)

func ipamConf(ipam string) []byte {
	return fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"net","type":"macvlan","ipam":%s}`, ipam)
}

func TestExchangeOptions(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, ipam, args string
		request          []uint8
		provide          map[uint8]string
	}{
		{"defaults", `{"type":"dhcp"}`, "", []uint8{3, 1}, nil},
		{"more", `{"request":[{"option":"121"},{"option":"host-name"}]}`, "", []uint8{121, 12, 3, 1}, nil},
		{"skipped", `{"request":[{"skipDefault":true},{"option":"routers"}]}`, "", []uint8{3}, nil},
		{"values", `{"provide":[{"option":"vendor-class-identifier","value":"v"},{"option":"12","fromArg":"K8S_POD_NAME"}]}`, "IgnoreUnknown=1;K8S_POD_NAME=web=0;x", []uint8{3, 1}, map[uint8]string{60: "v", 12: "web=0"}},
		{"argument over value", `{"provide":[{"option":"12","value":"v","fromArg":"A"},{"option":"60","value":"w","fromArg":"B"}]}`, "A=a", []uint8{3, 1}, map[uint8]string{12: "a", 60: "w"}},
		{"nothing to say", `{"provide":[{"option":"12","fromArg":"A"}]}`, "", []uint8{3, 1}, nil},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, err := load(ipamConf(tc.ipam))
			if err != nil {
				t.Fatal(err)
			}
			o, err := c.exchangeOptions(tc.args)
			if err != nil {
				t.Fatal(err)
			}
			m, err := dhcpv4.NewDiscovery([]byte{2, 0, 0, 0, 0, 1}, o.modifiers("id")...)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.request, m.Options.Get(dhcpv4.OptionParameterRequestList)); d != "" {
				t.Errorf("requested (-want +got):\n%s", d)
			}
			for code, want := range tc.provide {
				if got := string(m.Options.Get(dhcpv4.GenericOptionCode(code))); got != want {
					t.Errorf("option %d is %q, want %q", code, got, want)
				}
			}
			if got := string(m.Options.Get(dhcpv4.OptionClientIdentifier)); got != "\x00id" {
				t.Errorf("client identifier %q", got)
			}
		})
	}
}

func TestClientIdentifier(t *testing.T) {
	t.Parallel()
	if got := clientIdentifier(strings.Repeat("x", 300)); len(got) != maxOption || got[0] != 0 {
		t.Errorf("%d bytes, type %d", len(got), got[0])
	}
	c, err := load(ipamConf(`{"provide":[{"option":"dhcp-client-identifier","value":"mine"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	o, err := c.exchangeOptions("")
	if err != nil {
		t.Fatal(err)
	}
	if got := string((&port{options: o, id: "id"}).sentIdentifier()); got != "mine" {
		t.Errorf("release would say %q", got)
	}
}

// An identifier, and another one for pods that have it in CNI_ARGS: the release says what the other messages say.
func TestClientIdentifierTwice(t *testing.T) {
	t.Parallel()
	c, err := load(ipamConf(`{"provide":[{"option":"dhcp-client-identifier","value":"mine"},{"option":"61","fromArg":"ID"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	o, err := c.exchangeOptions("ID=its")
	if err != nil {
		t.Fatal(err)
	}
	m, err := dhcpv4.NewDiscovery([]byte{2, 0, 0, 0, 0, 1}, o.modifiers("id")...)
	if err != nil {
		t.Fatal(err)
	}
	sent := string(m.Options.Get(dhcpv4.OptionClientIdentifier))
	if got := string((&port{options: o, id: "id"}).sentIdentifier()); got != sent {
		t.Errorf("release would say %q, the server knows %q", got, sent)
	}
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, stdin string
		code        uint
		words       []string
	}{
		{"not JSON", `{`, 6, nil},
		{"no ipam", `{"name":"net"}`, 7, []string{"ipam"}},
		{"request", string(ipamConf(`{"request":[{"option":"routers"},{"option":"nonsense"}]}`)), 7, []string{"ipam.request[1].option", "nonsense"}},
		{"number", string(ipamConf(`{"provide":[{"option":"256","value":"x"}]}`)), 7, []string{"ipam.provide[0].option", "256"}},
		{"long", string(ipamConf(`{"provide":[{"option":"12","value":"` + strings.Repeat("x", 256) + `"}]}`)), 7, []string{"ipam.provide[0].value", "255"}},
		{"priority", string(ipamConf(`{"priority":-1}`)), 7, []string{"ipam.priority", "-1"}},
		{"type", string(ipamConf(`{"request":"routers"}`)), 6, []string{"ipam.request"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c, err := load([]byte(tc.stdin))
			if err == nil {
				_, err = c.exchangeOptions("")
			}
			e := cnierr.From(err)
			if e == nil || e.Code != tc.code {
				t.Fatalf("error %+v, want code %d", e, tc.code)
			}
			for _, w := range tc.words {
				if !strings.Contains(e.Msg+e.Details, w) {
					t.Errorf("%q does not name %s", e.Msg, w)
				}
			}
		})
	}
}

func TestParseOptions(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"-pidfile run.pid", "-timeout 0s", "-resendmax -1s", "more", "-nothing"} {
		if _, err := ParseOptions(strings.Fields(args), &strings.Builder{}); err == nil {
			t.Errorf("%s was accepted", args)
		}
	}
	o, err := ParseOptions(strings.Fields("-pidfile /run/x.pid -hostprefix /host -broadcast=true -resendtimeout 5s"), &strings.Builder{})
	if err != nil || o.PIDFile != "/run/x.pid" || o.HostPrefix != "/host" || !o.Broadcast || o.ResendTimeout.Seconds() != 5 || o.SocketPath != DefaultSocketPath {
		t.Errorf("%+v, %v", o, err)
	}
	// A unit file whose variable is not set.
	if o, err := ParseOptions([]string{"-socketpath="}, &strings.Builder{}); err != nil || o.SocketPath != DefaultSocketPath {
		t.Errorf("an empty socket path: %+v, %v", o, err)
	}
}

// A value that is too long is named by where it is from.
func TestLongArgument(t *testing.T) {
	t.Parallel()
	c, err := load(ipamConf(`{"provide":[{"option":"12","value":"v","fromArg":"K8S_POD_NAME"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.exchangeOptions("K8S_POD_NAME=" + strings.Repeat("x", 256))
	if e := cnierr.From(err); e == nil || e.Code != cnierr.CodeConfig || !strings.Contains(e.Msg, "CNI_ARGS") || !strings.Contains(e.Msg, "K8S_POD_NAME") {
		t.Errorf("error %+v", e)
	}
}

// Without any option to ask for, the client library's own list stays, as with upstream: an option 55 of no length is
// none (RFC 2132 section 9.8), and without a subnet mask no ADD succeeds.
func TestSkipDefaultAlone(t *testing.T) {
	t.Parallel()
	c, err := load(ipamConf(`{"type":"dhcp","request":[{"skipDefault":true}]}`))
	if err != nil {
		t.Fatal(err)
	}
	o, err := c.exchangeOptions("")
	if err != nil {
		t.Fatal(err)
	}
	m, err := dhcpv4.NewDiscovery([]byte{2, 0, 0, 0, 0, 1}, o.modifiers("id")...)
	if err != nil {
		t.Fatal(err)
	}
	if got := m.ParameterRequestList(); !got.Has(dhcpv4.OptionSubnetMask) {
		t.Errorf("requested %v", got)
	}
}

// The plugin waits for the daemon longer than that tries by default.
func TestAddDeadline(t *testing.T) {
	t.Parallel()
	o, err := ParseOptions(nil, &strings.Builder{})
	if err != nil {
		t.Fatal(err)
	}
	if cniskel.AddDeadline < o.ResendTimeout+10*time.Second {
		t.Errorf("ADD ends after %v, the daemon tries for %v", cniskel.AddDeadline, o.ResendTimeout)
	}
}
