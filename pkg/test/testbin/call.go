// SPDX-License-Identifier: Apache-2.0

package testbin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"

	"github.com/containernetworking/cni/pkg/types"
)

// Call is one run of a plugin without a runtime in between, so that a test can
// ask for what no runtime would.
type Call struct {
	Plugin string
	// Verb is CNI_COMMAND.
	Verb string
	// Env adds to the environment, or replaces what the process has; Unset
	// takes a variable away.
	Env   map[string]string
	Stdin []byte
	// Stderr gets what the plugin writes there; nil discards it.
	Stderr io.Writer
	// Do runs the process where it should live, such as (*lab.Node).Do. nil is
	// the caller's own place.
	Do func(func() error) error
}

// Unset as a value in Call.Env removes the variable.
const Unset = "\x00"

// Run returns the plugin's standard output. A plugin that fails as the CNI
// specification says (exit status 1, an error object on standard output) gives
// a *types.Error; one that does anything else gives another error.
func (s *Set) Run(c Call) (stdout string, err error) {
	env := map[string]string{"CNI_COMMAND": c.Verb, "CNI_PATH": s.Dir}
	maps.Copy(env, c.Env)
	cmd := exec.Command(s.Path(c.Plugin))
	cmd.Env = os.Environ()
	for k, v := range env {
		if v != Unset {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(c.Stdin), &out, c.Stderr
	if c.Do == nil {
		c.Do = func(f func() error) error { return f() }
	}
	err = c.Do(cmd.Run)
	if err == nil {
		return out.String(), nil
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		return out.String(), fmt.Errorf("%s %s: %w, want exit status 1; stdout: %q", c.Plugin, c.Verb, err, out.String())
	}
	var cniErr types.Error
	dec := json.NewDecoder(&out)
	text := out.String()
	if err := dec.Decode(&cniErr); err != nil {
		return text, fmt.Errorf("%s %s: stdout is no JSON object: %w: %q", c.Plugin, c.Verb, err, text)
	}
	if dec.More() {
		return text, fmt.Errorf("%s %s: stdout has more than one JSON value: %q", c.Plugin, c.Verb, text)
	}
	return text, &cniErr
}
