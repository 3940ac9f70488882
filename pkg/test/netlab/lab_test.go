// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mustHostState is what must not change on the host, whatever a test does.
func mustHostState(t *testing.T) string {
	t.Helper()
	var parts []string
	for _, cmd := range []string{"ip -o link", "ip -o addr", "ip -o route show table all", "nft list ruleset"} {
		f := strings.Fields(cmd)
		out, err := Run(f[0], f[1:]...)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, out)
	}
	for _, f := range []string{"/proc/self/mountinfo", "/proc/sys/net/ipv4/ip_forward"} {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, string(b))
	}
	for _, d := range append(stateDirs, netnsDir, KeepDir) {
		_, err := os.Stat(d)
		parts = append(parts, fmt.Sprintf("%s exists=%v", d, err == nil))
	}
	return strings.Join(parts, "\n--\n")
}

func TestPrivilegedHostUntouched(t *testing.T) {
	before := mustHostState(t)
	l, err := New(Options{ForwardIPv4: true, ForwardIPv6: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Node.NewPod("a"); err != nil {
		t.Fatal(err)
	}
	err = l.Node.Do(func() error {
		for _, d := range append([]string{"/run", "/sys/fs/bpf"}, stateDirs...) {
			if err := os.Mkdir(filepath.Join(d, "probe"), 0o755); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := mustHostState(t); got != before {
		t.Errorf("host changed while the lab is open:\n%s", got)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if got := mustHostState(t); got != before {
		t.Errorf("host changed after the lab:\n%s", got)
	}
}

func TestPrivilegedNodeMounts(t *testing.T) {
	l := NewT(t)
	tests := []struct {
		dir   string
		magic int64
	}{
		{"/run", unix.TMPFS_MAGIC},
		{"/var/lib/cni", unix.TMPFS_MAGIC},
		{"/etc/sluice", unix.TMPFS_MAGIC},
		{"/etc/cni", unix.TMPFS_MAGIC},
		{"/sys", unix.SYSFS_MAGIC},
		{"/sys/fs/bpf", unix.BPF_FS_MAGIC},
		{"/proc/sys", unix.PROC_SUPER_MAGIC},
	}
	for _, tt := range tests {
		t.Run(tt.dir, func(t *testing.T) {
			err := l.Node.Do(func() error {
				var st unix.Statfs_t
				if err := unix.Statfs(tt.dir, &st); err != nil {
					return err
				}
				if st.Type != tt.magic {
					return fmt.Errorf("file system type %#x, want %#x", st.Type, tt.magic)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	err := l.Node.Do(func() error {
		// sysfs shows this namespace's devices, and what was in /etc is still there.
		for _, f := range []string{"/sys/class/net/eth0", "/sys/fs/cgroup", "/etc/passwd"} {
			if _, err := os.ReadFile(f); errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return os.WriteFile("/etc/sluice/config.json", []byte("{}"), 0o644)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestPrivilegedClientReachesNode(t *testing.T) {
	l := NewT(t, Options{Uplinks: []Uplink{DefaultUplink(0), DefaultUplink(1)}})
	for i, c := range l.Clients {
		for _, to := range []netip.Addr{IP4(c.Uplink.Node), IP6(c.Uplink.Node)} {
			addr := netip.AddrPortFrom(to, uint16(8000+i)).String()
			stop, err := l.Node.ServeTCP(addr)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := c.DialContext(t.Context(), "tcp", addr)
			if err != nil {
				t.Fatalf("client %d: %v", i, err)
			}
			line, err := bufio.NewReader(conn).ReadString('\n')
			if got := strings.TrimSpace(line); err != nil || got != conn.LocalAddr().String() {
				t.Errorf("client %d: node saw %q (%v), want %s", i, got, err, conn.LocalAddr())
			}
			_ = conn.Close()
			if err := stop(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestPrivilegedNodeReachesClientHTTP(t *testing.T) {
	l := NewT(t)
	c := l.Client()
	stop, err := c.ServeHTTP("[::]:80", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		_, _ = fmt.Fprint(w, host)
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stop() }()
	for _, to := range c.Uplink.Client {
		res, err := l.Node.HTTPClient(5 * time.Second).Get("http://" + net.JoinHostPort(to.Addr().String(), "80"))
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 64)
		k, _ := res.Body.Read(buf)
		_ = res.Body.Close()
		want := IP4(c.Uplink.Node)
		if to.Addr().Is6() {
			want = IP6(c.Uplink.Node)
		}
		if got := string(buf[:k]); got != want.String() {
			t.Errorf("client saw %s, want %s", got, want)
		}
	}
}

func TestPrivilegedServeUDP(t *testing.T) {
	l := NewT(t)
	addr := netip.AddrPortFrom(IP6(l.Client().Uplink.Node), 53).String()
	stop, err := l.Node.ServeUDP(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stop() }()
	local := netip.AddrPortFrom(IP6(l.Client().Uplink.Client), 5353).String()
	conn, err := l.Client().DialFrom(t.Context(), "udp", local, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	k, err := conn.Read(buf)
	if got, want := string(buf[:k]), local+" hello"; err != nil || got != want {
		t.Errorf("got %q (%v), want %q", got, err, want)
	}
}

func TestPrivilegedPod(t *testing.T) {
	l := NewT(t)
	p := l.Node.PodT(t, "web")
	if p.Path != "/run/netns/web" {
		t.Errorf("path %s", p.Path)
	}
	want, err := p.Inode()
	if err != nil {
		t.Fatal(err)
	}
	// The path in the node is the pod's namespace, and only there.
	err = l.Node.Do(func() error {
		var st unix.Stat_t
		if err := unix.Stat(p.Path, &st); err != nil {
			return err
		}
		if st.Ino != want {
			return fmt.Errorf("inode %d, want %d", st.Ino, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := l.Node.NewPod("web"); err == nil {
		t.Error("a second pod of the same name was made")
	}
	for _, name := range []string{"", "a/b", "../x"} {
		if _, err := l.Node.NewPod(name); err == nil {
			t.Errorf("pod name %q accepted", name)
		}
	}
	if err := p.Delete(); err != nil {
		t.Error(err)
	}
	if err := p.Do(func() error { return nil }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Do after Delete: %v", err)
	}
}

func TestPrivilegedForwarding(t *testing.T) {
	tests := []struct{ v4, v6 bool }{{false, false}, {true, false}, {false, true}, {true, true}}
	for _, tt := range tests {
		t.Run(fmt.Sprintf("%+v", tt), func(t *testing.T) {
			l := NewT(t, Options{ForwardIPv4: tt.v4, ForwardIPv6: tt.v6})
			for key, want := range map[string]bool{"net/ipv4/ip_forward": tt.v4, "net/ipv6/conf/all/forwarding": tt.v6} {
				if got, err := l.Node.ReadSysctl(key); err != nil || got != flag(want) {
					t.Errorf("%s = %q (%v), want %s", key, got, err, flag(want))
				}
			}
		})
	}
}

func TestPrivilegedDoIsParallel(t *testing.T) {
	l := NewT(t)
	inside := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- l.Node.Do(func() error {
			select {
			case inside <- struct{}{}:
				return nil
			case <-time.After(5 * time.Second):
				return errors.New("nobody came")
			}
		})
	}()
	if err := l.Node.Do(func() error { <-inside; return nil }); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestPrivilegedCNIRuntime(t *testing.T) {
	l := NewT(t)
	bin := t.TempDir()
	// A stand-in plugin: a shell script that says where it ran and what it got.
	script := "#!/bin/sh\nenv | grep ^CNI_ > /run/env.$CNI_COMMAND\ncat > /run/conf.$CNI_COMMAND\nip -o link show > /run/links\n" +
		`[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"'$CNI_NETNS'"}]}'` + "\nexit 0\n"
	if err := os.WriteFile(filepath.Join(bin, "stub"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	rt, err := l.Node.CNI(CNIOptions{
		Path:     []string{bin},
		Conflist: []byte(`{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"stub","capabilities":{"portMappings":true}}]}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	p := l.Node.PodT(t, "a")
	a := Attachment{ContainerID: "c1", NetNS: p.Path, Capabilities: map[string]any{
		"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}},
	}}
	ctx := context.Background()
	res, err := rt.Add(ctx, a)
	if err != nil {
		t.Fatal(err)
	}
	if res.Version() != "1.1.0" {
		t.Errorf("result version %s", res.Version())
	}
	for _, op := range []func() error{
		func() error { return rt.Check(ctx, a) },
		func() error { return rt.Status(ctx) },
		func() error { return rt.Del(ctx, a) },
		func() error { return rt.GC(ctx, nil) },
	} {
		if err := op(); err != nil {
			t.Error(err)
		}
	}
	_ = l.Node.Do(func() error {
		for file, want := range map[string]string{
			"/run/env.ADD":    "CNI_NETNS=/run/netns/a",
			"/run/conf.ADD":   `"hostPort":8080`,
			"/run/conf.CHECK": `"prevResult"`,
			"/run/conf.GC":    `"cni.dev/valid-attachments"`,
			"/run/env.STATUS": "CNI_COMMAND=STATUS",
			"/run/links":      "eth0@",
		} {
			b, err := os.ReadFile(file)
			if err != nil || !strings.Contains(string(b), want) {
				t.Errorf("%s lacks %q (%v):\n%s", file, want, err, b)
			}
		}
		return nil
	})
}
