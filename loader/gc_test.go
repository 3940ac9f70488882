// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/attach"
	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

func TestPrivilegedGC(t *testing.T) {
	for _, how := range []string{"auto", "tcx"} {
		t.Run(how, func(t *testing.T) {
			if how == hook.HowTCX {
				require.TCX(t)
			}
			e := newEnv(t)
			setAttach(&e.o, how)
			e.uplink()
			d := e.open()
			stays, goes, dead := e.pod("pod1", "10.1.0.2/16"), e.pod("pod2", "10.1.0.3/16"), e.pod("pod3", "10.1.0.4/16")
			for i, ep := range []Endpoint{stays, goes, dead} {
				e.ok(d.Enable(e.ctx, ep, FeatureAdmit|FeaturePublish))
				e.ok(d.SetHostPorts(e.ctx, ep.Ref.Owner(), nil, []hostport.Mapping{port(uint16(8080+i), ep.Addrs[0].Addr().String(), 80)}))
			}
			e.ip("link", "del", "pod3") // the device went without a DEL
			asked := make(map[uint64]int)
			e.ok(d.GC(e.ctx, func(owner uint64) bool {
				asked[owner]++
				return owner == stays.Ref.Owner()
			}))
			for owner, n := range asked {
				if n != 1 {
					t.Errorf("owner %x asked %d times", owner, n)
				}
			}
			if len(asked) != 3 {
				t.Errorf("asked %d owners", len(asked))
			}
			e.ok(d.CheckEndpoint(e.ctx, stays, FeatureAdmit|FeaturePublish))
			s, err := d.Status(e.ctx)
			e.ok(err)
			if len(s.Endpoints) != 1 || len(s.Devices) != 2 {
				t.Errorf("endpoints %+v, devices %+v", s.Endpoints, s.Devices)
			}
			if got := e.published(d); len(got) != 1 {
				t.Errorf("published: %+v", got)
			}
			if got := hooksOf(e, d, goes.HostIfindex); got != nil {
				t.Errorf("programs left: %v", got)
			}
			for _, name := range append(mustNames(t, d.tree.Paths.Links()), mustNames(t, d.tree.Paths.Clsact())...) {
				if strings.HasPrefix(name, fmt.Sprintf("dev%d", dead.HostIfindex)) {
					t.Errorf("pin of a dead device: %s", name)
				}
			}
		})
	}
}

// The tree of a network namespace that is no more goes, with a GC elsewhere or the next load; that of one that lives stays.
func TestPrivilegedGCNamespaces(t *testing.T) {
	require.TCX(t)
	for name, collect := range map[string]func(e *env, living *Datapath){
		"GC": func(e *env, living *Datapath) { e.ok(living.GC(e.ctx, func(uint64) bool { return true })) },
		"load": func(e *env, living *Datapath) {
			e.ok(os.RemoveAll(living.tree.Paths.Progs()))
			e.open()
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.uplink()
			first := e.open()
			e.ok(first.Sync(e.ctx))
			e.leave()
			second := e.open()
			e.ok(second.Sync(e.ctx))
			if first.tree.Paths.Dir == second.tree.Paths.Dir {
				t.Fatal("two namespaces share a tree")
			}
			e.eventually("the links of the dead namespace to lose their devices", func() bool {
				pins := mustNames(t, first.tree.Paths.Links())
				lost := 0
				for _, name := range pins {
					if is, err := attach.Defunct(filepath.Join(first.tree.Paths.Links(), name)); err == nil && is {
						lost++
					}
				}
				return lost == len(pins) // none: the second load was late enough to collect them
			})
			collect(e, second)
			if pintree.Exists(first.tree.Paths.Dir) {
				t.Errorf("the tree of the dead namespace is left: %v", pathsBelow(first.tree.Paths.Dir))
			}
			if !pintree.Exists(second.tree.Paths.Dir) {
				t.Error("the own tree is gone")
			}
		})
	}
}

// leave lets the network namespace end: the thread goes to another one.
func (e *env) leave() {
	e.t.Helper()
	e.h.Close() // its socket would hold the namespace
	e.ok(unix.Unshare(unix.CLONE_NEWNET))
	e.netlink()
	e.uplink()
}

// Twenty processes open at once on a fresh node: one loads.
func TestPrivilegedParallelOpen(t *testing.T) {
	if dir := os.Getenv(openerEnv); dir != "" {
		opener(t, dir)
		return
	}
	e := newEnv(t)
	e.uplink()
	outs := make([]string, 20)
	var wg sync.WaitGroup
	// Started here, on the test's thread, so that they are in its namespaces; waited for elsewhere.
	for i := range outs {
		cmd := exec.Command(os.Args[0], "-test.run=^TestPrivilegedParallelOpen$", "-test.v")
		cmd.Env = append(os.Environ(), openerEnv+"="+filepath.Dir(e.o.RunDir))
		var b strings.Builder
		cmd.Stdout, cmd.Stderr = &b, &b
		e.ok(cmd.Start())
		wg.Go(func() {
			if err := cmd.Wait(); err != nil {
				b.WriteString(err.Error())
			}
			outs[i] = b.String()
		})
	}
	wg.Wait()
	ids := make(map[string]int)
	loads := 0
	for _, out := range outs {
		if !strings.Contains(out, "PASS") {
			t.Fatalf("a process failed:\n%s", out)
		}
		loads += strings.Count(out, "datapath loaded")
		_, id, _ := strings.Cut(out, "program id ")
		id, _, _ = strings.Cut(id, "\n")
		ids[id]++
	}
	if len(ids) != 1 || loads != 1 {
		t.Errorf("%d loads, programs %v", loads, ids)
	}
}

const openerEnv = "SLUICE_TEST_OPENER"

// opener is one of the twenty: it inherits the namespaces.
func opener(t *testing.T, dir string) {
	e := &env{t: t, ctx: t.Context(), o: testOptions(t, dir)}
	d := e.open()
	id, _ := d.tree.Paths.Committed()
	t.Logf("program id %d\n", programID(t, d.tree.Paths.BuildDir(id), hook.ToUplink()))
	e.ok(d.Sync(e.ctx))
}

// The same with goroutines, each with a verb of its own.
func TestPrivilegedParallelVerbs(t *testing.T) {
	e := newEnv(t)
	e.uplink()
	first := e.open()
	eps := make([]Endpoint, 20)
	for i := range eps {
		eps[i] = e.pod(fmt.Sprintf("pod%d", i), fmt.Sprintf("10.1.0.%d/16", i+2))
	}
	inside := e.elsewhere()
	errs := make(chan error, len(eps))
	for i, ep := range eps {
		go func() {
			errs <- inside(func() error {
				if err := first.Enable(e.ctx, ep, FeaturePublish); err != nil {
					return err
				}
				return first.SetHostPorts(e.ctx, ep.Ref.Owner(), nil, []hostport.Mapping{port(8080, ep.Addrs[0].Addr().String(), uint16(1000+i))})
			})
		}()
	}
	for range eps {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	for _, ep := range eps {
		e.ok(first.CheckEndpoint(e.ctx, ep, FeaturePublish))
	}
	if got := e.published(first); len(got) != 1 {
		t.Errorf("one port, %d mappings", len(got))
	}
}
