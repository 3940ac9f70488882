// SPDX-License-Identifier: Apache-2.0

package flannel

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/file"
)

// errUnusable is a saved configuration that says nothing any more.
var errUnusable = errors.New("not the configuration of a plugin")

// partial begins the names of files that are not complete; a container ID does not
// begin with a dot.
const partial = ".tmp-"

// pickFile is where an attachment's configuration is saved: under the container
// ID, as upstream does, unless another attachment of that container is
// there already, which upstream would overwrite.
func (p *plugin) pickFile(c *config, ref attachments.ID) (string, error) {
	plain := filepath.Join(c.DataDir, ref.ContainerID)
	if _, err := os.Lstat(plain); errors.Is(err, fs.ErrNotExist) {
		return plain, nil
	}
	another, err := p.anothers(plain, ref)
	if another {
		return plain + "-" + ref.IfName, nil
	}
	return plain, err
}

// anothers reports that the record of another attachment names the file.
func (p *plugin) anothers(path string, ref attachments.ID) (bool, error) {
	records, err := p.Records.List("")
	for _, r := range records {
		var s section
		if ok, err := r.Section(Name, &s); err == nil && ok && s.File == path && r.ID != ref {
			return true, nil
		}
	}
	return false, cnierr.Wrap(cnierr.CodeState, err, "list the records")
}

// savedFile is where ADD saved it. Without a record, as after a reboot, that is its own file, else where upstream saves.
func (p *plugin) savedFile(c *config, ref attachments.ID) string {
	var s section
	rec, err := p.Records.Load(ref)
	if err == nil && !rec.Corrupt {
		if ok, err := rec.Section(Name, &s); err == nil && ok && s.File != "" {
			return s.File
		}
	}
	path := filepath.Join(c.DataDir, ref.ContainerID)
	if own := path + "-" + ref.IfName; savedNetwork(own) == c.Name {
		path = own
	}
	if another, err := p.anothers(path, ref); another || err != nil {
		return "" // this attachment was never made
	}
	return path
}

// save writes a file that is whole or not there.
func save(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return file.Write(path, content, file.Options{Temp: partial + "*", Sync: file.SyncContent})
}

// readSaved returns a saved configuration and the delegate it is for.
func readSaved(path string) ([]byte, string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, "", err
	}
	// As ADD reads it: a key in other capitals is another one.
	var conf object
	if err := json.Unmarshal(b, &conf); err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, errUnusable)
	}
	kind, err := typeOf(conf, "type", "")
	if err != nil || kind == "" {
		return nil, "", fmt.Errorf("%s: %w", path, errUnusable)
	}
	return b, kind, nil
}

func removeFile(path string) error {
	return cnierr.Wrap(cnierr.CodeIO, file.Remove(path), "remove the delegate's saved configuration")
}

// gcRecords removes what the records of this network say and keep does not hold.
func (p *plugin) gcRecords(network string, keep map[attachments.ID]bool) error {
	records, err := p.Records.List(network)
	if err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "list the records")
	}
	var errs []error
	for _, r := range records {
		var s section
		if ok, err := r.Section(Name, &s); err != nil || !ok || keep[r.ID] {
			continue
		}
		if s.File != "" {
			errs = append(errs, removeFile(s.File))
		}
		errs = append(errs, cnierr.Wrap(cnierr.CodeState, p.Records.Remove(r.ID, Name), "remove a record"))
	}
	return errors.Join(errs...)
}

// gcFiles removes what upstream saved for containers of this network that
// are gone, and what killed ADDs of any network were just writing. Upstream's
// files are named after the container alone.
func (p *plugin) gcFiles(c *config, containers map[string]bool) error {
	entries, err := os.ReadDir(c.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return cnierr.Wrap(cnierr.CodeIO, err, "list dataDir %q", c.DataDir)
	}
	recorded := map[string]bool{}
	records, err := p.Records.List("")
	if err != nil {
		return cnierr.Wrap(cnierr.CodeState, err, "list the records")
	}
	for _, r := range records {
		var s section
		if ok, err := r.Section(Name, &s); err == nil && ok {
			recorded[s.File] = true
		}
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(c.DataDir, e.Name())
		if abandoned(e) {
			errs = append(errs, removeFile(path))
			continue
		}
		if !e.Type().IsRegular() || containers[e.Name()] || recorded[path] || savedNetwork(path) != c.Name {
			continue
		}
		errs = append(errs, removeFile(path))
	}
	return errors.Join(errs...)
}

// abandoned reports a partial file that no ADD can be writing any more.
func abandoned(e fs.DirEntry) bool {
	if !strings.HasPrefix(e.Name(), partial) {
		return false
	}
	fi, err := e.Info()
	return err == nil && fi.Mode().IsRegular() && time.Since(fi.ModTime()) > 2*cniskel.AddDeadline
}

// savedNetwork is the network a saved configuration belongs to, "" when it does
// not say.
func savedNetwork(path string) string {
	b, err := os.ReadFile(path)
	var conf struct {
		Name string `json:"name"`
	}
	if err != nil || json.Unmarshal(b, &conf) != nil {
		return ""
	}
	return conf.Name
}
