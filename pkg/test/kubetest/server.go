// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// Options say what kind of API server a test wants. The zero value is one in a network namespace of its own.
type Options struct {
	// NS is where it runs. Its loopback must be up. nil: a namespace of its own.
	NS *netlab.NS
	// Names and Addresses are further ones by which clients reach it than localhost, 127.0.0.1 and ::1.
	Names     []string
	Addresses []netip.Addr
	// Services are the networks of Services, one for each family. Empty: 10.96.0.0/16 and fd96::/108.
	Services []netip.Prefix
	// Args come behind the API server's other arguments.
	Args []string
}

// Server is an API server with its etcd. What fails ends the test.
type Server struct {
	// NS is where it listens, at port 6443 of every address.
	NS *netlab.NS
	// Dir has its files.
	Dir string
	// Kubeconfig is that of a user who may do everything, at https://127.0.0.1:6443: for programs inside NS.
	Kubeconfig string

	t         testing.TB
	bin       string
	pki       *PKI
	args      []string
	etcd, api *process
}

// URL is the address of the API server inside its namespace.
const URL = "https://127.0.0.1:" + Port

// Start returns when the API server is ready. All of it goes with the test.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	bin, err := kubebin.Build(t.Context(), kubebin.ControlPlane()...)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{t: t, bin: bin, NS: o.NS, Dir: t.TempDir()}
	if s.NS == nil {
		if s.NS, err = netlab.NewNetns("api"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.NS.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	loopback := netip.MustParseAddr("127.0.0.1")
	addrs := append([]netip.Addr{loopback, netip.IPv6Loopback()}, o.Addresses...)
	if len(o.Services) == 0 {
		o.Services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd96::/108")}
	}
	for _, services := range o.Services {
		addrs = append(addrs, services.Masked().Addr().Next())
	}
	if s.pki, err = NewPKI(filepath.Join(s.Dir, "pki"), append(ServiceNames(), o.Names...), addrs); err != nil {
		t.Fatal(err)
	}
	s.Kubeconfig = s.KubeconfigFor("admin", Masters)
	// The controller that makes service accounts does not run: pods do without.
	s.args = slices.Concat(APIServerArgs(s.pki, loopback, o.Services), []string{"--disable-admission-plugins", "ServiceAccount"}, o.Args)
	t.Cleanup(s.end)
	s.StartEtcd()
	s.Start()
	return s
}

// ServiceNames are those of the API server for its clients beside and inside the cluster.
func ServiceNames() []string {
	return []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
}

// KubeconfigFor returns the path of a kubeconfig for a user of these groups, for programs inside NS. RBAC decides what a user may do.
func (s *Server) KubeconfigFor(user string, groups ...string) string {
	s.t.Helper()
	path, err := s.pki.Kubeconfig(strings.NewReplacer(":", "-", "/", "-").Replace(user), URL, user, groups...)
	if err != nil {
		s.t.Fatal(err)
	}
	return path
}

// Config is for clients in the test's own process: their connections start inside NS.
func (s *Server) Config() *rest.Config {
	s.t.Helper()
	return s.config(s.Kubeconfig)
}

// ConfigFor is Config for the user of KubeconfigFor.
func (s *Server) ConfigFor(user string, groups ...string) *rest.Config {
	s.t.Helper()
	return s.config(s.KubeconfigFor(user, groups...))
}

func (s *Server) config(kubeconfig string) *rest.Config {
	s.t.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		s.t.Fatal(err)
	}
	c.Dial = s.NS.DialContext
	c.QPS, c.Burst = 1000, 1000
	return c
}

// Client is a client of Config.
func (s *Server) Client() *kubernetes.Clientset {
	s.t.Helper()
	c, err := kubernetes.NewForConfig(s.Config())
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

// Kubectl runs kubectl inside NS, as the user who may do everything, and returns what it prints.
func (s *Server) Kubectl(args ...string) string {
	s.t.Helper()
	return s.KubectlWith("", args...)
}

// KubectlWith is Kubectl with a standard input, for "apply -f -".
func (s *Server) KubectlWith(stdin string, args ...string) string {
	s.t.Helper()
	cmd := exec.Command(filepath.Join(s.bin, kubebin.Kubectl), append([]string{"--kubeconfig", s.Kubeconfig}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	cmd.Env = append(os.Environ(), "HOME="+s.Dir) // its cache of what the server offers
	if err := s.NS.Do(cmd.Run); err != nil {
		s.t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String()
}

// Start starts the API server after Stop, and returns when it is ready.
func (s *Server) Start() {
	s.t.Helper()
	s.api = s.run(kubebin.APIServer, s.args)
	s.wait("the API server is ready", s.api, func(ctx context.Context) error {
		c, err := kubernetes.NewForConfig(s.Config())
		if err != nil {
			return err
		}
		return c.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// Stop ends the API server at once, as a crash does. Its clients see closed connections and a refused port until Start.
func (s *Server) Stop() {
	s.t.Helper()
	s.api.kill()
}

// StartEtcd starts etcd after StopEtcd, with what it had.
func (s *Server) StartEtcd() {
	s.t.Helper()
	s.etcd = s.run(kubebin.Etcd, EtcdArgs(filepath.Join(s.Dir, "etcd")))
	client := s.NS.HTTPClient(time.Second)
	s.wait("etcd is ready", s.etcd, func(context.Context) error {
		r, err := client.Get(etcdURL + "/health")
		if err == nil {
			_ = r.Body.Close()
		}
		return err
	})
}

// StopEtcd ends etcd at once.
func (s *Server) StopEtcd() {
	s.t.Helper()
	s.etcd.kill()
}

func (s *Server) wait(what string, p *process, ready func(context.Context) error) {
	s.t.Helper()
	late := time.Now().Add(netlab.Patient(2 * time.Minute))
	for {
		ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
		err := ready(ctx)
		cancel()
		if err == nil {
			return
		}
		if p.exited() || time.Now().After(late) {
			s.t.Fatalf("%s: %v\n%s", what, err, p.log())
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *Server) end() {
	for _, p := range []*process{s.api, s.etcd} {
		if p == nil {
			continue
		}
		if s.t.Failed() {
			s.t.Logf("end of the log of %s:\n%s", p.name, p.log())
		}
		p.kill()
	}
}
