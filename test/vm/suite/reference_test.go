// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// managesWithout are tests that compare with upstream where it can be built, and see what ours does elsewhere too.
var managesWithout = regexp.MustCompile("^TestPrivileged(Parity|BridgeUplink|ClientsWithoutPrograms|HostPortFromOtherSuite)")

// A machine has no Go to build upstream's plugins with. So no test there may
// ask for them, itself or through a helper of its package, unless they are given to it.
func TestUpstreamIsNotHere(t *testing.T) {
	packages, err := Find(t.Context(), "../../..")
	if err != nil {
		t.Fatal(err)
	}
	left, seen := regexp.MustCompile(NotHere.Pattern()+"|"+WithReference.Pattern()), 0
	for _, p := range packages {
		calls := callsOf(t, p.Dir)
		for _, name := range p.Tests {
			if managesWithout.MatchString(name) || !reaches(calls, name, "testbin.Reference", map[string]bool{}) {
				continue
			}
			seen++
			if !left.MatchString(name) {
				t.Errorf("%s %s needs the reference plugins, and WithReference does not match it", p.Path, name)
			}
		}
	}
	if seen < 5 {
		t.Errorf("%d tests ask for the reference plugins: is it still testbin.Reference?", seen)
	}
}

// callsOf has for each function of a package's tests the names in it.
func callsOf(t *testing.T, dir string) map[string][]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string][]string{}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok {
						calls[fn.Name.Name] = append(calls[fn.Name.Name], x.Name+"."+n.Sel.Name, n.Sel.Name)
					}
				case *ast.Ident:
					calls[fn.Name.Name] = append(calls[fn.Name.Name], n.Name)
				}
				return true
			})
		}
	}
	return calls
}

func reaches(calls map[string][]string, from, to string, seen map[string]bool) bool {
	if from == to {
		return true
	}
	if seen[from] || strings.Contains(from, ".") {
		return false
	}
	seen[from] = true
	for _, next := range calls[from] {
		if reaches(calls, next, to, seen) {
			return true
		}
	}
	return false
}

func TestData(t *testing.T) {
	files := []string{"go.mod", "loader/a.go", "loader/testdata/x.json", "loaderx/testdata/y", "plugins/main/bridge/README.md", "docs/install-runtimes.md", "docs/dev/style.md"}
	for pkg, want := range map[string]string{
		"loader": "go.mod loader/testdata/x.json", "test/conformance": "go.mod plugins/main/bridge/README.md docs/install-runtimes.md",
	} {
		if got := strings.Join(Data(Package{Path: pkg}, files), " "); got != want {
			t.Errorf("%s: %s, want %s", pkg, got, want)
		}
	}
}
