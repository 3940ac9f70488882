// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/conf"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/kubestore"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/storeproc"
)

const namespace = "kube-system"

// kube starts an API server with the custom resources.
func kube(t testing.TB) *kubetest.Server {
	t.Helper()
	s := kubetest.Start(t, kubetest.Options{})
	text, err := os.ReadFile("../../../deploy/ipam/crds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.KubectlWith(string(text), "apply", "-f", "-")
	s.Kubectl("wait", "--for", "condition=established", "--timeout=60s", "crd", "--all")
	return s
}

// host is a node with a folder and an identity of its own. Its plugin runs in this process, and so does what the store
// program does.
type host struct {
	t      *testing.T
	name   string
	dir    string
	boot   int
	plugin *cniskel.Plugin
	open   storeproc.Opener

	ctx        context.Context
	background sync.WaitGroup
	keepers    sync.WaitGroup
	mu         sync.Mutex
	calls      int // of the store
	runs       int // of the store program
}

func newHost(t *testing.T, name string, open storeproc.Opener) *host {
	t.Helper()
	h := &host{t: t, name: name, dir: t.TempDir(), open: open}
	h.plugin = New(Deps{Store: h, Node: func(string, string) blocks.Node { return h.node() }})
	var cancel func()
	h.ctx, cancel = context.WithCancel(context.Background())
	t.Cleanup(func() {
		h.background.Wait()
		cancel()
		h.keepers.Wait()
	})
	return h
}

// kubeHost is a host of an API server, with its Node object.
func kubeHost(t *testing.T, s *kubetest.Server, name string) *host {
	t.Helper()
	config := s.Config()
	h := newHost(t, name, func(context.Context, *conf.Config) (claims.Store, error) { return kubestore.New(config, namespace) })
	h.register(s)
	return h
}

func (h *host) node() blocks.Node {
	boot := fmt.Sprintf("%s-boot-%d", h.name, h.boot)
	return blocks.Node{Name: h.name, BootID: boot, Boot: blocks.HashBoot(boot), Machine: blocks.HashBoot("machine of " + h.name)}
}

// register writes what the kubelet writes.
func (h *host) register(s *kubetest.Server) {
	h.t.Helper()
	register(h.t, s, h.name, h.node().BootID)
}

// register makes a Node object that reports a boot.
func register(t testing.TB, s *kubetest.Server, name, bootID string) {
	t.Helper()
	nodes := s.Client().CoreV1().Nodes()
	n, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		if n, err = nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	n.Status.NodeInfo.BootID = bootID
	if _, err := nodes.UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// Call does what one run of the store program does.
func (h *host) Call(ctx context.Context, verb string, j storeproc.Job, out any) error {
	claimer := func(ctx context.Context, j *storeproc.Job) (*claims.Claimer, func(), error) {
		c, _, err := h.claimer(ctx, j)
		return c, func() { h.count(c) }, err
	}
	got, err := storeproc.Do(ctx, claimer, verb, &j)
	if err != nil || out == nil {
		return err
	}
	text, err := json.Marshal(got)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, out)
}

func (h *host) count(c *claims.Claimer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runs++
	if k, ok := c.Store.(*kubestore.Store); ok {
		h.calls += k.Calls
	}
}

func (h *host) claimer(ctx context.Context, j *storeproc.Job) (*claims.Claimer, func(), error) {
	s, err := h.open(ctx, &j.Config)
	if err != nil {
		return nil, nil, err
	}
	return &claims.Claimer{
		Store: s, Node: j.Node, Dir: j.Config.DataDir, Log: log.NewNop(), FullWait: 8 * time.Second, Patience: time.Second,
	}, func() {}, nil
}

// Start does in this process what the store program does in the background.
func (h *host) Start(verb string, j storeproc.Job) error {
	switch {
	case verb == storeproc.Upkeep:
		h.background.Go(func() {
			_ = h.Call(context.Background(), verb, j, nil)
			_ = h.Start(storeproc.Keep, j)
		})
	case !storeproc.Kept(h.ctx, &j):
		h.keepers.Go(func() { _ = storeproc.Stay(h.ctx, &j, h.claimer, log.NewNop()) })
	}
	return nil
}

// args is a call for a container. extra are further keys of the ipam section.
func (h *host) args(id, extra string, more ...string) *cniskel.Args {
	text := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","type":"macvlan","ipam":{"type":"whereabouts","data_dir":%q,"kubernetes":{"kubeconfig":"/k"}%s}%s}`,
		h.dir, comma(extra), strings.Join(more, ""))
	return &cniskel.Args{
		CmdArgs: cniskel.CmdArgs{
			ContainerID: id, IfName: "net1", StdinData: []byte(text),
			Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=" + id + ";K8S_POD_UID=uid-" + id,
		},
		Log: log.NewNop(),
	}
}

func comma(s string) string {
	if s != "" {
		s = "," + s
	}
	return s
}

// add returns the addresses.
func (h *host) add(a *cniskel.Args) ([]netip.Addr, error) {
	res, err := h.plugin.Add(context.Background(), a)
	if err != nil {
		return nil, err
	}
	r, err := types100.GetResult(res)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, ip := range r.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		out = append(out, addr.Unmap())
	}
	return out, nil
}

func (h *host) mustAdd(id, extra string) netip.Addr {
	h.t.Helper()
	got, err := h.add(h.args(id, extra))
	if err != nil {
		h.t.Fatalf("%s: ADD %s: %v", h.name, id, err)
	}
	return got[0]
}

func (h *host) mustDel(id, extra string) {
	h.t.Helper()
	if err := h.plugin.Del(context.Background(), h.args(id, extra)); err != nil {
		h.t.Fatalf("%s: DEL %s: %v", h.name, id, err)
	}
}

// wantCode checks the code of an error, and that it says something.
func wantCode(t *testing.T, err error, code uint, text ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want code %d", code)
		return
	}
	if got := cnierr.From(err); got.Code != code {
		t.Errorf("code %d, want %d: %v", got.Code, code, err)
	}
	for _, s := range text {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the error does not say %q: %v", s, err)
		}
	}
}

// allocations returns what the pool has.
func allocations(t testing.TB, s *kubetest.Server, name string) map[string]map[string]string {
	t.Helper()
	var o struct {
		Spec struct {
			Allocations map[string]map[string]string `json:"allocations"`
		} `json:"spec"`
	}
	text := s.Kubectl("-n", namespace, "get", "ippool", name, "-o", "json")
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return o.Spec.Allocations
}

// openAs opens the store as another user.
func openAs(s *kubetest.Server, user string) storeproc.Opener {
	config := s.ConfigFor(user)
	return func(context.Context, *conf.Config) (claims.Store, error) { return kubestore.New(config, namespace) }
}

// role is the text of the role that deploy/ipam has.
func role(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/ipam/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func dialIn(ns *netlab.NS) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) { return ns.DialContext(ctx, "tcp", addr) }
}

func clientTLS(t *testing.T, pki *kubetest.PKI) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(pki.File("kubelet-client.crt"), pki.File("kubelet-client.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(pki.File("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, MinVersion: tls.VersionTLS12}
}
