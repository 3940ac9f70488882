// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// Where the suites find plugins, on a node of their own.
const (
	oursDir  = "/run/under-test"
	theirDir = "/run/reference"
	echoDir  = "/run/echo"
)

// The two forms of a suite's program.
const (
	plain   = ".plain.test"   // calls upstream's functions
	wrapped = ".wrapped.test" // executes the plugins in oursDir
)

// prepare fetches the suites into dir and leaves in out all that a run needs: test programs, our programs, and upstream's
// plugins with a prefix.
func prepare(ctx context.Context, dir, out string, chosen []suite) error {
	src := filepath.Join(dir, "src")
	if err := fetch(ctx, src); err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "compiling %d suites of %s %s\n", len(chosen), testbin.ReferenceModule, testbin.ReferenceVersion)
	var names []string
	for _, s := range suites() {
		names = append(names, s.plugin)
	}
	theirs, err := testbin.Reference(ctx, names...)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := os.Symlink(filepath.Join(theirs, name), filepath.Join(out, prefix+name)); err != nil {
			return err
		}
	}
	for _, end := range []string{"server", "client"} {
		if err := goRun(ctx, src, "build", "-o", filepath.Join(out, echoPrefix+end), "./pkg/testutils/echo/"+end); err != nil {
			return err
		}
	}
	for _, s := range chosen {
		if err := compile(ctx, src, out, s); err != nil {
			return fmt.Errorf("the suite of %s: %w", s.plugin, err)
		}
	}
	var programs []string
	for _, p := range install.Programs() {
		programs = append(programs, p.Name)
	}
	return testbin.BuildPrograms(out, programs...)
}

// The prepared directory is flat: prefixes of upstream's plugins and of its echo programs.
const (
	prefix     = "reference-"
	echoPrefix = "echo-"
)

// goRun runs the go command, in this workspace or in a directory of upstream's.
func goRun(ctx context.Context, dir string, args ...string) error {
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = dir
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if dir != "" {
		c.Env = append(c.Env, "GOWORK=off", "GOFLAGS=-mod=mod") // it looks up what the suites need besides the plugins
	}
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// fetch copies the module with its tests.
func fetch(ctx context.Context, dir string) error {
	c := exec.CommandContext(ctx, "go", "mod", "download", "-json", testbin.ReferenceModule+"@"+testbin.ReferenceVersion)
	c.Dir = os.TempDir() // outside of this module, which does not have it
	out, err := c.Output()
	if err != nil {
		return fmt.Errorf("fetch the reference: %w: %s", err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		return err
	}
	return os.CopyFS(dir, os.DirFS(module.Dir))
}

// compile makes both forms of a suite.
func compile(ctx context.Context, src, out string, s suite) error {
	pkg := filepath.Join(src, testbin.ReferencePackage(s.plugin))
	build := func(form string) error {
		return goRun(ctx, pkg, "test", "-c", "-ldflags", "-s -w", "-o", filepath.Join(out, s.plugin+form), ".")
	}
	if err := built(pkg, theirDir); err != nil {
		return err
	}
	if err := build(plain); err != nil {
		return err
	}
	if err := built(pkg, oursDir); err != nil {
		return err
	}
	if err := wrap(pkg, s.plugin); err != nil {
		return err
	}
	return build(wrapped)
}

var (
	pluginProgram = regexp.MustCompile(`(?:gexec\.Build\("` + testbin.ReferenceModule + `/plugins/main/|"/run/(?:reference|under-test)/)([a-z-]+)"(?:\)|, error\(nil\))`)
	echoProgram   = regexp.MustCompile(`gexec\.Build\("` + testbin.ReferenceModule + `/pkg/testutils/echo/([a-z]+)"\)`)
)

// built has the suite take programs that are there, the plugins from dir, instead of building them.
func built(pkg, dir string) error {
	return rewrite(pkg, "_suite_test.go", func(text string) string {
		text = echoProgram.ReplaceAllString(text, `"`+echoDir+`/$1", error(nil)`)
		return pluginProgram.ReplaceAllString(text, `"`+dir+`/$1", error(nil)`)
	})
}

var verbFunc = regexp.MustCompile(`(?m)^func cmd(Add|Del|Check|Status|GC)\(`)

// wrap replaces the plugin's functions.
func wrap(pkg, plugin string) error {
	var verbs []string
	err := rewrite(pkg, ".go", func(text string) string {
		for _, m := range verbFunc.FindAllStringSubmatch(text, -1) {
			verbs = append(verbs, m[1])
		}
		return verbFunc.ReplaceAllString(text, "func reference$1(")
	})
	if err != nil {
		return err
	}
	var b strings.Builder
	b.WriteString(wrapper)
	for _, v := range verbs {
		fmt.Fprintf(&b, "func cmd%s(a *skel.CmdArgs) error { return underTest(%q, %q, a) }\n\nvar _ = reference%s\n\n", v, filepath.Join(oursDir, plugin), strings.ToUpper(v), v)
	}
	return os.WriteFile(filepath.Join(pkg, "wrapped_by_sluice.go"), []byte(b.String()), 0o644)
}

// wrapper runs a plugin as skel's caller would, and returns its error as skel would have.
const wrapper = `package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

func underTest(program, verb string, a *skel.CmdArgs) error {
	c := exec.Command(program)
	c.Env = append(os.Environ(), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+a.ContainerID, "CNI_NETNS="+a.Netns, "CNI_IFNAME="+a.IfName, "CNI_ARGS="+a.Args)
	if os.Getenv("CNI_PATH") == "" {
		c.Env = append(c.Env, "CNI_PATH="+os.Getenv("PATH"))
	}
	if a.Path != "" {
		c.Env = append(c.Env, "CNI_PATH="+a.Path)
	}
	var stdout, stderr bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = bytes.NewReader(a.StdinData), &stdout, &stderr
	if err := c.Run(); err != nil {
		var e types.Error
		if json.Unmarshal(stdout.Bytes(), &e) == nil && e.Msg != "" {
			return &e
		}
		return fmt.Errorf("%w: %s%s", err, stdout.String(), stderr.String())
	}
	_, err := os.Stdout.Write(stdout.Bytes())
	return err
}

`

// rewrite changes the Go files of a directory whose names end so; with ".go", tests are left alone.
func rewrite(dir, suffix string, f func(string) string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		return err
	}
	for _, name := range files {
		if suffix == ".go" && (strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, "_windows.go")) {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(f(string(text))), 0o644); err != nil {
			return err
		}
	}
	return nil
}
