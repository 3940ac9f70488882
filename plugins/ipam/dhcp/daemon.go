// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
)

// Options of the daemon. ParseOptions fills in the defaults.
type Options struct {
	// PIDFile, an absolute path, gets the daemon's process ID; empty: none.
	PIDFile string
	// HostPrefix goes before namespace paths and SocketPath: where the node's
	// file system is mounted when the daemon runs in a container.
	HostPrefix string
	SocketPath string
	// Broadcast asks the servers to broadcast their answers.
	Broadcast bool
	// Timeout bounds one exchange with a server.
	Timeout time.Duration
	// ResendMax is the longest wait between two tries for a first address,
	// ResendTimeout the time after which none is made any more.
	ResendMax, ResendTimeout time.Duration
	// StateDir is where leases survive the daemon.
	StateDir string
}

// ParseOptions reads the daemon's command line. Usage goes to w.
func ParseOptions(args []string, w io.Writer) (*Options, error) {
	o := &Options{}
	f := flag.NewFlagSet("dhcp daemon", flag.ContinueOnError)
	f.SetOutput(w)
	f.StringVar(&o.PIDFile, "pidfile", "", "absolute path of a file for the process ID")
	f.StringVar(&o.HostPrefix, "hostprefix", "", "goes before network namespace paths and the socket's path")
	f.StringVar(&o.SocketPath, "socketpath", DefaultSocketPath, "Unix socket to listen on")
	f.BoolVar(&o.Broadcast, "broadcast", false, "ask servers to broadcast their answers")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Second, "bounds one exchange with a server")
	f.DurationVar(&o.ResendMax, "resendmax", 62*time.Second, "longest wait between two tries for an address")
	f.DurationVar(&o.ResendTimeout, "resendtimeout", 208*time.Second, "give up on an address after this time")
	f.StringVar(&o.StateDir, "statedir", DefaultStateDir, "where leases survive a restart of the daemon")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	switch {
	case f.NArg() > 0:
		return nil, fmt.Errorf("unknown argument %q", f.Arg(0))
	case o.PIDFile != "" && !filepath.IsAbs(o.PIDFile):
		return nil, fmt.Errorf("-pidfile %q: not an absolute path", o.PIDFile)
	case o.Timeout <= 0 || o.ResendMax <= 0 || o.ResendTimeout <= 0:
		return nil, errors.New("-timeout, -resendmax and -resendtimeout must be more than 0")
	}
	if o.SocketPath == "" { // as with upstream
		o.SocketPath = DefaultSocketPath
	}
	return o, nil
}

// Serve is the daemon: it goes on with the leases of the one before it and
// answers on the socket until ctx ends. Leases are not released then.
func Serve(ctx context.Context, o Options, logger *log.Logger) (err error) {
	l, err := listen(filepath.Join(o.HostPrefix, o.SocketPath))
	if err != nil {
		return err
	}
	// Not before the socket is ours: until then the file may be that of a daemon that runs.
	if o.PIDFile != "" {
		if err := os.WriteFile(o.PIDFile, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644); err != nil { //nolint:gosec // a PID is for everybody to read
			return errors.Join(fmt.Errorf("write the PID file: %w", err), l.Close())
		}
		defer func() { err = errors.Join(err, file.Remove(o.PIDFile)) }()
	}
	s := newService(o, logger)
	s.resume()
	defer s.stop()
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	logger.Info("serving", log.String("socket", l.Addr().String()))
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case isShortage(err):
			logger.Warn("accept", log.Error(err))
			_ = sleep(ctx, acceptPause)
			continue
		case err != nil:
			return errors.Join(fmt.Errorf("accept: %w", err), l.Close())
		}
		go func() {
			if err := serve(conn, s.methods()); err != nil {
				logger.Warn("connection", log.Error(err))
			}
		}()
	}
}

// acceptPause is the wait after a connection that could not be taken.
const acceptPause = 100 * time.Millisecond

// isShortage tells errors of accept(2) that pass when other calls have ended.
func isShortage(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.ENOMEM)
}

// listen uses the socket that systemd passes (sd_listen_fds(3)), or makes one.
// The one it makes goes with the daemon.
func listen(path string) (net.Listener, error) {
	if os.Getenv("LISTEN_PID") == strconv.Itoa(os.Getpid()) {
		if n := os.Getenv("LISTEN_FDS"); n != "1" {
			return nil, fmt.Errorf("LISTEN_FDS=%s: systemd must pass one socket", n)
		}
		const firstFD = 3
		f := os.NewFile(firstFD, "systemd socket")
		l, err := net.FileListener(f)
		return l, errors.Join(err, f.Close())
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make the socket's directory: %w", err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	// As the systemd unit has it: who may connect may have any pod's lease released.
	if err := os.Chmod(path, 0o660); err != nil { // group access is meant
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// removeStale removes the socket of a daemon that was killed. One that a process
// listens on is left alone, even if its queue of waiting connections is full.
func removeStale(path string) error {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
	}
	if err == nil || errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("a DHCP daemon is running already on %s", path)
	}
	if fi, err := os.Lstat(path); err == nil && fi.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is no socket", path)
	}
	return file.Remove(path)
}
