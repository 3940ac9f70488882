// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
)

// Places in the image.
const (
	imagePrograms = "usr/bin"
	imageLicences = "usr/share/doc/sluice/licences"
)

// entrypoints are the programs that the image may start, the first that exists.
var entrypoints = []string{"sluice-agent", "sluice"}

// makeImage writes one image for all architectures as an archive in the OCI image layout.
func (r *release) makeImage() error {
	index, err := r.index()
	if err != nil {
		return err
	}
	dir := filepath.Join(r.work, "layout")
	// "ctr images import" and "podman load" name the image by these.
	names := map[string]string{
		"org.opencontainers.image.ref.name": r.image + ":" + r.tag(),
		"io.containerd.image.name":          r.image + ":" + r.tag(),
	}
	outer := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: index, Descriptor: v1.Descriptor{Annotations: names}})
	if _, err := layout.Write(dir, outer); err != nil {
		return err
	}
	files, err := readTree(dir)
	if err != nil {
		return err
	}
	file := r.imageFile()
	if err := create(file, func(w io.Writer) error { return files.writeTar(w, r.time) }); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	size, err := os.Stat(file)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s: %s:%s, %s, %.1f MB\n", file, r.image, r.tag(), digest, float64(size.Size())/1e6)
	return nil
}

func (r *release) imageFile() string {
	return r.result("%s-%s-image.tar", path.Base(r.image), r.version)
}

// index is the image: one manifest for each architecture.
func (r *release) index() (v1.ImageIndex, error) {
	licences, err := r.licences(imageLicences)
	if err != nil {
		return nil, err
	}
	shared, err := r.layer(licences)
	if err != nil {
		return nil, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range r.arches {
		img, err := r.imageOf(arch, shared)
		if err != nil {
			return nil, err
		}
		platform := &v1.Platform{OS: "linux", Architecture: arch}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: platform}})
	}
	return mutate.Annotations(index, r.labels()).(v1.ImageIndex), nil // Annotations returns the type that it gets
}

// imageOf is the image of one architecture. The licences are a layer that all share.
func (r *release) imageOf(arch string, licences v1.Layer) (v1.Image, error) {
	names, err := programs()
	if err != nil {
		return nil, err
	}
	files := tree{}
	for _, name := range names {
		if err := files.copy(path.Join(imagePrograms, name), r.program(arch, name), 0o755); err != nil {
			return nil, err
		}
	}
	// A program that needs a temporary file finds a folder for it, also in an image that is mounted read-only with a tmpfs there.
	files.add("tmp", fs.ModeDir|0o755, nil)
	layer, err := r.layer(files)
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	created := v1.History{Created: v1.Time{Time: r.time}, CreatedBy: "build/release"}
	img, err = mutate.Append(img, mutate.Addendum{Layer: licences, History: created}, mutate.Addendum{Layer: layer, History: created})
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: r.time}
	config.Config = v1.Config{
		Entrypoint: []string{"/" + path.Join(imagePrograms, entrypoint(names))},
		Env:        []string{"PATH=/" + imagePrograms},
		WorkingDir: "/",
		Labels:     r.labels(),
	}
	if img, err = mutate.ConfigFile(img, config); err != nil {
		return nil, err
	}
	return mutate.Annotations(img, r.labels()).(v1.Image), nil // Annotations returns the type that it gets
}

func entrypoint(names []string) string {
	for _, e := range entrypoints {
		if slices.Contains(names, e) {
			return e
		}
	}
	return names[0]
}

func (r *release) labels() map[string]string {
	labels := map[string]string{
		"org.opencontainers.image.title":       "Sluice",
		"org.opencontainers.image.description": "CNI plugins with an eBPF datapath",
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.revision":    r.commit,
		"org.opencontainers.image.created":     r.time.Format("2006-01-02T15:04:05Z"),
		"org.opencontainers.image.licenses":    "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)",
	}
	maps.DeleteFunc(labels, func(_, value string) bool { return value == "" })
	return labels
}

// window is how far back the compressor finds what comes again. Programs of Go share code: with a window that holds two of them each
// costs what it has of its own. Decoders of runtimes take 128 MB.
const window = 32 << 20

// layer makes a compressed layer of a tree. The files are in the order of their sizes, so that the programs with the most in common,
// those with the clients of Kubernetes, are neighbours.
func (r *release) layer(t tree) (v1.Layer, error) {
	var buf bytes.Buffer
	z, err := zstd.NewWriter(&buf, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	if err := t.writeTarBySize(z, r.time); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayerZStd))
}

// readTree reads the files below a folder.
func readTree(dir string) (tree, error) {
	t := tree{}
	err := filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		return t.copy(name, file, 0o644)
	})
	return t, err
}
