// SPDX-License-Identifier: Apache-2.0

// Package log is the only place that builds a zap core. Plugins log to stderr
// (stdout belongs to the CNI answer) and, if asked, to a file that many plugin
// processes append to at once; rotation is left to logrotate for that reason.
// It imports none of our packages.
package log

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
)

// Keys of log fields. Every line of a verb carries the first five.
const (
	KeyPlugin      = "plugin"
	KeyCommand     = "cmd"
	KeyContainerID = "containerID"
	KeyIfName      = "ifname"
	KeyNetNS       = "netns"
	KeyNetwork     = "network"
	KeyDevice      = "device"
	KeyIfIndex     = "ifindex"
	KeyAddress     = "address"
	KeyMAC         = "mac"
	KeyPath        = "path"
	KeyKey         = "key"
	KeyValue       = "value"
	KeyBackend     = "backend"
	KeyReason      = "reason"
	KeyOwner       = "owner"
	KeyError       = "error"
)

// Options says where to log. The zero value logs warnings and errors to stderr.
type Options struct {
	// Level of stderr and file: "debug", "info", "warn" (also when empty) or "error".
	Level string
	// File is appended to when not empty, one write per line.
	File string
	// Name is the plugin, put on every line.
	Name string
}

// New returns a logger. It always returns one: what is wrong with the options
// (an unknown level, a file that cannot be opened) becomes its first line, since
// a broken log must not keep a pod from starting.
func New(o Options) *Logger {
	level, warning := parseLevel(o.Level)
	stderr := zapcore.NewCore(zapcore.NewConsoleEncoder(encoding()), zapcore.Lock(os.Stderr), level)
	core := stderr
	if o.File != "" {
		f, err := open(o.File)
		if err != nil {
			warning = fmt.Sprintf("log file %q is not used: %v", o.File, err)
		} else {
			core = zapcore.NewTee(stderr, zapcore.NewCore(zapcore.NewJSONEncoder(encoding()), zapcore.Lock(f), level))
		}
	}
	l := NewCore(core)
	if o.Name != "" {
		l = l.With(String(KeyPlugin, o.Name))
	}
	if warning != "" {
		l.Warn(warning)
	}
	return l
}

// Beside returns a logger that writes to l, and by o to a second place: to a file, or without one to stderr what l does not
// write there. fields are put on the lines of the second place.
func (l *Logger) Beside(o Options, fields ...Field) *Logger {
	level, warning := parseLevel(o.Level)
	more := zapcore.NewCore(zapcore.NewConsoleEncoder(encoding()), zapcore.Lock(os.Stderr), besides{level, l.core})
	if o.File != "" {
		f, err := open(o.File)
		if err != nil {
			l.Warn(fmt.Sprintf("log file %q is not used: %v", o.File, err))
			return l
		}
		more = zapcore.NewCore(zapcore.NewJSONEncoder(encoding()), zapcore.Lock(f), level)
	}
	if warning != "" {
		l.Warn(warning)
	}
	return NewCore(zapcore.NewTee(l.core, more.With(fields)))
}

// besides enables what one enables and the other does not.
type besides struct{ one, other zapcore.LevelEnabler }

// Enabled implements zapcore.LevelEnabler.
func (b besides) Enabled(l zapcore.Level) bool { return b.one.Enabled(l) && !b.other.Enabled(l) }

func parseLevel(s string) (zapcore.Level, string) {
	switch s {
	case "debug":
		return zapcore.DebugLevel, ""
	case "info":
		return zapcore.InfoLevel, ""
	case "", "warn":
		return zapcore.WarnLevel, ""
	case "error":
		return zapcore.ErrorLevel, ""
	}
	return zapcore.WarnLevel, fmt.Sprintf("unknown log level %q: warn is used", s)
}

// open refuses whatever file is our stdout under another name (/dev/stdout): a log line there would destroy the CNI
// answer. It refuses what a user of the node has laid at the path too.
func open(path string) (*os.File, error) {
	const flags = os.O_APPEND | os.O_CREATE | os.O_WRONLY | unix.O_NONBLOCK
	f, err := os.OpenFile(path, flags|unix.O_NOFOLLOW, 0o640)
	if errors.Is(err, unix.ELOOP) {
		if err := trusted(path); err != nil {
			return nil, err
		}
		f, err = os.OpenFile(path, flags, 0o640)
	}
	if err != nil {
		return nil, err
	}
	mine, err1 := f.Stat()
	if err1 == nil {
		if err := private(mine); err != nil {
			f.Close()
			return nil, err
		}
	}
	if err1 == nil && mine.Mode()&os.ModeNamedPipe != 0 {
		f.Close()
		return nil, fmt.Errorf("it is a pipe, which would hold up every pod while nobody reads it")
	}
	out, err2 := os.Stdout.Stat()
	if err1 == nil && err2 == nil && os.SameFile(mine, out) && !isNull(path) {
		f.Close()
		return nil, fmt.Errorf("it is the standard output, which carries the CNI result")
	}
	return f, nil
}

// trusted refuses a symbolic link of a user: a log below /tmp would be written into any file that the link names.
func trusted(path string) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 && st.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("it is a symbolic link of user %d", st.Uid)
	}
	return nil
}

// private refuses a file that a user has laid there: its own, or a second name of another file.
func private(info os.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || !info.Mode().IsRegular():
		return nil
	case st.Uid != 0 && st.Uid != uint32(os.Geteuid()):
		return fmt.Errorf("it belongs to user %d", st.Uid)
	case st.Nlink > 1:
		return fmt.Errorf("it has %d names (hard links)", st.Nlink)
	}
	return nil
}

func isNull(path string) bool { return path == os.DevNull }

func encoding() zapcore.EncoderConfig {
	return zapcore.EncoderConfig{
		TimeKey: "ts", LevelKey: "level", NameKey: "logger", MessageKey: "msg", StacktraceKey: "stack",
		EncodeTime: zapcore.RFC3339NanoTimeEncoder, EncodeLevel: zapcore.LowercaseLevelEncoder,
		EncodeDuration: zapcore.StringDurationEncoder,
	}
}
