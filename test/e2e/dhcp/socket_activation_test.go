// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
)

// activation is the socket unit's part: a socket that outlives the daemons,
// which get it as descriptor 3 (sd_listen_fds(3)).
type activation struct {
	w    *dhcpWorld
	file *os.File
}

func (w *dhcpWorld) activate() *activation {
	w.T.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: w.socket()})
	if err != nil {
		w.T.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	file, err := l.File()
	if err != nil {
		w.T.Fatal(err)
	}
	_ = l.Close() // the file is the socket still
	w.T.Cleanup(func() { _ = file.Close() })
	return &activation{w, file}
}

// command is a daemon as systemd starts it. The shell is there for the process
// ID, which systemd knows before exec.
func (a *activation) command(fds string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=`+fds+` exec "$0" "$@"`, filepath.Join(e2etest.Programs.Dir, "dhcp"), "daemon",
		"-statedir", filepath.Join(a.w.dir, "state"), "-timeout", "2s", "-resendtimeout", "6s")
	cmd.ExtraFiles = []*os.File{a.file}
	return cmd
}

// With the socket of systemd the first pod waits for the daemon to start, and
// the socket is there for the next daemon.
func TestPrivilegedDHCPSocketActivation(t *testing.T) {
	t.Parallel()
	w := newDHCPWorld(t, "")
	leases := w.dnsmasq()
	unit := w.activate()
	p := w.NewPod(w.rt, "web")
	added := make(chan error, 1)
	go func() { added <- p.TryAdd() }()
	time.Sleep(e2etest.NoAnswerTimeout) // the plugin is at the socket, where no daemon answers yet
	select {
	case err := <-added:
		t.Fatalf("ADD did not wait for the daemon: %v", err)
	default:
	}
	w.daemon = w.Run(unit.command("1"))
	if err := <-added; err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(leases(), p.IP4.String()+" ") {
		t.Errorf("address %v; the server knows:\n%s", p.IP4, leases())
	}
	w.daemon.Signal(unix.SIGTERM)
	if _, err := os.Lstat(w.socket()); err != nil {
		t.Errorf("the daemon took systemd's socket with it: %v", err)
	}
	w.daemon = w.Run(unit.command("1"))
	e2etest.MustCheck(t, p)
	p.MustDel()
	w.eventually("the lease is released", func() bool { return strings.TrimSpace(leases()) == "" })

	out, err := unit.command("2").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "LISTEN_FDS=2") {
		t.Errorf("two sockets: %v: %s", err, out)
	}
}
