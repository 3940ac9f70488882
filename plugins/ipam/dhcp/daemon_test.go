// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
)

// serving runs a daemon in a directory of its own until the test ends; the
// channel has what it returns.
func serving(t *testing.T) (o Options, ended chan error) {
	t.Helper()
	dir := t.TempDir()
	o = Options{
		SocketPath: filepath.Join(dir, "s"), PIDFile: filepath.Join(dir, "pid"), StateDir: filepath.Join(dir, "state"),
		Timeout: time.Second, ResendMax: time.Second, ResendTimeout: time.Second,
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended = make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- Serve(ctx, o, log.NewNop())
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(o.PIDFile); err == nil && call(ctx, o.SocketPath, "DHCP.Nothing", callArgs(), &struct{}{}) != nil {
			return o, ended
		}
		if time.Now().After(end) {
			t.Fatal("the daemon does not start")
		}
	}
}

// A second daemon on the socket is refused, and takes nothing of the first with it.
func TestSecondDaemon(t *testing.T) {
	t.Parallel()
	o, _ := serving(t)
	want, err := os.ReadFile(o.PIDFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), o, log.NewNop()); err == nil || !strings.Contains(err.Error(), "running already") {
		t.Errorf("a second daemon: %v", err)
	}
	if got, err := os.ReadFile(o.PIDFile); err != nil || string(got) != string(want) {
		t.Errorf("the PID file of the daemon that runs: %q, %v", got, err)
	}
}

// A daemon that does not get on with those who call it runs still.
func TestBusyDaemonIsNotStale(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for {
		conn, err := net.Dial("unix", path)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if err := removeStale(path); err == nil || !strings.Contains(err.Error(), "running already") {
		t.Errorf("its socket is taken for a dead one's: %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

// A lease whose file cannot be read for the moment is not lost for good; one that says nothing of use goes.
func TestUnreadableState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unreadable, useless := filepath.Join(dir, "a.json"), filepath.Join(dir, "b.json")
	if err := errors.Join(os.Symlink("/proc/self/mem", unreadable), os.WriteFile(useless, []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	states, err := readStates(dir)
	if len(states) != 0 || !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "b.json") {
		t.Errorf("%v, %v", states, err)
	}
	if _, err := os.Lstat(unreadable); err != nil {
		t.Error("the file that could not be read is gone")
	}
	if _, err := os.Lstat(useless); err == nil {
		t.Error("the useless file is there still")
	}
}

// fewFiles leaves the process that many file descriptors until the test ends or free is called.
func fewFiles(t *testing.T, spare int) (free func()) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	var fds []int
	free = func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		fds = nil
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(free)
	for {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EMFILE) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	for range spare {
		_ = unix.Close(fds[len(fds)-1])
		fds = fds[:len(fds)-1]
	}
	return free
}

// Many pods at once: a daemon that may open no more files goes on when it may again.
func TestNoFilesLeft(t *testing.T) { // not parallel: changes a limit of the process
	o, ended := serving(t)
	free := fewFiles(t, 1) // for the client's side
	conn, err := net.Dial("unix", o.SocketPath)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	select {
	case err := <-ended:
		t.Fatalf("the daemon has ended: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	free()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	var said serverError
	if err := exchangeCall(conn, "DHCP.Nothing", callArgs(), &struct{}{}); !errors.As(err, &said) {
		t.Errorf("the call that had to wait: %v", err)
	}
}

// STATUS says that an ADD would find no daemon, as ADD itself does.
func TestStatusAsksTheDaemon(t *testing.T) {
	t.Parallel()
	stranger, silent := listenTemp(t), listenTemp(t)
	go func() {
		for {
			conn, err := stranger.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "SSH-2.0-x\n\n")
		}
	}()
	o, _ := serving(t)
	for name, c := range map[string]struct {
		socket string
		ok     bool
	}{
		"a daemon":          {o.SocketPath, true},
		"a stranger":        {stranger.Addr().String(), false},
		"nobody behind it":  {silent.Addr().String(), false},
		"no socket at all ": {filepath.Join(t.TempDir(), "none"), false},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		a := &cniskel.Args{}
		a.StdinData = ipamConf(`{"type":"dhcp","daemonSocketPath":"` + c.socket + `"}`)
		err := status(ctx, a)
		cancel()
		if e := cnierr.From(err); (err == nil) != c.ok || err != nil && e.Code != cnierr.CodeUnavailable {
			t.Errorf("%s: STATUS says %v", name, err)
		}
	}
}

// stubborn is a server that never acknowledges the request that is sent just before the end, and that is not given up.
type stubborn struct{ script }

func (s *stubborn) acquire(ctx context.Context, _ net.IP) (*dhcpv4.DHCPv4, error) {
	<-ctx.Done()
	time.Sleep(10 * time.Second)
	return nil, errSilent
}

// The daemon's end takes as long as one exchange, however many pods wait for an address.
func TestStopOfMany(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(Options{StateDir: t.TempDir()}, log.NewNop())
		for _, id := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			ex := &stubborn{script{t: t, begin: time.Now()}}
			e := &entry{lease: ex.lease()}
			e.lease.id, e.lease.ex = id, ex
			s.leases[id] = e
			e.start(nil, time.Time{})
		}
		synctest.Wait()
		begin := time.Now()
		s.stop()
		if took := time.Since(begin); took > 11*time.Second {
			t.Errorf("ended after %v", took)
		}
	})
}
