// SPDX-License-Identifier: Apache-2.0

package storeproc

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/conf"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

// away is a store that never answers.
type away struct{ claims.Store }

func (away) Place() string { return conf.Kubernetes }

func (away) Get(context.Context, string) (*pool.Object, error) { return nil, claims.ErrUnavailable }

// keptJob is a pool with an address that the node does not use.
func keptJob(t *testing.T, dir string, i int) *Job {
	t.Helper()
	j := &Job{Config: conf.Config{Backend: conf.Kubernetes, DataDir: dir}, Node: blocks.Node{Machine: "m", Boot: "b"}}
	j.Request.Pool = fmt.Sprintf("10.0.%d.0-24", i)
	j.Request.Range.CIDR = netip.MustParsePrefix(fmt.Sprintf("10.0.%d.0/24", i))
	claim(t, j, blocks.Claim{ID: "x", Runs: [][2]uint64{{1, 1}}})
	return j
}

func claim(t *testing.T, j *Job, claims ...blocks.Claim) {
	t.Helper()
	f, err := blocks.Open(t.Context(), j.Config.DataDir, j.Config.Backend, j.Request.Pool)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Node, f.Machine, f.Boot, f.Claims = "n", "m", "b", claims
	if err := f.Save(); err != nil {
		t.Fatal(err)
	}
}

// stays runs Stay, and returns a channel that it closes when it ends.
func stays(ctx context.Context, j *Job, opened *sync.Map) chan error {
	end := make(chan error, 1)
	go func() {
		end <- Stay(ctx, j, func(_ context.Context, j *Job) (*claims.Claimer, func(), error) {
			opened.Store(j.Request.Pool, true)
			return &claims.Claimer{Store: away{}, Node: j.Node, Dir: j.Config.DataDir, Log: log.NewNop()}, func() {}, nil
		}, log.NewNop())
	}()
	return end
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// One process stays for all pools of a node, until none needs it. One that was killed comes back for all of them.
func TestKeep(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, two := keptJob(t, dir, 1), keptJob(t, dir, 2)
	var first, second, third sync.Map
	ctx, kill := context.WithCancel(t.Context())
	killed := stays(ctx, one, &first)
	eventually(t, "the first pool is kept", func() bool { return Kept(t.Context(), one) })
	if Kept(t.Context(), two) {
		t.Error("nothing has asked for the second pool")
	}
	if err := <-stays(t.Context(), two, &second); err != nil {
		t.Error(err)
	}
	eventually(t, "the first process stays for the second pool", func() bool {
		_, ok := first.Load(two.Request.Pool)
		return ok && Kept(t.Context(), two)
	})
	if _, ok := second.Load(two.Request.Pool); ok {
		t.Error("a second process stays")
	}
	kill()
	<-killed
	if Kept(t.Context(), one) {
		t.Error("the process has ended")
	}
	last := stays(t.Context(), one, &third)
	eventually(t, "both pools are kept again", func() bool {
		_, ok := third.Load(two.Request.Pool)
		return ok && Kept(t.Context(), one) && Kept(t.Context(), two)
	})
	claim(t, two) // nothing is unused
	eventually(t, "the second pool needs nobody", func() bool { return !Kept(t.Context(), two) })
	if !Kept(t.Context(), one) {
		t.Error("the first pool is not kept any more")
	}
	claim(t, one)
	if err := <-last; err != nil {
		t.Error(err)
	}
}
