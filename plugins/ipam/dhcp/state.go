// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/file"
)

// DefaultStateDir is where the daemon keeps its leases while it does not run.
// Not on disk: pods do not survive a reboot either.
const DefaultStateDir = "/run/sluice/dhcp"

// partial begins the names of files that are not complete.
const partial = ".tmp-"

// stateVersion is that of the files' format.
const stateVersion = 1

// state is a lease in a file. Its JSON is read by later versions.
type state struct {
	Version     int         `json:"version"`
	ContainerID string      `json:"containerID"`
	Network     string      `json:"network"`
	IfName      string      `json:"ifname"`
	NetNS       string      `json:"netns"`
	Inode       uint64      `json:"netnsInode"`
	Args        string      `json:"args,omitempty"` // CNI_ARGS
	IPAM        *ipamConfig `json:"ipam"`
	ACK         []byte      `json:"ack"`            // the server's last message, as on the wire
	At          time.Time   `json:"at"`             // when it came
	Lost        bool        `json:"lost,omitempty"` // the lease ended with the interface down; no ACK then
}

func (s *state) id() string { return clientID(s.ContainerID, s.Network, s.IfName) }

// stateFile is the file of an attachment. The name is a hash: the parts of an
// identifier may together be longer than a file name.
func stateFile(dir, id string) string {
	sum := sha256.Sum256([]byte(id))
	return filepath.Join(dir, hex.EncodeToString(sum[:16])+".json")
}

// write replaces the file as a whole.
func (s *state) write(dir string) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return file.Write(stateFile(dir, s.id()), b, file.Options{Temp: partial + "*"})
}

func removeState(dir, id string) error { return file.Remove(stateFile(dir, id)) }

// readStates returns the leases that an earlier daemon kept. A file that says
// nothing of use is removed, one that cannot be read is left for the next daemon;
// the error names both, and the others still count.
func readStates(dir string) ([]*state, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var states []*state
	var errs []error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), partial) {
			errs = append(errs, os.Remove(path))
			continue
		}
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s := &state{}
		err = json.Unmarshal(b, s)
		if err == nil && (s.Version != stateVersion || s.IPAM == nil || stateFile(dir, s.id()) != path) {
			err = errors.New("not a lease of this version")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err), os.Remove(path))
			continue
		}
		states = append(states, s)
	}
	return states, errors.Join(errs...)
}
