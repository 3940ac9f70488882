// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"
)

// tree is the files of a product by their paths, without a leading slash. Their folders are implied.
type tree map[string]treeFile

type treeFile struct {
	mode    fs.FileMode // permissions; fs.ModeDir and fs.ModeSymlink say that it is none of a regular file's
	content []byte      // or the target of a symbolic link
}

func (t tree) add(name string, mode fs.FileMode, content []byte) { t[name] = treeFile{mode, content} }

// copy adds a file of this machine.
func (t tree) copy(name, file string, mode fs.FileMode) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	t.add(name, mode, content)
	return nil
}

// withFolders returns all paths in order, each after its folder.
func (t tree) withFolders() (tree, []string) {
	all := maps.Clone(t)
	for name := range t {
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := all[dir]; !ok {
				all[dir] = treeFile{mode: fs.ModeDir | 0o755}
			}
		}
	}
	return all, slices.Sorted(maps.Keys(all))
}

// writeTar writes the tree as a tar archive: sorted, owned by root, every time the same.
func (t tree) writeTar(w io.Writer, at time.Time) error {
	all, names := t.withFolders()
	return all.writeInOrder(w, at, names)
}

// writeTarBySize does the same with small files first.
func (t tree) writeTarBySize(w io.Writer, at time.Time) error {
	all, names := t.withFolders()
	slices.SortStableFunc(names, func(a, b string) int { // a folder has no size, so it stays before what is in it
		return cmp.Compare(len(all[a].content), len(all[b].content))
	})
	return all.writeInOrder(w, at, names)
}

func (t tree) writeInOrder(w io.Writer, at time.Time, names []string) error {
	out := tar.NewWriter(w)
	for _, name := range names {
		f := t[name]
		h := &tar.Header{Name: name, Mode: int64(f.mode.Perm()), ModTime: at, Typeflag: tar.TypeReg, Size: int64(len(f.content))}
		switch {
		case f.mode.IsDir():
			h.Typeflag, h.Name = tar.TypeDir, name+"/"
		case f.mode&fs.ModeSymlink != 0:
			h.Typeflag, h.Linkname, h.Size, f.content = tar.TypeSymlink, string(f.content), 0, nil
		}
		if err := out.WriteHeader(h); err != nil {
			return err
		}
		if _, err := out.Write(f.content); err != nil {
			return err
		}
	}
	return out.Close()
}

// writeArchive writes the tree as a .tar.gz file.
func (t tree) writeArchive(file string, at time.Time) error {
	return create(file, func(w io.Writer) error {
		z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
		if err != nil {
			return err
		}
		if err := t.writeTar(z, at); err != nil {
			return err
		}
		return z.Close()
	})
}

// writeTo writes the tree below a folder, with the time on each file and folder. Packagers read it there.
func (t tree) writeTo(root string, at time.Time) error {
	all, names := t.withFolders()
	for _, name := range names {
		f, file := all[name], filepath.Join(root, name)
		var err error
		switch {
		case f.mode.IsDir():
			err = os.MkdirAll(file, f.mode.Perm())
		case f.mode&fs.ModeSymlink != 0:
			err = os.Symlink(string(f.content), file)
		default:
			err = os.WriteFile(file, f.content, f.mode.Perm())
		}
		if err == nil && f.mode&fs.ModeSymlink == 0 {
			err = os.Chmod(file, f.mode.Perm()) // whatever the umask is
		}
		if err != nil {
			return err
		}
	}
	if err := os.Chmod(root, 0o755); err != nil { // a deb has the folder itself too
		return err
	}
	for _, name := range slices.Backward(names) { // a folder after what is in it
		if all[name].mode&fs.ModeSymlink != 0 {
			continue
		}
		if err := os.Chtimes(filepath.Join(root, name), at, at); err != nil {
			return err
		}
	}
	return os.Chtimes(root, at, at)
}

// create writes a file under a temporary name first, so that a result is whole or absent.
func create(file string, write func(io.Writer) error) (err error) {
	temp := file + ".part"
	out, err := os.Create(temp)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp)
		}
	}()
	if err := write(out); err != nil {
		out.Close()
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(temp, file)
}
