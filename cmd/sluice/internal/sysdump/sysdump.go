// SPDX-License-Identifier: Apache-2.0

// Package sysdump writes what a reader who was not there needs to understand a
// node into one archive.
//
// Each part is a file. A part that cannot be had, because a command is missing
// or a file cannot be read, is noted in it and never stops the rest. The
// package reads and writes nothing else; what must not leave a node is not
// asked for in the first place (see Omitted).
package sysdump

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"
	"time"
)

// Omitted says what is not in a bundle.
const Omitted = `Not in this bundle: environment variables, command lines and files of
processes, packet contents, the CNI configurations in /etc/cni (they may hold
credentials of IPAM plugins), what runtimes keep of containers except the names
of their cache files, IPsec and WireGuard keys. It does hold host names,
addresses, container ids, firewall rules, log lines and the kernel's messages:
look through it before you hand it on.
`

// Limits of what is taken.
const (
	maxCommand = 16 << 20 // bytes of a command's output
	maxLog     = 1 << 20  // bytes from the end of a log
	patience   = 20 * time.Second
)

// Part is one file of a bundle.
type Part struct {
	Name string // path in the archive
	// Make returns the contents. Both may be set: what there was until the error.
	Make func(ctx context.Context) ([]byte, error)
}

// Write writes the parts as a compressed archive, all below a directory of that
// name, and returns a line for each that could not be had in full.
func Write(ctx context.Context, w io.Writer, dir string, at time.Time, parts []Part) (missing []string, err error) {
	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	put := func(name string, content []byte) error {
		err := archive.WriteHeader(&tar.Header{Name: path.Join(dir, name), Mode: 0o600, Size: int64(len(content)), ModTime: at, Typeflag: tar.TypeReg})
		if err == nil {
			_, err = archive.Write(content)
		}
		return err
	}
	for _, p := range parts {
		if err := ctx.Err(); err != nil {
			return missing, err
		}
		content, perr := p.Make(ctx)
		if perr != nil {
			line := fmt.Sprintf("%s: %v", p.Name, perr)
			missing = append(missing, line)
			content = fmt.Appendf(content, "\nbundle: %v\n", perr)
		}
		if err := put(p.Name, content); err != nil {
			return missing, err
		}
	}
	about := Omitted
	if len(missing) > 0 {
		about += "\nCould not be had in full:\n" + strings.Join(missing, "\n") + "\n"
	}
	return missing, errors.Join(put("README", []byte(about)), archive.Close(), zip.Close())
}

// Text is a part that is known already.
func Text(name, text string) Part {
	return Part{name, func(context.Context) ([]byte, error) { return []byte(text), nil }}
}

// File is a part that is a file as it is, or its end when it is long. A file
// that does not exist is an empty part.
func File(name, file string) Part {
	return Part{name, func(context.Context) ([]byte, error) { return tail(file) }}
}

func tail(file string) ([]byte, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return []byte(file + " does not exist\n"), nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() && st.Size() > maxLog {
		if _, err := f.Seek(-maxLog, io.SeekEnd); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, maxLog))
}

// Command is a part that is the output of a command, error messages included.
func Command(name string, args ...string) Part {
	return Part{name, func(ctx context.Context) ([]byte, error) {
		if _, err := exec.LookPath(args[0]); err != nil {
			return nil, fmt.Errorf("%s is not installed", args[0])
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.WaitDelay = time.Second
		out := &limited{left: maxCommand}
		cmd.Stdout, cmd.Stderr = out, out
		err := cmd.Run()
		head := fmt.Appendf(nil, "# %s\n", strings.Join(args, " "))
		return append(head, out.Bytes()...), err
	}}
}

// limited keeps the beginning of what is written.
type limited struct {
	bytes.Buffer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	l.Buffer.Write(p[:n])
	return len(p), nil
}
