// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// everybodys are keys of the specification that some plugins read themselves.
var everybodys = map[string]bool{"type": true, "capabilities": true}

// keyless plugins have the specification's keys only, or those of their family.
var keyless = map[string]bool{"loopback": true, "dummy": true}

// otherNames has the types of plugins whose folder has another name. Their configuration is in the room conf.
var otherNames = map[string]string{"cluster": "sluice-ipam"}

// Every plugin's README has the parts that users look for, and a word on every
// key that the plugin's configuration has.
func TestPluginReadmes(t *testing.T) {
	root := repoRoot(t)
	plugins := 0
	for _, family := range []string{"main", "ipam", "meta"} {
		entries, err := os.ReadDir(filepath.Join(root, "plugins", family))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !e.IsDir() || e.Name() == "internal" {
				continue
			}
			plugins++
			t.Run(e.Name(), func(t *testing.T) {
				dir := path.Join("plugins", family, e.Name())
				text, err := os.ReadFile(filepath.Join(root, dir, "README.md"))
				if err != nil {
					t.Fatal(err)
				}
				name := e.Name()
				if own, ok := otherNames[name]; ok {
					name, dir = own, path.Join(dir, "conf")
				}
				checkReadme(t, name, string(text))
				keys := newSource(root).keys(t, dir)
				if len(keys) == 0 && !keyless[e.Name()] {
					t.Error("no key is found in its source: this test looks for a type that embeds the common keys")
				}
				for _, key := range keys {
					if !everybodys[key] && !named(string(text), key) {
						t.Errorf("no word on the key %q", key)
					}
				}
			})
		}
	}
	if plugins < 19 {
		t.Errorf("%d plugins", plugins)
	}
}

func checkReadme(t *testing.T, name, text string) {
	t.Helper()
	if !strings.HasPrefix(text, "# "+name+"\n") {
		t.Errorf("it begins with %q", firstLine(text))
	}
	for what, pattern := range map[string]string{
		"an example":                     "(?m)^```json$",
		"the differences":                `(?m)^## Differences from upstream$`,
		"a table of the verbs with ADD":  `(?m)^\| ADD\b`,
		"a row for DEL":                  `(?m)^\| DEL\b`,
		"a row for CHECK":                `(?m)^\| CHECK\b`,
		"a row for GC":                   `(?m)^\| .*\bGC\b.* \|`,
		"a row for STATUS":               `(?m)^\| .*\bSTATUS\b.* \|`,
		"the type of the plugin, quoted": `"type": "` + regexp.QuoteMeta(name) + `"`,
	} {
		if !regexp.MustCompile(pattern).MatchString(text) {
			t.Errorf("it lacks %s", what)
		}
	}
}

// named reports that a key stands in the text as code.
func named(text, key string) bool {
	return regexp.MustCompile("`[^`\n]*\\b" + regexp.QuoteMeta(key) + "\\b[^`\n]*`").MatchString(text)
}

// source finds the keys of configurations in the module's source.
type source struct {
	root     string
	packages map[string]map[string]*typeDecl // by directory, then by type
}

type typeDecl struct {
	dir     string
	expr    ast.Expr
	imports map[string]string // name in the file, to the directory of a package of ours
}

func newSource(root string) *source {
	return &source{root: root, packages: map[string]map[string]*typeDecl{}}
}

// types returns the types that a directory's files declare.
func (s *source) types(t *testing.T, dir string) map[string]*typeDecl {
	t.Helper()
	if known, ok := s.packages[dir]; ok {
		return known
	}
	out := map[string]*typeDecl{}
	s.packages[dir] = out
	files, err := filepath.Glob(filepath.Join(s.root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		imports := map[string]string{}
		for _, i := range f.Imports {
			p, _ := strconv.Unquote(i.Path.Value)
			if ours(p) {
				imports[path.Base(p)] = relative(p)
			}
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.TYPE {
				continue
			}
			for _, spec := range g.Specs {
				ts := spec.(*ast.TypeSpec)
				out[ts.Name.Name] = &typeDecl{dir, ts.Type, imports}
			}
		}
	}
	return out
}

// common is what every configuration embeds: the specification's own keys.
const common = "pkg/cniconf"

// keys returns the keys of a plugin's configuration: those of every type in its
// directory that embeds the common keys, and of what it is made of. A plugin
// without keys of its own has none.
func (s *source) keys(t *testing.T, dir string) []string {
	t.Helper()
	found := map[string]bool{}
	for _, decl := range s.types(t, dir) {
		if st, ok := decl.expr.(*ast.StructType); ok && s.isConf(t, decl, st) {
			s.walk(t, decl, st, found, map[ast.Expr]bool{})
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func (s *source) isConf(t *testing.T, decl *typeDecl, st *ast.StructType) bool {
	t.Helper()
	return slices.ContainsFunc(st.Fields.List, func(f *ast.Field) bool {
		if len(f.Names) > 0 {
			return false
		}
		if sel, ok := f.Type.(*ast.SelectorExpr); ok {
			pkg, _ := sel.X.(*ast.Ident)
			if decl.imports[pkg.Name] == common {
				return true
			}
			embedded, ok := s.types(t, decl.imports[pkg.Name])[sel.Sel.Name]
			if !ok {
				return false
			}
			st, ok := embedded.expr.(*ast.StructType)
			return ok && s.isConf(t, embedded, st)
		}
		return false
	})
}

// walk collects the keys of the fields that JSON fills in.
func (s *source) walk(t *testing.T, decl *typeDecl, e ast.Expr, found map[string]bool, seen map[ast.Expr]bool) {
	t.Helper()
	if seen[e] {
		return
	}
	seen[e] = true
	switch e := e.(type) {
	case *ast.StructType:
		for _, f := range e.Fields.List {
			key := jsonKey(f)
			if key == "-" || key == "" && len(f.Names) > 0 {
				continue
			}
			if key != "" {
				found[key] = true
			}
			s.walk(t, decl, f.Type, found, seen)
		}
	case *ast.StarExpr:
		s.walk(t, decl, e.X, found, seen)
	case *ast.ArrayType:
		s.walk(t, decl, e.Elt, found, seen)
	case *ast.MapType:
		s.walk(t, decl, e.Value, found, seen)
	case *ast.Ident:
		if d, ok := s.types(t, decl.dir)[e.Name]; ok {
			s.walk(t, d, d.expr, found, seen)
		}
	case *ast.SelectorExpr:
		pkg, _ := e.X.(*ast.Ident)
		dir := decl.imports[pkg.Name]
		if dir == "" || dir == common {
			return
		}
		if d, ok := s.types(t, dir)[e.Sel.Name]; ok {
			s.walk(t, d, d.expr, found, seen)
		}
	}
}

// jsonKey is the name in a field's json tag.
func jsonKey(f *ast.Field) string {
	if f.Tag == nil {
		return ""
	}
	tag, err := strconv.Unquote(f.Tag.Value)
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
	return name
}
