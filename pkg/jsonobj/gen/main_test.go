// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../../.."

// packages returns the directories of the module's packages, relative to its root.
func packages(t *testing.T) []string {
	t.Helper()
	dirs := map[string]bool{}
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && p != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata" || e.Name() == "bin") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(p, ".go") {
			rel, err := filepath.Rel(root, filepath.Dir(p))
			dirs[rel] = true
			return err
		}
		return nil
	})
	if err != nil || len(dirs) < 50 {
		t.Fatal(len(dirs), err)
	}
	return slices.Sorted(maps.Keys(dirs))
}

// What is committed is what "go generate" writes.
func TestUpToDate(t *testing.T) {
	objects := 0
	for _, dir := range packages(t) {
		files, err := Generate(filepath.Join(root, dir))
		if err != nil {
			t.Error(err)
			continue
		}
		for name, want := range files {
			got, err := os.ReadFile(filepath.Join(root, dir, name))
			if want == nil && os.IsNotExist(err) {
				continue
			}
			objects += bytes.Count(want, []byte(") Field("))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s/%s is out of date: run \"make generate\"", dir, name)
			}
			if !hasDirective(t, dir) {
				t.Errorf("%s has no //go:generate line for pkg/jsonobj/gen", dir)
			}
		}
	}
	if objects < 30 {
		t.Errorf("only %d objects: was the search in the wrong place?", objects)
	}
}

func hasDirective(t *testing.T, dir string) bool {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(paths, func(p string) bool {
		src, err := os.ReadFile(p)
		return err == nil && bytes.Contains(src, []byte("\n//go:generate go run ")) && bytes.Contains(src, []byte("jsonobj/gen\n")) ||
			dir == "pkg/jsonobj" && bytes.Contains(src, []byte("\n//go:generate go run ./gen\n"))
	})
}

// A struct with keys of its own that embeds an object must be an object itself: else it inherits a Field method that does
// not know its keys, and they are ignored.
func TestEmbeddersAreMarked(t *testing.T) {
	type structType struct {
		name string // with the package's directory
		typ  *ast.StructType
		imp  map[string]string
	}
	var all []structType
	objects := map[string]bool{}
	for _, dir := range packages(t) {
		paths, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		p := &pkg{structs: map[string]*ast.StructType{}, objects: map[string]bool{}}
		for _, file := range paths {
			if err := p.read(file); err != nil {
				t.Fatal(err)
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			imp := imports(t, f)
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeSpec:
					if st, ok := n.Type.(*ast.StructType); ok {
						all = append(all, structType{dir + "." + n.Name.Name, st, imp})
					}
				case *ast.StructType: // maybe without a name; one with a name comes a second time
					if !slices.ContainsFunc(all, func(s structType) bool { return s.typ == n }) {
						all = append(all, structType{dir + ".struct", n, imp})
					}
				}
				return true
			})
		}
		for name := range p.objects {
			objects[dir+"."+name] = true
		}
	}
	for _, s := range all {
		dir, _, _ := strings.Cut(s.name, ".")
		keys, embeds := false, ""
		for _, f := range s.typ.Fields.List {
			tag, err := tagOf(f)
			if err != nil {
				t.Fatal(err)
			}
			keys = keys || tag != "" && tag != "-"
			if len(f.Names) > 0 {
				continue
			}
			name := ""
			switch e := f.Type.(type) {
			case *ast.Ident:
				name = dir + "." + e.Name
			case *ast.SelectorExpr:
				name = s.imp[e.X.(*ast.Ident).Name] + "." + e.Sel.Name
			}
			if objects[name] {
				embeds = name
			}
		}
		if keys && embeds != "" && !objects[s.name] {
			t.Errorf("%s embeds %s and has keys: mark it with %s", s.name, embeds, marker)
		}
	}
}

// imports maps the names of a file's imports of this module to their directories.
func imports(t *testing.T, f *ast.File) map[string]string {
	t.Helper()
	module := strings.TrimSuffix(library, "/pkg/jsonobj") + "/"
	all := map[string]string{}
	for _, i := range f.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		name := path.Base(p)
		if i.Name != nil {
			name = i.Name.Name
		}
		all[name] = strings.TrimPrefix(p, module)
	}
	return all
}

// What the generator cannot translate is an error, not a key that is ignored.
func TestRefuses(t *testing.T) {
	for name, fields := range map[string]string{
		"no tag":           "A int",
		"unexported":       "a int `json:\"a\"`",
		"two names":        "A, B int `json:\"a\"`",
		"twice":            "A int `json:\"a\"`\nB int `json:\"A\"`",
		"embedded pointer": "*other.Conf",
		"no struct":        "Name",
		"nothing":          "a int",
	} {
		dir := t.TempDir()
		src := "package x\n\n" + marker + "\ntype conf struct {\n" + fields + "\n}\n"
		if err := os.WriteFile(filepath.Join(dir, "x.go"), []byte(src), 0o600); err != nil {
			t.Fatal(err)
		}
		if files, err := Generate(dir); err == nil {
			t.Errorf("%s: %s", name, files[output])
		}
	}
}

// A file that is no longer needed is removed.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	write := func(src string) {
		if err := os.WriteFile(filepath.Join(dir, "x.go"), []byte(src), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := run(dir); err != nil {
			t.Fatal(err)
		}
	}
	write("package x\n\n" + marker + "\ntype conf struct {\n\tA int `json:\"a\"`\n}\n")
	got, err := os.ReadFile(filepath.Join(dir, output))
	if err != nil || !bytes.Contains(got, []byte("case \"a\":\n\t\treturn &o.A\n")) {
		t.Errorf("%s, %v", got, err)
	}
	write("package x\n")
	if _, err := os.Stat(filepath.Join(dir, output)); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
}
