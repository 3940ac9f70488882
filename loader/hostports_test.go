// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net/netip"
	"os"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

func port(hostPort uint16, pod string, podPort uint16) hostport.Mapping {
	a := netip.MustParseAddr(pod)
	any := netip.IPv4Unspecified()
	if a.Is6() {
		any = netip.IPv6Unspecified()
	}
	return hostport.Mapping{Key: hostport.Key{HostIP: any, Proto: unix.IPPROTO_TCP, Port: hostPort}, PodIP: a, PodPort: podPort}
}

func keysOf(ports ...hostport.Mapping) []hostport.Key {
	keys := make([]hostport.Key, 0, len(ports))
	for _, p := range ports {
		keys = append(keys, p.Key)
	}
	return keys
}

func (e *env) published(d *Datapath) map[uint16]hostport.Entry {
	e.t.Helper()
	all, err := d.HostPorts(e.ctx)
	e.ok(err)
	out := make(map[uint16]hostport.Entry, len(all))
	for _, p := range all {
		out[p.Port] = p
	}
	return out
}

// The last ADD wins, with a new generation; the old owner's DEL leaves the new owner's mapping alone.
func TestPrivilegedHostPortsLastWins(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	const old, next = 1, 2
	first, second := port(8080, "10.1.0.2", 80), port(8080, "10.1.0.3", 80)
	e.ok(d.SetHostPorts(e.ctx, old, nil, []hostport.Mapping{first, port(8081, "10.1.0.2", 81)}))
	gen := e.published(d)[8080].Generation
	if gen == 0 {
		t.Error("generation 0")
	}
	e.ok(d.SetHostPorts(e.ctx, old, nil, []hostport.Mapping{first, port(8081, "10.1.0.2", 81)}))
	if again := e.published(d)[8080].Generation; again != gen {
		t.Error("the same mapping got another generation: its flows would die")
	}
	e.ok(d.SetHostPorts(e.ctx, next, nil, []hostport.Mapping{second}))
	if got := e.published(d)[8080]; got.Owner != next || got.Generation <= gen || got.PodIP != second.PodIP {
		t.Errorf("after the second ADD: %+v", got)
	}
	if err := d.CheckHostPorts(e.ctx, old, []hostport.Mapping{first}); !errors.Is(err, ErrDiffers) {
		t.Errorf("check of the old owner: %v", err)
	}
	e.ok(d.CheckHostPorts(e.ctx, next, []hostport.Mapping{second}))
	e.ok(d.RemoveHostPorts(e.ctx, old, keysOf(first)))
	e.ok(d.RemoveHostPorts(e.ctx, old, nil))
	left := e.published(d)
	if len(left) != 1 || left[8080].Owner != next {
		t.Errorf("after the old owner's DEL: %+v", left)
	}
	e.ok(d.RemoveHostPorts(e.ctx, next, nil))
	if left := e.published(d); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

// A port that another owner has taken over comes back when that one gives it up, with its sources, unless its own owner has gone
// in between or has got it back by itself.
func TestPrivilegedHostPortsComesBack(t *testing.T) {
	for name, give := range map[string]func(e *env, d *Datapath, owner uint64) error{
		"DEL": func(e *env, d *Datapath, o uint64) error {
			return d.RemoveHostPorts(e.ctx, o, keysOf(port(8080, "10.1.0.2", 80)))
		},
		"DEL without a record": func(e *env, d *Datapath, o uint64) error { return d.RemoveHostPorts(e.ctx, o, nil) },
		"a change of its mind": func(e *env, d *Datapath, o uint64) error { return d.SetHostPorts(e.ctx, o, nil, nil) },
		"GC": func(e *env, d *Datapath, o uint64) error {
			return d.GC(e.ctx, func(owner uint64) bool { return owner != o })
		},
		"another process's DEL": func(e *env, _ *Datapath, o uint64) error { return e.open().RemoveHostPorts(e.ctx, o, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			d := e.open()
			ports, eps := make(map[uint64][]hostport.Mapping), make(map[uint64]Endpoint)
			pod := func(name, addr string) uint64 {
				ep := e.pod(name, addr)
				eps[ep.Ref.Owner()] = ep
				ports[ep.Ref.Owner()] = []hostport.Mapping{port(8080, ep.Addrs[0].Addr().String(), 80)}
				return ep.Ref.Owner()
			}
			old, next, last := pod("old", "10.1.0.2/16"), pod("next", "10.1.0.3/16"), pod("last", "10.1.0.4/16")
			ports[old][0].AllowedSources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			publish := func(owner uint64) {
				t.Helper()
				e.ok(d.Enable(e.ctx, eps[owner], FeaturePublish))
				e.ok(d.SetHostPorts(e.ctx, owner, nil, ports[owner]))
			}
			give := func(owner uint64) {
				t.Helper()
				e.ok(give(e, d, owner))
			}
			holder := func(want uint64) {
				t.Helper()
				if got := e.published(d)[8080].Owner; got != want {
					t.Fatalf("held by %x, want %x of %x, %x, %x", got, want, old, next, last)
				}
			}
			publish(old)
			gen := e.published(d)[8080].Generation
			publish(next)
			publish(last)
			give(next) // waits itself
			holder(last)
			give(last)
			holder(old)
			e.ok(d.CheckHostPorts(e.ctx, old, ports[old]))
			if e.published(d)[8080].Generation <= gen {
				t.Error("it came back with its old generation: the flows of others live on")
			}
			publish(next)
			publish(old)
			give(old)
			holder(next)
			give(next)
			if left := e.published(d); len(left) != 0 {
				t.Errorf("left: %+v", left)
			}
			if pintree.Exists(d.tree.Paths.Waiting) {
				t.Error("nobody waits, but the file is there")
			}
		})
	}
}

// A claim takes a port from its owner and waits like any other. RemoveHostPorts and SetHostPorts leave it, and the release of one gives the
// port back.
func TestPrivilegedClaims(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	old := e.pod("old", "10.1.0.2/16")
	e.ok(d.Enable(e.ctx, old, FeaturePublish))
	mine, keys := []hostport.Mapping{port(8080, "10.1.0.2", 80)}, keysOf(port(8080, "10.1.0.2", 80))
	e.ok(d.SetHostPorts(e.ctx, old.Ref.Owner(), nil, mine))
	holder := func(owner uint64, claim bool) {
		t.Helper()
		if got := e.published(d)[8080]; got.Owner != owner || got.IsClaim() != claim {
			t.Errorf("held by %s, want owner %x, a claim: %t", got, owner, claim)
		}
	}
	const first, second = 7, 8
	e.ok(d.ClaimHostPorts(e.ctx, first, keys))
	holder(first, true)
	if err := d.CheckHostPorts(e.ctx, old.Ref.Owner(), mine); !errors.Is(err, ErrDiffers) {
		t.Errorf("CHECK of the pod without its port: %v", err)
	}
	e.ok(d.ClaimHostPorts(e.ctx, second, keys))
	e.ok(d.ClaimHostPorts(e.ctx, second, keys)) // a repeated ADD
	e.ok(d.RemoveHostPorts(e.ctx, second, nil))
	e.ok(d.SetHostPorts(e.ctx, second, nil, nil))
	holder(second, true)
	e.ok(d.SetHostPorts(e.ctx, old.Ref.Owner(), nil, mine))
	holder(old.Ref.Owner(), false)
	e.ok(d.RemoveHostPorts(e.ctx, old.Ref.Owner(), nil))
	holder(second, true) // which has no endpoint, and waits
	e.ok(d.SetHostPorts(e.ctx, old.Ref.Owner(), nil, mine))
	e.ok(d.ReleaseHostPorts(e.ctx, second, keys)) // waits
	e.ok(d.ReleaseHostPorts(e.ctx, second, keys)) // missing
	e.ok(d.RemoveHostPorts(e.ctx, old.Ref.Owner(), nil))
	holder(first, true)
	e.ok(d.GC(e.ctx, func(owner uint64) bool { return owner != first }))
	if left := e.published(d); len(left) != 0 || pintree.Exists(d.tree.Paths.Waiting) {
		t.Errorf("left: %+v", left)
	}
}

// Nothing comes back to a pod whose DEL never came: its device is gone, or another pod has its address.
func TestPrivilegedHostPortsDoesNotComeBack(t *testing.T) {
	for name, end := range map[string]func(e *env, d *Datapath){
		"device": func(e *env, _ *Datapath) { e.ip("link", "del", "dead") },
		"address": func(e *env, d *Datapath) {
			e.ip("link", "del", "dead")
			e.ok(d.Enable(e.ctx, e.pod("next", "10.1.0.2/16"), FeatureAdmit))
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			d := e.open()
			dead := e.pod("dead", "10.1.0.2/16")
			e.ok(d.Enable(e.ctx, dead, FeaturePublish))
			e.ok(d.SetHostPorts(e.ctx, dead.Ref.Owner(), nil, []hostport.Mapping{port(8080, "10.1.0.2", 80)}))
			end(e, d)
			e.ok(d.SetHostPorts(e.ctx, 2, nil, []hostport.Mapping{port(8080, "10.1.0.3", 80)}))
			e.ok(d.RemoveHostPorts(e.ctx, 2, nil))
			if left := e.published(d); len(left) != 0 || pintree.Exists(d.tree.Paths.Waiting) {
				t.Errorf("left: %+v", left)
			}
		})
	}
}

// An ADD that fails has taken nothing over.
func TestPrivilegedHostPortsFailsWithoutTakingOver(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	e.ok(d.SetHostPorts(e.ctx, 1, nil, []hostport.Mapping{port(8080, "10.1.0.2", 80)}))
	before := e.published(d)
	bad := port(8081, "10.1.0.3", 80)
	bad.Conditions.InDevice = "nowhere"
	if err := d.SetHostPorts(e.ctx, 2, nil, []hostport.Mapping{port(8080, "10.1.0.3", 80), bad}); !errors.Is(err, ErrNoDevice) {
		t.Fatalf("got %v, want ErrNoDevice", err)
	}
	if after := e.published(d); !reflect.DeepEqual(after, before) {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if pintree.Exists(d.tree.Paths.Waiting) {
		t.Error("somebody waits for what he has")
	}
}

// A damaged file is no reason to refuse pods.
func TestPrivilegedHostPortsUnreadableWaiting(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	e.ok(os.WriteFile(d.tree.Paths.Waiting, []byte("[{"), 0o644))
	e.ok(d.SetHostPorts(e.ctx, 1, nil, []hostport.Mapping{port(8080, "10.1.0.2", 80)}))
	e.ok(d.SetHostPorts(e.ctx, 2, nil, []hostport.Mapping{port(8080, "10.1.0.3", 80)}))
	if got := e.published(d)[8080].Owner; got != 2 {
		t.Errorf("held by %d, want the second", got)
	}
	e.ok(d.RemoveHostPorts(e.ctx, 2, nil))
}

func TestPrivilegedHostPortsWithdrawsOldKeys(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	e.ok(d.SetHostPorts(e.ctx, 1, nil, []hostport.Mapping{port(80, "10.1.0.2", 80), port(81, "10.1.0.2", 81), port(82, "2001:db8::2", 82)}))
	e.ok(d.SetHostPorts(e.ctx, 1, nil, []hostport.Mapping{port(81, "10.1.0.2", 81)}))
	if got := e.published(d); len(got) != 1 || got[81].Port != 81 {
		t.Errorf("published: %+v", got)
	}
}

// A full map is a clear error, and nothing has changed.
func TestPrivilegedHostPortsMapFull(t *testing.T) {
	e := newEnv(t)
	e.o.Config.MapSizes.HostPorts = 3
	d := e.open()
	e.ok(d.SetHostPorts(e.ctx, 1, nil, []hostport.Mapping{port(80, "10.1.0.2", 80), port(81, "10.1.0.2", 81)}))
	before := e.published(d)
	err := d.SetHostPorts(e.ctx, 2, nil, []hostport.Mapping{port(80, "10.1.0.3", 80), port(90, "10.1.0.3", 90), port(91, "10.1.0.3", 91)})
	if !errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want ErrFull", err)
	}
	after := e.published(d)
	if len(after) != len(before) || !reflect.DeepEqual(after, before) {
		t.Errorf("before %+v, after %+v", before, after)
	}
}

func TestPrivilegedHostPortsRefuses(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	mixed := port(80, "10.1.0.2", 80)
	mixed.HostIP = netip.IPv6Unspecified()
	for name, ports := range map[string][]hostport.Mapping{
		"twice":        {port(80, "10.1.0.2", 80), port(80, "10.1.0.2", 81)},
		"port 0":       {port(0, "10.1.0.2", 80)},
		"other family": {mixed},
		"no address":   {{Key: hostport.Key{Port: 80, Proto: 6}, PodPort: 80}},
	} {
		if err := d.SetHostPorts(e.ctx, 1, nil, ports); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if got := e.published(d); len(got) != 0 {
		t.Errorf("published: %+v", got)
	}
}

// One attachment cannot take the room of all others, and what it had stays as it was. A mapping for two families counts once.
func TestPrivilegedHostPortLimit(t *testing.T) {
	e := newEnv(t)
	e.o.Config.HostPortsPerAttachment = 2
	d := e.open()
	var ports []hostport.Mapping
	for i := range uint16(2) {
		ports = append(ports, port(8080+i, "10.1.0.2", 80), port(8080+i, "2001:db8::2", 80))
	}
	e.ok(d.SetHostPorts(e.ctx, 1, nil, ports))
	before, err := d.HostPorts(e.ctx)
	e.ok(err)
	if err := d.SetHostPorts(e.ctx, 1, nil, append(ports[:4:4], port(9090, "10.1.0.2", 80))); !errors.Is(err, hostport.ErrTooMany) {
		t.Errorf("got %v, want ErrTooMany", err)
	}
	after, err := d.HostPorts(e.ctx)
	e.ok(err)
	if !reflect.DeepEqual(before, after) || len(before) != 4 {
		t.Errorf("%v before, %v after", before, after)
	}
	e.ok(d.SetHostPorts(e.ctx, 2, nil, []hostport.Mapping{port(9090, "10.1.0.3", 80)})) // each attachment has its own share
}

// One attachment does not fill the map of allowed sources. An ADD that fails leaves none, and GC removes what a killed process left.
func TestPrivilegedAllowedSourcesLimit(t *testing.T) {
	e := newEnv(t)
	e.o.Config.AllowedSourcesPerAttachment = 4
	d := e.open()
	sources := func(p hostport.Mapping, nets ...string) hostport.Mapping {
		for _, n := range nets {
			p.AllowedSources = append(p.AllowedSources, netip.MustParsePrefix(n))
		}
		return p
	}
	m, err := d.tree.Pinned(pintree.MapHostPortAllowlist)
	e.ok(err)
	lists := hostport.NewAllowlists(m)
	want := func(what string, n int) {
		t.Helper()
		if got, err := lists.Len(); err != nil || got != n {
			t.Errorf("%s: %d sources are listed, want %d (%v)", what, got, n, err)
		}
	}
	one := sources(port(8080, "10.1.0.2", 80), "192.0.2.0/24", "198.51.100.0/24")
	two := sources(port(8081, "10.1.0.2", 80), "203.0.113.0/24", "2001:db8::/32")
	e.ok(d.SetHostPorts(e.ctx, 1, nil, []hostport.Mapping{one, two, sources(port(8082, "10.1.0.2", 80), "198.51.100.0/24", "192.0.2.0/24")}))
	want("two lists, one of them twice", 4)
	err = d.SetHostPorts(e.ctx, 1, nil, []hostport.Mapping{one, two, sources(port(8083, "10.1.0.2", 80), "192.0.2.0/24")})
	if !errors.Is(err, hostport.ErrTooManySources) {
		t.Errorf("got %v, want hostport.ErrTooManySources", err)
	}
	want("refused", 4)
	nowhere := sources(port(9091, "10.1.0.3", 80), "10.0.0.0/8")
	nowhere.Conditions.InDevice = "nosuch"
	if err := d.SetHostPorts(e.ctx, 2, nil, []hostport.Mapping{sources(port(9090, "10.1.0.3", 80), "172.16.0.0/12"), nowhere}); !errors.Is(err, ErrNoDevice) {
		t.Errorf("got %v, want ErrNoDevice", err)
	}
	want("failed", 4)
	_, err = lists.Put([]netip.Prefix{netip.MustParsePrefix("172.16.0.0/12")})
	e.ok(err)
	e.ok(d.GC(e.ctx, func(uint64) bool { return true }))
	want("after GC", 4)
	e.ok(d.RemoveHostPorts(e.ctx, 1, nil))
	want("after DEL, which does not look for other users of a list", 4)
	e.ok(d.GC(e.ctx, func(uint64) bool { return true }))
	want("after DEL and GC", 0)
}
