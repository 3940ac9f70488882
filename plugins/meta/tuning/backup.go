// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// backup is the file of upstream's plugin, key by key: the settings that ADD
// found of those it was asked to change.
type backup struct {
	MAC      string `json:"mac,omitempty"`
	Promisc  *bool  `json:"promisc,omitempty"`
	MTU      int    `json:"mtu,omitempty"`
	AllMulti *bool  `json:"allmulti,omitempty"`
	TxQLen   *int   `json:"txQLen,omitempty"`
}

// partial is behind the name of a backup that is not complete.
const partial = ".tmp"

func backupPath(dataDir string, a *cniskel.Args) string {
	return filepath.Join(dataDir, a.ContainerID+"_"+a.IfName+".json")
}

// backupOf notes of link what w is going to change.
func backupOf(link rtnl.Link, w *wanted) backup {
	var b backup
	if w.mac != nil {
		b.MAC = link.MAC.String()
	}
	if w.promisc {
		b.Promisc = &link.Promisc
	}
	if w.mtu != 0 {
		b.MTU = link.MTU
	}
	if w.allMulti != nil {
		b.AllMulti = &link.AllMulti
	}
	if w.txQLen != nil {
		b.TxQLen = &link.TxQLen
	}
	return b
}

// keep takes over what the file of an earlier ADD says where count agrees, given
// whether the link has the wanted value by now. Settings that this ADD leaves
// alone are taken over when count says so of an untuned one.
func (b *backup) keep(old backup, count func(tuned bool) bool, link rtnl.Link, w *wanted) {
	if old.MAC != "" && count(w.mac != nil && bytes.Equal(link.MAC, w.mac)) {
		b.MAC = old.MAC
	}
	if old.Promisc != nil && count(w.promisc && link.Promisc) {
		b.Promisc = old.Promisc
	}
	if old.MTU != 0 && count(link.MTU == w.mtu) {
		b.MTU = old.MTU
	}
	if old.AllMulti != nil && count(w.allMulti != nil && link.AllMulti == *w.allMulti) {
		b.AllMulti = old.AllMulti
	}
	if old.TxQLen != nil && count(w.txQLen != nil && link.TxQLen == *w.txQLen) {
		b.TxQLen = old.TxQLen
	}
}

func readBackup(path string) (b backup, found bool, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return b, false, nil
	}
	if err != nil {
		return b, false, err
	}
	return b, true, json.Unmarshal(raw, &b)
}

// writeBackup writes the file whole or not at all.
func writeBackup(path string, b backup) error {
	raw, err := json.MarshalIndent(b, "", " ") // as upstream writes it
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return file.Write(path, raw, file.Options{Temp: filepath.Base(path) + partial})
}

// removeBackup removes the file, and what a killed ADD was just writing.
func removeBackup(path string) error {
	return errors.Join(file.Remove(path), file.Remove(path+partial))
}
