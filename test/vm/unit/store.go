// SPDX-License-Identifier: Apache-2.0

package unit

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sluice-cni/sluice/test/vm/result"
)

// Store keeps the results of units in a directory, below one for each kernel and
// unit. Several processes may use it.
type Store struct {
	Dir string
	// Fresh makes what is older than this Store count for nothing.
	Fresh bool

	mu   sync.Mutex
	mine map[string]bool
}

// Kept is what a unit said under a kernel.
type Kept struct {
	Unit    string  `json:"unit"`
	Release string  `json:"release"`
	Key     string  `json:"key"`
	Seconds float64 `json:"seconds"`
	// Trouble is what a healthy machine never says.
	Trouble []string `json:"trouble,omitempty"`
	// Report is the part of the machine's report.
	Report string `json:"report"`
}

// OK reports whether the unit ended, and nothing was wrong.
func (k *Kept) OK() bool {
	run := result.Parse(strings.NewReader(k.Report))
	return len(k.Trouble) == 0 && len(run.Suites) == 1 && run.Suites[0].OK()
}

// age is how long results are kept that no run has asked for.
const age = 30 * 24 * time.Hour

func (s *Store) file(release string, u Unit) string {
	return filepath.Join(s.Dir, release, u.file(), u.Key+".json")
}

// Load returns what is kept of u as it is now, nil if nothing is.
func (s *Store) Load(release string, u Unit) *Kept {
	name := s.file(release, u)
	k := read(name)
	if k == nil || k.Key != u.Key || k.Release != release || s.Fresh && !s.isMine(name) {
		return nil
	}
	now := time.Now()
	_ = os.Chtimes(name, now, now)
	return k
}

func read(name string) *Kept {
	raw, err := os.ReadFile(name)
	if err != nil {
		return nil
	}
	k := &Kept{}
	if json.Unmarshal(raw, k) != nil {
		return nil
	}
	return k
}

// Save keeps what u said under a kernel, or replaces it. What is kept is whole,
// whenever the process is killed.
func (s *Store) Save(release string, u Unit, report string, trouble ...string) error {
	k := &Kept{Unit: u.Name(), Release: release, Key: u.Key, Trouble: trouble, Report: report}
	for _, r := range result.Parse(strings.NewReader(report)).Suites {
		k.Seconds += r.Seconds
	}
	raw, err := json.Marshal(k)
	if err != nil {
		return err
	}
	name := s.file(release, u)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(name), ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mine == nil {
		s.mine = map[string]bool{}
	}
	s.mine[name] = true
	return nil
}

func (s *Store) isMine(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mine[name]
}

// Estimate is how many of a machine's seconds u takes: as many as it took
// before, under any kernel, or what so many tests usually take.
func (s *Store) Estimate(u Unit) float64 {
	names, _ := filepath.Glob(filepath.Join(s.Dir, "*", u.file(), "*.json")) // the pattern is good
	longest := 0.0
	for _, n := range names {
		if k := read(n); k != nil {
			longest = max(longest, k.Seconds)
		}
	}
	if longest == 0 {
		return 2 * float64(len(u.Package.Tests)) / float64(u.Parts)
	}
	return longest
}

// Prune removes what no run has asked for in a month.
func (s *Store) Prune() {
	names, _ := filepath.Glob(filepath.Join(s.Dir, "*", "*", "*")) // the pattern is good
	for _, n := range names {
		if st, err := os.Stat(n); err == nil && time.Since(st.ModTime()) > age {
			_ = os.Remove(n)
		}
	}
}
