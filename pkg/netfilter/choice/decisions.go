// SPDX-License-Identifier: Apache-2.0

package choice

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/netfilter/internal/tool"
	"github.com/sluice-cni/sluice/pkg/nodeid"
)

// choiceAge is how long a choice is taken without another look at the node.
const choiceAge = 10 * time.Minute

// fresh reports that the node need not be looked at. A clock that went back is
// no excuse.
func fresh(c netfilter.Choice) bool {
	age := time.Since(c.Seen)
	return age >= 0 && age < choiceAge
}

// decisions is the file. Another boot's is void.
type decisions struct {
	Version int                         `json:"version"`
	BootID  string                      `json:"bootID"`
	Choices map[string]netfilter.Choice `json:"choices"` // by what was asked for: auto, iptables
}

const decisionsVersion = 1

// fileOfNamespace is a file of the calling thread's network namespace.
func fileOfNamespace(runDir, name string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return "", fmt.Errorf("find our own network namespace: %w", err)
	}
	return filepath.Join(runDir, fmt.Sprintf("%s-%d.json", name, st.Ino)), nil
}

func decisionFile(runDir string) (string, error) { return fileOfNamespace(runDir, "netfilter") }

func readDecisions(runDir string) (decisions, error) {
	d := decisions{Version: decisionsVersion, BootID: nodeid.BootID(), Choices: make(map[string]netfilter.Choice)}
	path, err := decisionFile(runDir)
	if err != nil {
		return d, err
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return d, err
	}
	var have decisions
	if err := json.Unmarshal(raw, &have); err != nil {
		return d, fmt.Errorf("%s: %w", path, err)
	}
	if have.BootID == d.BootID && have.Choices != nil {
		d.Choices = have.Choices
	}
	return d, nil
}

// Made returns what was chosen in the calling thread's network namespace
// since boot, by what was asked for ("auto", "iptables"). runDir may be empty.
func Made(runDir string) (map[string]netfilter.Choice, error) {
	if runDir == "" {
		runDir = tool.DefaultRunDir
	}
	d, err := readDecisions(runDir)
	return d.Choices, err
}

// kept returns the choice made before, none if there is none that can be read.
func (n *Node) kept(asked string) netfilter.Choice {
	d, err := readDecisions(n.env.RunDir)
	if err != nil {
		return netfilter.Choice{}
	}
	c := d.Choices[asked]
	if asked == netfilter.NameIPTables && !strings.HasPrefix(c.Name, asked+"-") {
		return netfilter.Choice{} // a damaged file: no tables but iptables were asked for
	}
	return c
}

// keep writes a choice down. The file explains and saves work; that it cannot be
// written is no reason to fail.
func (n *Node) keep(asked string, c netfilter.Choice) netfilter.Choice {
	c.Seen = time.Now().UTC()
	if c.Decided.IsZero() {
		c.Decided = c.Seen
	}
	path, err := decisionFile(n.env.RunDir)
	if err != nil {
		return c
	}
	d, _ := readDecisions(n.env.RunDir)
	d.Choices[asked] = c
	raw, err := json.MarshalIndent(d, "", "  ")
	if err != nil || os.MkdirAll(n.env.RunDir, 0o755) != nil {
		return c
	}
	_ = file.Write(path, append(raw, '\n'), file.Options{Temp: fmt.Sprintf("%s.%d", filepath.Base(path), os.Getpid()), Mode: 0o644})
	return c
}
