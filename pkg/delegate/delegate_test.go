// SPDX-License-Identifier: Apache-2.0

package delegate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
	"github.com/sluice-cni/sluice/pkg/version"
)

const conf = `{"cniVersion":"0.4.0","name":"net","ipam":{"type":"fake"},"zz":"kept"}`

func args(t *testing.T, path ...string) *cniskel.Args {
	t.Helper()
	return &cniskel.Args{CmdArgs: cniskel.CmdArgs{
		ContainerID: "c1", IfName: "eth0", Netns: "/ns", Args: "A=b",
		Path: strings.Join(path, ":"), StdinData: []byte(conf),
	}}
}

// A plugin that is this file is called in-process. Executed, it would run these tests again, without end.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_COMMAND") != "" {
		fmt.Fprintln(os.Stderr, "the tests were executed as a plugin")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// script writes an executable shell script that records its call.
func script(t *testing.T, name, body string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	text := "#!/bin/sh\ncat >\"$0.stdin\"\necho \"$CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME $CNI_NETNS $CNI_ARGS\" >\"$0.env\"\n" + body + "\n"
	if err := testbin.WriteScript(filepath.Join(dir, name), text); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestExec(t *testing.T) {
	t.Parallel()
	dir := script(t, "fake", `echo '{"ips":[{"version":"4","address":"10.0.0.2/24"}]}'`)
	res, err := (&Runner{}).Add(context.Background(), args(t, "/no/such/dir", dir), "fake")
	if err != nil {
		t.Fatal(err)
	}
	if len(res.IPs) != 1 || res.IPs[0].Address.String() != "10.0.0.2/24" || res.CNIVersion != types100.ImplementedSpecVersion {
		t.Errorf("result %+v", res)
	}
	for file, want := range map[string]string{"fake.stdin": conf, "fake.env": "ADD c1 eth0 /ns A=b\n"} {
		got, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

func TestExecErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, body string
		code       uint
	}{
		{"own code", `echo '{"code":11,"msg":"later"}'; exit 1`, 11},
		{"999", `echo '{"code":999,"msg":"x"}'; exit 1`, 100},
		{"stderr only", `echo oops >&2; exit 3`, 100},
		{"garbage", `echo oops`, 6},
		{"null", `echo null`, 6},
		{"nothing", ``, 6},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := (&Runner{}).Add(context.Background(), args(t, script(t, "fake", tc.body)), "fake")
			if e := cnierr.From(err); e == nil || e.Code != tc.code {
				t.Errorf("error %+v, want code %d", e, tc.code)
			}
		})
	}
}

// A file that another process is writing is tried again, as long as the verb may last.
func TestExecBusy(t *testing.T) {
	t.Parallel()
	for name, patience := range map[string]time.Duration{"patient": time.Minute, "hurried": 50 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			dir := script(t, "fake", `echo '{}'`)
			f, err := os.OpenFile(filepath.Join(dir, "fake"), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			defer time.AfterFunc(busyPause/2, func() { f.Close() }).Stop()
			_, err = (&Runner{}).Add(ctx, args(t, dir), "fake")
			if e := cnierr.From(err); (e == nil) != (name == "patient") || e != nil && e.Code != cnierr.CodeKernel {
				t.Errorf("error %+v", e)
			}
		})
	}
}

// A plugin may leave a process behind that holds its stdout and stderr. What the
// plugin itself said counts, and the deadline too.
func TestExecLeavesProcess(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		body string
		code uint
	}{
		"succeeds": {`sleep 30 & echo '{"ips":[{"version":"4","address":"10.0.0.2/24"}]}'`, 0},
		"fails":    {`sleep 30 & echo '{"code":11,"msg":"later"}'; exit 1`, 11},
		"hangs":    {`sleep 30`, 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
			defer cancel()
			begun := time.Now()
			res, err := (&Runner{}).Add(ctx, args(t, script(t, "fake", tc.body)), "fake")
			if d := time.Since(begun); d > 20*time.Second {
				t.Errorf("it took %v", d)
			}
			if e := cnierr.From(err); e == nil && (tc.code != 0 || len(res.IPs) != 1) || e != nil && e.Code != tc.code {
				t.Errorf("result %+v, error %+v, want code %d", res, e, tc.code)
			}
		})
	}
}

func TestLookup(t *testing.T) {
	t.Parallel()
	dirNamedLikeIt := t.TempDir()
	if err := os.Mkdir(filepath.Join(dirNamedLikeIt, "fake"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, typ := range []string{"", "a/b", "fake"} {
		if e := cnierr.From((&Runner{}).Del(context.Background(), args(t, dirNamedLikeIt), typ)); e == nil || e.Code != 7 {
			t.Errorf("type %q: %+v, want code 7", typ, e)
		}
		if e := cnierr.From((&Runner{}).Status(context.Background(), args(t, dirNamedLikeIt), typ)); e == nil || e.Code != 50 {
			t.Errorf("STATUS with type %q: %+v, want code 50", typ, e)
		}
	}
}

// A line of a delegate's delegate names all of them, and no key twice.
func TestInProcessLog(t *testing.T) {
	t.Parallel()
	core, lines := observer.New(zapcore.DebugLevel)
	a := args(t)
	a.Log = log.NewCore(core).With(log.String(log.KeyPlugin, "flannel"))
	inProcess(inProcess(a, "bridge"), "host-local").Log.Info("hello")
	got := lines.All()[0]
	if got.LoggerName != "bridge.host-local" || len(got.Context) != 1 || got.ContextMap()[log.KeyPlugin] != "flannel" {
		t.Errorf("logger %q, fields %v", got.LoggerName, got.Context)
	}
}

func sameFile(t *testing.T, fi os.FileInfo, path string) bool {
	t.Helper()
	other, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return os.SameFile(fi, other)
}

func TestInProcess(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	link := filepath.Join(dir, "fake")
	if err := os.Symlink(exe, link); err != nil {
		t.Fatal(err)
	}
	var calls []string
	verb := func(name string) func(context.Context, *cniskel.Args) error {
		return func(_ context.Context, a *cniskel.Args) error {
			calls = append(calls, name+" "+string(a.StdinData))
			return nil
		}
	}
	p := &cniskel.Plugin{
		Name: "fake", Versions: version.All(), Del: verb("DEL"), Check: verb("CHECK"), Status: verb("STATUS"),
		Add: func(_ context.Context, a *cniskel.Args) (types.Result, error) {
			prev, err := cniconf.ParseResult("x", []byte(`{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"}]}`), "1.1.0")
			if err != nil {
				return nil, err
			}
			return cniconf.Convert(prev, "0.4.0")
		},
	}
	r := &Runner{InProcess: map[string]*cniskel.Plugin{"fake": p}}
	if own, err := os.Stat(selfExe); err != nil || !sameFile(t, own, exe) {
		r.Self = exe // to an emulator of another architecture, selfExe is the emulator
	}
	a := args(t, dir)
	res, err := r.Add(context.Background(), a, "fake")
	if err != nil || len(res.IPs) != 1 {
		t.Fatalf("Add: %+v, %v", res, err)
	}
	for _, f := range []func(context.Context, *cniskel.Args, string) error{r.Del, r.Check, r.GC, r.Status} {
		if err := f(context.Background(), a, "fake"); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{"DEL " + conf, "CHECK " + conf, "STATUS " + conf}, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	p.Versions = version.Since("1.0.0")
	if e := cnierr.From(r.Del(context.Background(), a, "fake")); e == nil || e.Code != 1 {
		t.Errorf("a version that is not served gave %+v, want code 1", e)
	}
	// A third party's file of the same name stands first in CNI_PATH: it is run.
	other := script(t, "fake", "")
	if err := r.Del(context.Background(), args(t, other, dir), "fake"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(other, "fake.env")); err != nil {
		t.Error("the stranger's plugin was not executed:", err)
	}
}

// A result is of the version that it says it has, as with libcni, which need not be the configuration's.
func TestResultOfAnotherVersion(t *testing.T) {
	t.Parallel()
	for conf, out := range map[string]string{
		`{"cniVersion":"1.0.0","name":"net","ipam":{"type":"fake"}}`: `{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24"}]}`,
		`{"cniVersion":"0.3.1","name":"net","ipam":{"type":"fake"}}`: `{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`,
		`{"cniVersion":"0.4.0","name":"net","ipam":{"type":"fake"}}`: `{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/24"}]}`,
		`{"cniVersion":"1.1.0","name":"net","ipam":{"type":"fake"}}`: `{"ips":[{"address":"10.0.0.2/24"}]}`,
	} {
		a := args(t, script(t, "fake", `echo '`+out+`'`))
		a.StdinData = []byte(conf)
		res, err := (&Runner{}).Add(t.Context(), a, "fake")
		if err != nil {
			t.Errorf("%s answered with %s: %v", conf, out, err)
			continue
		}
		if len(res.IPs) != 1 || res.IPs[0].Address.String() != "10.0.0.2/24" {
			t.Errorf("result %+v", res)
		}
	}
}
