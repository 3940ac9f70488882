// SPDX-License-Identifier: Apache-2.0

package nodeports

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/hostport"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

func at(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// A socket and a port meet if they have an address in common.
func TestCovers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		hostIP, socket string
		v6only, want   bool
	}{
		{"0.0.0.0", "0.0.0.0:1", false, true},
		{"0.0.0.0", "192.0.2.1:1", false, true},
		{"0.0.0.0", "[::]:1", false, true},
		{"0.0.0.0", "[::]:1", true, false},
		{"0.0.0.0", "[2001:db8::1]:1", false, false},
		{"::", "0.0.0.0:1", false, false},
		{"::", "[::]:1", true, true},
		{"::", "[2001:db8::1]:1", false, true},
		{"192.0.2.1", "0.0.0.0:1", false, true},
		{"192.0.2.1", "[::]:1", false, true},
		{"192.0.2.1", "192.0.2.2:1", false, false},
		{"192.0.2.1", "192.0.2.1:1", false, true},
		{"2001:db8::1", "[2001:db8::2]:1", false, false},
		{"2001:db8::1", "[::]:1", true, true},
	} {
		p := hostport.Key{HostIP: netip.MustParseAddr(tt.hostIP), Proto: unix.IPPROTO_TCP, Port: 1}
		if got := covers(p, rtnl.Listener{Local: at(tt.socket), V6Only: tt.v6only}); got != tt.want {
			t.Errorf("%s, socket %s, v6only %v: %v", p, tt.socket, tt.v6only, got)
		}
	}
}

// Only endpoints that listen count, each with all its addresses.
func TestSCTP(t *testing.T) {
	t.Parallel()
	got := parseSCTP(" ENDPT     SOCK   STY SST HBKT LPORT   UID INODE LADDRS\n" +
		"00000000aa 00000000bb 2   10  29   5000      0 12345 192.0.2.1 2001:0db8:0000:0000:0000:0000:0000:0001 \n" +
		"00000000aa 00000000bb 2   7   29   5001      0 12346 0.0.0.0 \n" +
		"00000000aa\n")
	want := []rtnl.Listener{{Local: at("192.0.2.1:5000"), Inode: 12345}, {Local: at("[2001:db8::1]:5000"), Inode: 12345}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestRecorded(t *testing.T) {
	t.Parallel()
	record := func(data string) *attachments.Record {
		return &attachments.Record{Plugins: map[string]attachments.Section{"portmap": {Data: json.RawMessage(data)}}}
	}
	got := Recorded([]*attachments.Record{
		nil, {}, record("no JSON"), record(`{"ports":[{"backend":"ebpf"}]}`),
		record(`{"ports":[{"hostIP":"::","proto":17,"port":53,"backend":"nftables"},{"hostIP":"0.0.0.0","proto":6,"port":80,"backend":"ebpf"}]}`),
		record(`{"ports":[{"hostIP":"0.0.0.0","proto":6,"port":80,"backend":"ebpf"}]}`),
	})
	want := []hostport.Key{{HostIP: netip.IPv4Unspecified(), Proto: unix.IPPROTO_TCP, Port: 80}, {HostIP: netip.IPv6Unspecified(), Proto: unix.IPPROTO_UDP, Port: 53}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestTunnels(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "tunnels")
	if got, err := ReadTunnels(path); err != nil || got != nil {
		t.Errorf("a missing file: %v, %v", got, err)
	}
	want := []Tunnel{{8472, "flannel.1"}, {51820, "sluice-wg"}}
	if err := os.WriteFile(path, append([]byte("x y\n0 z\n\n70000 z\n"), FormatTunnels(want)...), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadTunnels(path); err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}
