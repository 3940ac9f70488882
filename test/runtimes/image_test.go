// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
)

// imageName is the one image: what sandboxes wait in, and what containers run. No registry is asked for it.
const imageName = "sluice.test/workload:1"

// archive is a tar file in the making. The first error stays.
type archive struct {
	out *tar.Writer
	err error
}

func newArchive(w io.Writer) *archive { return &archive{out: tar.NewWriter(w)} }

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

// layer is the image's file system: the one program.
func layer() ([]byte, error) {
	program, err := os.ReadFile(workload)
	if err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	a := newArchive(&buf)
	for _, dir := range []string{"dev", "etc", "proc", "run", "sys", "tmp"} {
		a.entry(tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}, nil)
	}
	a.file("workload", 0o755, program)
	return buf.Bytes(), a.close()
}

// writeImage writes the image as an OCI archive.
func writeImage(w io.Writer) error {
	root, err := layer()
	if err != nil {
		return err
	}
	a := newArchive(w)
	layer := a.blob("application/vnd.oci.image.layer.v1.tar", root)
	config := a.jsonBlob("application/vnd.oci.image.config.v1+json", map[string]any{
		"os": "linux", "architecture": runtime.GOARCH,
		"config": map[string]any{"Cmd": []string{"/workload", "pause"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer.Digest}},
	})
	manifest := a.jsonBlob("application/vnd.oci.image.manifest.v1+json", map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config, "layers": []descriptor{layer},
	})
	manifest.Annotations = map[string]string{"io.containerd.image.name": imageName}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": []descriptor{manifest}})
	if err != nil {
		return err
	}
	a.file("index.json", 0o644, index)
	a.file("oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return a.close()
}
