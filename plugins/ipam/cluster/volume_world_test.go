// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sluice-cni/sluice/pkg/test/kubetest"
)

// link is the way of one node to the API server. It can be cut, as by a partition: connections end, and new ones are
// closed at once, or answered by nothing.
type link struct {
	listener net.Listener
	mu       sync.Mutex
	cut      bool
	silent   bool
	conns    map[net.Conn]bool
}

// newLink returns a link, and the kubeconfig of a node behind it.
func newLink(t *testing.T, s *kubetest.Server) (*link, string) {
	t.Helper()
	l := &link{conns: map[net.Conn]bool{}}
	err := s.NS.Do(func() (err error) {
		l.listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.listener.Close()
		l.set(true, false)
	})
	go func() {
		for {
			c, err := l.listener.Accept()
			if err != nil {
				return
			}
			go l.serve(s, c)
		}
	}()
	text, err := os.ReadFile(s.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	_, port, _ := net.SplitHostPort(l.listener.Addr().String())
	moved := strings.ReplaceAll(string(text), ":"+kubetest.Port, ":"+port)
	if moved == string(text) {
		t.Fatal("the kubeconfig does not name the port of the API server")
	}
	if err := os.WriteFile(path, []byte(moved), 0o600); err != nil {
		t.Fatal(err)
	}
	return l, path
}

// set cuts the link or restores it.
func (l *link) set(cut, silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.silent = cut, silent
	for c := range l.conns {
		_ = c.Close()
	}
	clear(l.conns)
}

func (l *link) serve(s *kubetest.Server, c net.Conn) {
	defer c.Close()
	l.mu.Lock()
	cut, silent := l.cut, l.silent
	l.conns[c] = true
	l.mu.Unlock()
	if cut {
		if silent {
			_, _ = io.Copy(io.Discard, c)
		}
		return
	}
	up, err := s.NS.DialContext(context.Background(), "tcp", "127.0.0.1:"+kubetest.Port)
	if err != nil {
		return
	}
	defer up.Close()
	l.mu.Lock()
	l.conns[up] = true
	l.mu.Unlock()
	go func() {
		_, _ = io.Copy(up, c)
		_ = up.Close()
	}()
	_, _ = io.Copy(c, up)
}

// foreign is a node with whereabouts. It takes the lowest free address by a patch that tests the resourceVersion, and looks at
// nothing else.
type foreign struct {
	t      *testing.T
	client rest.Interface
	path   string
	size   int
	rnd    *rand.Rand
	mu     *sync.Mutex
	owner  map[netip.Addr]string
	live   map[int]string
}

func newForeign(t *testing.T, s *kubetest.Server, poolName string, size int, mu *sync.Mutex, owner map[netip.Addr]string) *foreign {
	t.Helper()
	c, err := kubernetes.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	return &foreign{
		t: t, client: c.RESTClient(), path: "/apis/whereabouts.cni.cncf.io/v1alpha1/namespaces/" + namespace + "/ippools/" + poolName, size: size,
		rnd: rand.New(rand.NewPCG(99, 3)), mu: mu, owner: owner, live: map[int]string{},
	}
}

type foreignPool struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Spec struct {
		Allocations map[string]struct {
			ID string `json:"id"`
		} `json:"allocations"`
	} `json:"spec"`
}

func (f *foreign) read(ctx context.Context) (foreignPool, error) {
	var p foreignPool
	text, err := f.client.Get().AbsPath(f.path).Timeout(3 * time.Second).Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	return p, err
}

func (f *foreign) patch(ctx context.Context, version string, ops ...string) error {
	body := fmt.Sprintf(`[{"op":"test","path":"/metadata/resourceVersion","value":%q},%s]`, version, strings.Join(ops, ","))
	return f.client.Patch(types.JSONPatchType).AbsPath(f.path).Timeout(3 * time.Second).Body([]byte(body)).Do(ctx).Error()
}

func (f *foreign) addr(off int) netip.Addr { return netip.AddrFrom4([4]byte{10, 70, 0, byte(off)}) }

// add allocates. An answer that is lost is looked for later, as whereabouts' next try does by its container ID.
func (f *foreign) add(ctx context.Context, id string) {
	for ctx.Err() == nil {
		p, err := f.read(ctx)
		if err != nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		for key, e := range p.Spec.Allocations {
			if e.ID == id { // the answer was lost
				var off int
				_, _ = fmt.Sscan(key, &off)
				f.have(off, id)
				return
			}
		}
		off := 1
		for ; off <= f.size; off++ {
			if _, ok := p.Spec.Allocations[fmt.Sprint(off)]; !ok {
				break
			}
		}
		if off > f.size {
			return // full
		}
		entry := fmt.Sprintf(`{"op":"add","path":"/spec/allocations/%d","value":{"id":%q,"podref":"ns/%s","ifname":"net1"}}`, off, id, id)
		if f.patch(ctx, p.Metadata.ResourceVersion, entry) == nil {
			f.have(off, id)
			return
		}
	}
}

func (f *foreign) have(off int, id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.addr(off)
	if by, ok := f.owner[a]; ok {
		f.t.Errorf("%s has %s and %s of whereabouts", a, by, id)
	}
	f.owner[a], f.live[off] = id, id
}

func (f *foreign) del(ctx context.Context, off int) {
	f.mu.Lock()
	delete(f.owner, f.addr(off))
	f.mu.Unlock()
	id := f.live[off]
	delete(f.live, off)
	for ctx.Err() == nil {
		p, err := f.read(ctx)
		if err == nil && p.Spec.Allocations[fmt.Sprint(off)].ID != id {
			return
		}
		if err == nil && f.patch(ctx, p.Metadata.ResourceVersion, fmt.Sprintf(`{"op":"remove","path":"/spec/allocations/%d"}`, off)) == nil {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// run allocates and releases until ctx ends, and then releases all.
func (f *foreign) run(ctx context.Context) (n int) {
	for ; ctx.Err() == nil; n++ {
		f.add(ctx, fmt.Sprintf("w%d", n))
		if len(f.live) > 6 || f.rnd.IntN(2) == 0 {
			for off := range f.live {
				f.del(ctx, off)
				break
			}
		}
		time.Sleep(time.Duration(f.rnd.IntN(100)) * time.Millisecond)
	}
	rest, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p, err := f.read(rest)
	for err != nil && rest.Err() == nil { // the server is away
		time.Sleep(50 * time.Millisecond)
		p, err = f.read(rest)
	}
	if err != nil {
		f.t.Error(err)
	}
	for key, e := range p.Spec.Allocations { // also what an answer that was lost has left
		var off int
		if _, err := fmt.Sscan(key, &off); err == nil && strings.HasPrefix(e.ID, "w") {
			f.live[off] = e.ID
		}
	}
	for off := range f.live {
		f.del(rest, off)
	}
	return n
}
