// SPDX-License-Identifier: Apache-2.0

// Package suite finds the packages whose tests say something about a kernel,
// and builds them with the plugins for a machine that has no Go.
package suite

import (
	"encoding/json"
	"os"
	"path/filepath"
	"time"
)

// ExecScript is the file in a machine whose commands it runs in mode "exec".
const ExecScript = "/sluice/exec.sh"

// Set is what "guest run" is given: a JSON file. Relative paths in the file are
// meant from the file's directory.
type Set struct {
	// Env is added to the environment of the tests.
	Env map[string]string `json:"env"`
	// Args are further arguments of every test binary.
	Args []string `json:"args"`
	// Timeout of one binary.
	Timeout Duration `json:"timeout"`
	Suites  []Suite  `json:"suites"`
}

// Suite is one package's test binary.
type Suite struct {
	// Package is the path below the module.
	Package string `json:"package"`
	// Binary is the file to run, Dir where: the package's own directory, or a
	// copy with the files that its tests read.
	Binary string `json:"binary"`
	Dir    string `json:"dir"`
	// Args come after those of the set.
	Args []string `json:"args,omitempty"`
}

// Duration is a time.Duration that is written like "1m30s".
type Duration struct{ time.Duration }

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) (err error) {
	d.Duration, err = time.ParseDuration(string(b))
	return err
}

// ReadSet reads a file that Write wrote, and makes its paths absolute.
func ReadSet(file string) (*Set, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s := &Set{}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, err
	}
	base, err := filepath.Abs(filepath.Dir(file))
	if err != nil {
		return nil, err
	}
	abs := func(p string) string {
		if filepath.IsAbs(p) {
			return p
		}
		return filepath.Join(base, p)
	}
	for i, u := range s.Suites {
		s.Suites[i].Binary, s.Suites[i].Dir = abs(u.Binary), abs(u.Dir)
	}
	for _, k := range []string{envBinaries} {
		if v := s.Env[k]; v != "" {
			s.Env[k] = abs(v)
		}
	}
	return s, nil
}

// JSON renders the set as ReadSet reads it.
func (s *Set) JSON() ([]byte, error) {
	raw, err := json.MarshalIndent(s, "", "  ")
	return append(raw, '\n'), err
}
