// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/fuzztest"
)

// A configuration that is accepted has sets that can be allocated from, no address is in two of them, and every file
// of an address lies in the directory of the network.
func FuzzParseConfig(f *testing.F) {
	fuzztest.AddConfigurations(f, "host-local",
		`{"name":"n","ipam":{"subnet":"10.0.0.0/24","rangeStart":"::ffff:10.0.0.9","routes":[{"dst":"::/0"}]},"args":{"cni":{"ips":["10.0.0.7/8"]}}}`,
		`{"name":"n","ipam":{"ranges":[[{"subnet":"fd00::/126"}]]},"runtimeConfig":{"ipRanges":[[{"subnet":"10.0.0.0/30"}]],"ips":["fd00::2"]}}`)
	f.Add([]byte(manyRequests(20_000)), "")
	f.Fuzz(func(t *testing.T, stdin []byte, args string) {
		a := &cniskel.Args{Log: log.NewNop(), CmdArgs: cniskel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/x", StdinData: stdin, Args: args}}
		var c *config
		var err error
		fuzztest.Bounded(t, len(stdin)+len(args), func() { c, err = load(a) })
		if err != nil {
			fuzztest.Refused(t, err, len(stdin)+len(args), "CNI version ")
			return
		}
		if _, err := c.distribute(); err != nil && cnierr.From(err).Code != cnierr.CodeConfig {
			t.Errorf("distribute: %v", err)
		}
		for i, s := range c.sets {
			if err := s.Validate(); err != nil {
				t.Errorf("set %s: %v", s, err)
			}
			for _, o := range c.sets[:i] {
				if a, b, ok := s.Overlaps(o); ok {
					t.Errorf("%s overlaps %s", a, b)
				}
			}
			checkPool(t, c, i)
		}
	})
}

func checkPool(t *testing.T, c *config, i int) {
	t.Helper()
	st := &store{dir: "/data/net"}
	n := 0
	for addr, r := range c.sets[i].After(c.sets[i][0].End) {
		if !r.Subnet.Contains(addr) || addr == r.Gateway || !r.Contains(addr) {
			t.Errorf("%s of %s is given away: subnet %s, gateway %s", addr, r, r.Subnet, r.Gateway)
		}
		if filepath.Dir(st.path(addr)) != st.dir {
			t.Errorf("the file of %s is %s", addr, st.path(addr))
		}
		if n++; n == 8 {
			break
		}
	}
}

// manyRequests asks for n addresses.
func manyRequests(n int) string {
	var ips strings.Builder
	for i := range n {
		fmt.Fprintf(&ips, `"fd00::%x",`, i+1)
	}
	return `{"cniVersion":"1.0.0","name":"n","ipam":{"subnet":"fd00::/64"},"args":{"cni":{"ips":[` + strings.TrimSuffix(ips.String(), ",") + `]}}}`
}

// Whatever lies in the directory of a network, a reservation that is read belongs to the file's address, and an owner
// that is written is read again.
func FuzzParseReservation(f *testing.F) {
	f.Add("10.0.0.2", []byte("0a1b2c\r\neth0"))
	f.Add("10.0.0.2", []byte("0a1b2c"))
	f.Add("fd00::2", []byte("0a1b2c\neth0\n"))
	f.Add("last_reserved_ip.0", []byte("10.0.0.2"))
	f.Add("::ffff:10.0.0.2", []byte("\x00\x00\x00\x00"))
	f.Add("fe80::1%eth0", []byte(" \r\n"))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > 200 {
			return // no file can have this name
		}
		dir := t.TempDir()
		write(t, filepath.Join(dir, name), content)
		s := &store{dir: dir, log: log.NewNop()}
		var list []reservation
		fuzztest.Bounded(t, len(content), func() {
			var unread, err error
			if list, unread, err = s.scan(); err != nil || unread != nil {
				t.Errorf("%v, %v", err, unread)
			}
		})
		for _, r := range list {
			if r.addr.String() != name || r.addr.Zone() != "" {
				t.Errorf("%q is taken for the reservation of %s", name, r.addr)
			}
			if strings.TrimSpace(r.owner) != r.owner || strings.HasPrefix(r.owner, "\x00") {
				t.Errorf("owner %q", r.owner)
			}
			id, ifname, _ := strings.Cut(r.owner, lineBreak)
			if id != "" && strings.TrimSpace(id) == id && ownerKey(id, ifname) != r.owner && ifname != "" {
				t.Errorf("owner %q is written as %q", r.owner, ownerKey(id, ifname))
			}
		}
	})
}

// A note of boots, an index of owners and a resolv.conf may hold anything.
func FuzzParseSideFiles(f *testing.F) {
	f.Add([]byte(`{"version":1,"machine":"m","boots":["a","b"]}`))
	f.Add([]byte("10.0.0.2\nfd00::2\n"))
	f.Add([]byte("# resolv\nnameserver 10.0.0.1\nsearch a b\noptions ndots:5\ndomain x\n;\nnameserver\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		side := t.TempDir()
		s := &store{dir: t.TempDir(), side: side, node: Node{MachineID: "m", BootID: "b"}, log: log.NewNop()}
		write(t, filepath.Join(side, noteName), content)
		write(t, filepath.Join(side, stampName), content)
		if err := os.Mkdir(filepath.Join(side, ownersName), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, s.ownerPath("owner"), content)
		fuzztest.Bounded(t, len(content), func() {
			if n := s.readNote(); n.Version != 0 && (n.Machine != "m" || n.Version != noteVersion) {
				t.Errorf("note %+v", n)
			}
			if s.clean() && len(content) == 0 {
				t.Error("an empty stamp is taken for right")
			}
			if addrs, err := s.indexLookup("owner"); err == nil {
				for _, a := range addrs {
					if !a.IsValid() {
						t.Errorf("index %v", addrs)
					}
				}
			}
		})
		path := filepath.Join(side, "resolv.conf")
		write(t, path, content)
		dns, err := readResolvConf(path)
		if err != nil {
			return
		}
		for _, word := range append(append(append(dns.Nameservers, dns.Search...), dns.Options...), dns.Domain) {
			if len(strings.Fields(word)) > 1 {
				t.Errorf("%q is more than one word", word)
			}
		}
	})
}

func write(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
