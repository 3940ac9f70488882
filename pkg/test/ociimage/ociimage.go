// SPDX-License-Identifier: Apache-2.0

// Package ociimage writes container images that are made of files of this machine, for tests that have no registry. A runtime imports them as
// OCI archives.
package ociimage

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// An Image has one layer.
type Image struct {
	// Name is what a runtime knows it by, with its tag.
	Name string
	// Files are paths of this machine by their paths in the image. All of them can be executed.
	Files map[string]string
	// Text are further files by their content.
	Text map[string]string
	// Entrypoint and Cmd are what a container runs.
	Entrypoint, Cmd []string
}

// Write writes the image as an OCI archive.
func (i Image) Write(w io.Writer) error {
	root, err := i.layer()
	if err != nil {
		return err
	}
	a := &archive{out: tar.NewWriter(w)}
	layer := a.blob("application/vnd.oci.image.layer.v1.tar", root)
	config := a.jsonBlob("application/vnd.oci.image.config.v1+json", map[string]any{
		"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "Env": []string{"PATH=/usr/bin:/bin:/"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer.Digest}},
	})
	manifest := a.jsonBlob("application/vnd.oci.image.manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": []descriptor{layer},
	})
	manifest.Annotations = map[string]string{"io.containerd.image.name": i.Name}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{manifest}})
	if err != nil {
		return err
	}
	a.file("index.json", 0o644, index)
	a.file("oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return a.close()
}

// layer is the image's file system.
func (i Image) layer() ([]byte, error) {
	var buf bytes.Buffer
	a := &archive{out: tar.NewWriter(&buf)}
	dirs := map[string]bool{}
	for _, dir := range []string{"dev", "etc", "proc", "run", "sys"} {
		a.dir(dirs, dir, 0o755)
	}
	a.dir(dirs, "tmp", 0o1777)
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		data, err := os.ReadFile(i.Files[name])
		if err != nil {
			return nil, err
		}
		a.dir(dirs, path.Dir(strings.Trim(name, "/")), 0o755)
		a.file(strings.Trim(name, "/"), 0o755, data)
	}
	for _, name := range slices.Sorted(maps.Keys(i.Text)) {
		a.dir(dirs, path.Dir(strings.Trim(name, "/")), 0o755)
		a.file(strings.Trim(name, "/"), 0o644, []byte(i.Text[name]))
	}
	return buf.Bytes(), a.close()
}

// archive is a tar file in the making. The first error stays.
type archive struct {
	out *tar.Writer
	err error
}

func (a *archive) entry(h tar.Header, data []byte) {
	if a.err != nil {
		return
	}
	h.Size = int64(len(data))
	if a.err = a.out.WriteHeader(&h); a.err == nil {
		_, a.err = a.out.Write(data)
	}
}

func (a *archive) file(name string, mode int64, data []byte) {
	a.entry(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, data)
}

// dir adds a directory, and those above it, once.
func (a *archive) dir(have map[string]bool, name string, mode int64) {
	if name == "." || have[name] {
		return
	}
	a.dir(have, path.Dir(name), 0o755)
	have[name] = true
	a.entry(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}, nil)
}

func (a *archive) close() error {
	if a.err != nil {
		return a.err
	}
	return a.out.Close()
}

// descriptor names a blob, as the image specification has it.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func (a *archive) blob(mediaType string, data []byte) descriptor {
	sum := fmt.Sprintf("%x", sha256.Sum256(data))
	a.file("blobs/sha256/"+sum, 0o644, data)
	return descriptor{MediaType: mediaType, Digest: "sha256:" + sum, Size: len(data)}
}

func (a *archive) jsonBlob(mediaType string, value any) descriptor {
	data, err := json.Marshal(value)
	if err != nil && a.err == nil {
		a.err = err
	}
	return a.blob(mediaType, data)
}
