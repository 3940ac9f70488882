// SPDX-License-Identifier: Apache-2.0

// Package helperproc runs the program that has what no plugin should start with: a plugin lives for some milliseconds, and the libraries
// that load programs into the kernel or talk on D-Bus take a tenth of that to make ready, in every call. What they are for is
// asked for once per boot, or on few nodes. So it is a job of a program of its own, beside the plugins: one request on standard
// input, one reply on standard output.
package helperproc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Name is the program's file name.
const Name = "sluice-helper"

// ErrMissing says that the program is not where it should be.
var ErrMissing = errors.New("not there: \"sluice install\" lays it beside the plugins")

// ErrorCodes are errors that are still themselves (errors.Is) after their way through the reply, by a word for each.
type ErrorCodes map[string]error

// Program is the helper.
type Program struct {
	// Path of it; empty: Name beside the file of this process.
	Path string
}

// File0 is where the process finds the file of Call.
const File0 = "/proc/self/fd/3"

type request struct {
	Job string          `json:"job"`
	In  json.RawMessage `json:"in,omitempty"`
}

type reply struct {
	Out   json.RawMessage `json:"out,omitempty"`
	Error string          `json:"error,omitempty"`
	Kind  string          `json:"kind,omitempty"` // of the error
}

// toldError is an error that the program told of.
type toldError struct {
	text string
	kind error
}

func (e *toldError) Error() string { return e.text }
func (e *toldError) Unwrap() error { return e.kind }

// Call has a job done in the namespaces of the calling thread: in is what it is about, out is set to what came of it, both as JSON.
// The process gets file, if there is one, and so holds what file holds (a lock) for as long as it lives.
func (p Program) Call(ctx context.Context, job string, in, out any, file *os.File, kinds ErrorCodes) error {
	path := p.Path
	if path == "" {
		var err error
		if path, err = SiblingPath(Name); err != nil {
			return err
		}
	}
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	if body, err = json.Marshal(request{job, body}); err != nil {
		return err
	}
	var said, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, path)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(body), &said, &errs
	if file != nil {
		cmd.ExtraFiles = []*os.File{file}
	}
	if err := cmd.Run(); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s: %w", path, ErrMissing)
	} else if err != nil {
		return fmt.Errorf("%s: %w: %s", path, err, strings.TrimSpace(errs.String()))
	}
	var r reply
	if err := json.Unmarshal(said.Bytes(), &r); err != nil {
		return fmt.Errorf("%s answers %q: %w", path, said.String(), err)
	}
	if r.Error != "" {
		return &toldError{r.Error, kinds[r.Kind]}
	}
	return json.Unmarshal(r.Out, out)
}

// SiblingPath returns the path of another of our programs, which lie in one directory.
func SiblingPath(program string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	return filepath.Join(filepath.Dir(self), program), nil
}

// Job does one kind of work.
type Job struct {
	Do         func(ctx context.Context, in json.RawMessage) (out any, err error)
	ErrorCodes ErrorCodes
}

// Serve answers the request that in holds, for the process that is Program. The error is about the request itself.
func Serve(ctx context.Context, jobs map[string]Job, in io.Reader, out io.Writer) error {
	var q request
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	job, ok := jobs[q.Job]
	if !ok {
		return fmt.Errorf("there is no job %q", q.Job)
	}
	var r reply
	result, err := job.Do(ctx, q.In)
	if err == nil {
		r.Out, err = json.Marshal(result)
	}
	if err != nil {
		r.Error = err.Error()
		for kind, sentinel := range job.ErrorCodes {
			if errors.Is(err, sentinel) {
				r.Kind = kind
			}
		}
	}
	return json.NewEncoder(out).Encode(r)
}
