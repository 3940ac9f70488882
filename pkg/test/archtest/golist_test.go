// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const module = "github.com/sluice-cni/sluice"

// goPackage is the part of "go list -json" that the tests look at.
type goPackage struct {
	ImportPath   string
	Dir          string
	Doc          string
	Name         string
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// rel returns the import path below our module, "." for its root.
func (p goPackage) rel() string { return relative(p.ImportPath) }

func relative(importPath string) string {
	if importPath == module {
		return "."
	}
	return strings.TrimPrefix(importPath, module+"/")
}

func ours(importPath string) bool {
	return importPath == module || strings.HasPrefix(importPath, module+"/")
}

// listPackages returns every package of the workspace.
func listPackages(tb testing.TB) []goPackage {
	tb.Helper()
	return goList(tb, "", "work")
}

// goList runs "go list" with args at the root. work is GOWORK: "off" for the packages as a release has them, "" for those of the workspace.
func goList(tb testing.TB, work string, args ...string) []goPackage {
	tb.Helper()
	out := goCommand(tb, []string{"GOWORK=" + work}, append([]string{"list", "-tags", "grpcnotrace", "-json=ImportPath,Dir,Doc,Name,Standard,Imports,TestImports,XTestImports"}, args...)...)
	var packages []goPackage
	for dec := json.NewDecoder(strings.NewReader(out)); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			tb.Fatalf("decode go list: %v", err)
		}
		packages = append(packages, p)
	}
	if len(packages) == 0 {
		tb.Fatal("go list found no packages")
	}
	return packages
}

// goCommand returns what the go command prints at the root, with env added to its environment.
func goCommand(tb testing.TB, env []string, args ...string) string {
	tb.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = repoRoot(tb), append(os.Environ(), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out)
}

// repoRoot returns the directory of go.mod.
func repoRoot(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			tb.Fatal("no go.mod above the test")
		}
		dir = parent
	}
}

// trackedFiles returns the files of the tree, as git sees them: tracked, or new
// and not ignored. Without git (a source archive) it walks the tree.
func trackedFiles(tb testing.TB) []string {
	tb.Helper()
	root := repoRoot(tb)
	cmd := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return walkedFiles(tb, root)
	}
	var files []string
	for f := range strings.SplitSeq(string(out), "\x00") {
		if f == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, f)); err == nil {
			files = append(files, f)
		}
	}
	return files
}

func walkedFiles(tb testing.TB, root string) []string {
	tb.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "out") {
			return filepath.SkipDir
		}
		if d.Type().IsRegular() {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			files = append(files, rel)
		}
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return files
}
