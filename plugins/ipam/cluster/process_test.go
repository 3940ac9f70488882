// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

const source = "../../.."

// programs builds the plugin and its store program.
func programs(t testing.TB) string {
	t.Helper()
	return programsOf(t, source)
}

// formerCommit is an older build with the same format of the node's file.
const formerCommit = "8638e593c8292c6fa284c50a84deb70224d1b576" // bpf: keep pods from the ports of VXLAN devices

// formerPrograms builds the programs of formerCommit. A clone without history cannot: it has "make test-ipam" fail, and gives the
// short test those of this build.
func formerPrograms(t testing.TB, now string) string {
	t.Helper()
	has := exec.Command("git", "cat-file", "-e", formerCommit+"^{commit}")
	if has.Dir = source; has.Run() != nil && *volume < 1000 {
		t.Logf("this clone has no history: %s does not run beside this build", formerCommit)
		return now
	}
	dir := t.TempDir()
	archive := filepath.Join(dir, "former.tar")
	for _, args := range [][]string{{"git", "archive", "-o", archive, formerCommit}, {"tar", "-xf", archive, "-C", dir}} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = source
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	return programsOf(t, dir)
}

func programsOf(t testing.TB, source string) string {
	t.Helper()
	dir := buildPrograms(t, source, "./cmd/sluice-ipam", "./cmd/sluice-ipam-store")
	t.Cleanup(func() { endPrograms(t, dir) })
	return dir
}

func buildPrograms(t testing.TB, source string, packages ...string) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", slices.Concat([]string{"build", "-o", dir + "/"}, testbin.BuildFlags(), packages)...)
	cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// endPrograms ends what runs from dir: a store program stays in the background while its node has unused addresses, and would write
// into a directory of the test that is being removed.
func endPrograms(t testing.TB, dir string) {
	t.Helper()
	for range 100 {
		exes, err := filepath.Glob("/proc/[0-9]*/exe")
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, exe := range exes {
			target, err := os.Readlink(exe)
			if err != nil || !strings.HasPrefix(target, dir+"/") {
				continue
			}
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(exe)))
			if err != nil {
				t.Fatal(err)
			}
			found = true
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if !found {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Errorf("programs of %s still run", dir)
}

// caller runs the plugin as a process in a network namespace. Each data_dir is a node that knows nothing of the others.
type caller struct {
	ns   *netlab.NS
	bin  string
	ipam string // the section, without data_dir
	node string // name of the node; empty: that of the machine
}

func (c *caller) run(verb, dataDir, id string, more ...string) (string, error) {
	text := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","type":"macvlan","ipam":{"type":"sluice-ipam","data_dir":%q,%s}%s}`, dataDir, c.ipam, strings.Join(more, ""))
	return c.exec(exec.Command(filepath.Join(c.bin, "sluice-ipam")), verb, id, text)
}

// exec calls a plugin.
func (c *caller) exec(cmd *exec.Cmd, verb, id, text string) (string, error) {
	cmd.Env = append(os.Environ(), "NODENAME="+c.node, "CNI_COMMAND="+verb, "CNI_CONTAINERID="+id, "CNI_NETNS=/run/netns/none", "CNI_IFNAME=net1", "CNI_PATH="+c.bin,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME="+id)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(text), &out, &errs
	err := c.ns.Do(cmd.Run)
	if err == nil {
		return out.String(), nil
	}
	var told types.Error
	if jerr := json.Unmarshal(out.Bytes(), &told); jerr != nil {
		return "", errors.Join(err, errors.New(errs.String()))
	}
	return "", cnierr.New(told.Code, told.Msg, told.Details)
}

func (c *caller) add(dataDir, id string, more ...string) (netip.Addr, error) {
	out, err := c.run("ADD", dataDir, id, more...)
	if err != nil {
		return netip.Addr{}, err
	}
	var res struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal([]byte(out), &res); err != nil || len(res.IPs) == 0 {
		return netip.Addr{}, fmt.Errorf("result %s: %w", out, err)
	}
	return res.IPs[0].Address.Addr(), nil
}

// etcdServer runs an etcd that wants certificates and passwords.
type etcdServer struct {
	t    *testing.T
	ns   *netlab.NS
	dir  string
	pki  *kubetest.PKI
	proc *exec.Cmd
}

func newEtcd(t *testing.T) *etcdServer {
	t.Helper()
	ns, err := netlab.NewNetns("etcd")
	if err != nil {
		t.Fatal(err)
	}
	e := &etcdServer{t: t, ns: ns, dir: t.TempDir()}
	t.Cleanup(func() { _ = ns.Close() })
	if e.pki, err = kubetest.NewPKI(e.dir+"/pki", []string{"localhost"}, []netip.Addr{netip.MustParseAddr("127.0.0.1")}); err != nil {
		t.Fatal(err)
	}
	e.start()
	t.Cleanup(e.stop)
	return e
}

func (e *etcdServer) start() {
	e.t.Helper()
	bin, err := kubebin.Build(e.t.Context(), kubebin.Etcd)
	if err != nil {
		e.t.Fatal(err)
	}
	const url = "https://127.0.0.1:2379"
	e.proc = exec.Command(filepath.Join(bin, kubebin.Etcd), "--data-dir", e.dir+"/data", "--unsafe-no-fsync", "--log-level", "error",
		"--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", "http://127.0.0.1:2380",
		"--cert-file", e.pki.File("server.crt"), "--key-file", e.pki.File("server.key"), "--trusted-ca-file", e.pki.File("ca.crt"), "--client-cert-auth")
	if err := e.ns.Start(e.proc); err != nil {
		e.t.Fatal(err)
	}
}

func (e *etcdServer) stop() {
	_ = e.proc.Process.Kill()
	_ = e.proc.Wait()
}

// client is the administrator's.
func (e *etcdServer) client(user, password string) *clientv3.Client {
	e.t.Helper()
	c := clientv3.Config{
		Endpoints: []string{"https://127.0.0.1:2379"}, Username: user, Password: password, DialTimeout: 20 * time.Second, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(dialIn(e.ns)), grpc.WithBlock()}, //nolint:staticcheck // until it is up
		TLS:         clientTLS(e.t, e.pki),
	}
	client, err := clientv3.New(c)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = client.Close() })
	return client
}

// users makes a user that may do all below /sluice/ipam/, and one that may do nothing.
func (e *etcdServer) users() {
	e.t.Helper()
	ctx := e.t.Context()
	c := e.client("", "")
	steps := []func() error{
		func() error { _, err := c.UserAdd(ctx, "root", "r"); return err },
		func() error { _, err := c.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := c.UserAdd(ctx, "ipam", "secret"); return err },
		func() error { _, err := c.UserAdd(ctx, "other", "secret"); return err },
		func() error { _, err := c.RoleAdd(ctx, "ipam"); return err },
		func() error {
			_, err := c.RoleGrantPermission(ctx, "ipam", "/sluice/ipam/", "/sluice/ipam0", clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := c.UserGrantRole(ctx, "ipam", "ipam"); return err },
		func() error { _, err := c.AuthEnable(ctx); return err },
	}
	for _, step := range steps {
		if err := step(); err != nil {
			e.t.Fatal(err)
		}
	}
}

// Nodes without Kubernetes share a pool in etcd: no address twice, all of a pool that is exactly large enough, ADD and DEL
// while etcd is away, and an error that names the key for a user without rights.
func TestPrivilegedEtcd(t *testing.T) {
	e := newEtcd(t)
	e.users()
	bin := programs(t)
	section := func(user string, extra string) string {
		return fmt.Sprintf(`"datastore":"etcd","etcd_host":"127.0.0.1:2379","etcd_username":%q,"etcd_password":"secret","etcd_ca_cert_file":%q,"etcd_cert_file":%q,"etcd_key_file":%q,%s`,
			user, e.pki.File("ca.crt"), e.pki.File("kubelet-client.crt"), e.pki.File("kubelet-client.key"), extra)
	}
	c := &caller{e.ns, bin, section("ipam", `"range":"10.50.0.0/26"`), ""} // 62 addresses
	var dirs []string
	for range 3 {
		dirs = append(dirs, t.TempDir())
	}
	var mu sync.Mutex
	seen := map[netip.Addr]string{}
	var wg sync.WaitGroup
	for i, n := range []int{2, 20, 40} {
		wg.Go(func() {
			for k := range n {
				id := fmt.Sprintf("c%d-%d", i, k)
				a, err := c.add(dirs[i], id)
				for try := 0; err != nil && try < 4 && cnierr.From(err).Code == cnierr.CodeExhausted; try++ {
					a, err = c.add(dirs[i], id)
				}
				if err != nil {
					t.Errorf("%s: %v", id, err)
					return
				}
				mu.Lock()
				if by, ok := seen[a]; ok {
					t.Errorf("%s has %s and %s", a, by, id)
				}
				seen[a] = id
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != 62 {
		t.Errorf("%d addresses of 62", len(seen))
	}
	_, err := c.add(t.TempDir(), "one-too-many")
	wantCode(t, err, cnierr.CodeExhausted, "10.50.0.0-26", "62 of 62")
	if _, err := c.run("CHECK", dirs[2], "c2-7"); err != nil {
		t.Errorf("CHECK: %v", err)
	}

	big := &caller{e.ns, bin, section("ipam", `"range":"10.51.0.0/16","ipRanges":[{"range":"fd51::/64"}]`), ""}
	if _, err := big.add(dirs[0], "d0"); err != nil {
		t.Fatal(err)
	}
	e.stop()
	for k := range 8 {
		if _, err := big.add(dirs[0], fmt.Sprintf("e%d", k)); err != nil {
			t.Errorf("without etcd: %v", err)
		}
	}
	if _, err := big.run("DEL", dirs[0], "d0"); err != nil {
		t.Errorf("DEL without etcd: %v", err)
	}
	_, err = big.add(t.TempDir(), "f")
	wantCode(t, err, cnierr.CodeTryAgain, "10.51.0.0-16")
	e.start()
	other := &caller{e.ns, bin, section("other", `"range":"10.52.0.0/16"`), ""}
	_, err = other.add(t.TempDir(), "g")
	wantCode(t, err, cnierr.CodeConfig, "ipam.etcd_host", "permission denied")
	wrong := &caller{e.ns, bin, strings.Replace(section("ipam", `"range":"10.52.0.0/16"`), `"secret"`, `"guess"`, 1), ""}
	_, err = wrong.add(t.TempDir(), "h")
	wantCode(t, err, cnierr.CodeConfig, "ipam.etcd_host")
	if strings.Contains(err.Error(), "guess") {
		t.Errorf("the error tells the password: %v", err)
	}
}

// A node without ADDs gives back what it does not use, once another one needs it: its store program is there still.
func TestPrivilegedIdleNode(t *testing.T) {
	e := newEtcd(t)
	c := &caller{e.ns, programs(t), fmt.Sprintf(`"range":"10.53.0.0/26","block_size":8,"etcd_host":"127.0.0.1:2379","etcd_ca_cert_file":%q,"etcd_cert_file":%q,"etcd_key_file":%q`,
		e.pki.File("ca.crt"), e.pki.File("kubelet-client.crt"), e.pki.File("kubelet-client.key")), ""}
	idle, busy := t.TempDir(), t.TempDir()
	if _, err := c.add(idle, "only"); err != nil { // it claims 7 addresses of 62, and they are not scarce
		t.Fatal(err)
	}
	until := time.Now().Add(netlab.Patient(90 * time.Second))
	for n := 0; n < 61; {
		_, err := c.add(busy, fmt.Sprintf("b%d", n))
		if err == nil {
			n++
			continue
		}
		if code := cnierr.From(err).Code; code != cnierr.CodeExhausted || time.Now().After(until) {
			t.Fatalf("after %d addresses: %v", n, err)
		}
	}
}

// running is how many programs of a directory run.
func running(t *testing.T, dir string) (n int) {
	t.Helper()
	exes, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, exe := range exes {
		if target, err := os.Readlink(exe); err == nil && strings.HasPrefix(target, dir+"/") {
			n++
		}
	}
	return n
}

// One process of a node stays in the background, however many pools the node has unused addresses of.
func TestPrivilegedOneKeeper(t *testing.T) {
	e := newEtcd(t)
	bin, dir := programs(t), t.TempDir()
	var ranges []string
	for i := range 6 {
		ranges = append(ranges, fmt.Sprintf(`{"range":"10.54.%d.0/24"},{"range":"fd54:0:0:%d::/64"}`, i, i))
	}
	c := &caller{e.ns, bin, fmt.Sprintf(`"ipRanges":[%s],"etcd_host":"127.0.0.1:2379","etcd_ca_cert_file":%q,"etcd_cert_file":%q,"etcd_key_file":%q`,
		strings.Join(ranges, ","), e.pki.File("ca.crt"), e.pki.File("kubelet-client.crt"), e.pki.File("kubelet-client.key")), ""}
	if _, err := c.add(dir, "first"); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(netlab.Patient(time.Minute)); running(t, bin) != 1; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d processes for 12 pools", running(t, bin))
		}
	}
	time.Sleep(5 * time.Second) // it looks at the pools, and stays
	if n := running(t, bin); n != 1 {
		t.Errorf("%d processes stay", n)
	}
}
