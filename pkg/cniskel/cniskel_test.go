// SPDX-License-Identifier: Apache-2.0

package cniskel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/version"
)

// TestMain lets this test binary be the plugin: Main works on the process.
func TestMain(m *testing.M) {
	if mode := os.Getenv("TEST_PLUGIN"); mode != "" {
		os.Exit(plugin(mode).Main(Options{}))
	}
	os.Exit(m.Run())
}

func plugin(mode string) *Plugin {
	touch := func() {
		if p := os.Getenv("TEST_TOUCH"); p != "" {
			_ = os.WriteFile(p, nil, 0o600)
		}
	}
	verb := func(ctx context.Context, _ *Args) error {
		if mode == "wait" {
			time.Sleep(2 * signalGrace)
		}
		touch()
		switch mode {
		case "wait":
			<-ctx.Done()
			return cnierr.Wrap(cnierr.CodeTryAgain, ctx.Err(), "waiting")
		case "panic":
			panic("a bug")
		case "plain":
			return errors.New("plain")
		case "code":
			return cnierr.Config("mtu", 7, "too small")
		}
		return nil
	}
	return &Plugin{
		Name: "test", Usage: "the test plugin", Versions: version.Since("0.3.0"),
		Add: func(ctx context.Context, a *Args) (types.Result, error) {
			return &types100.Result{CNIVersion: "1.1.0"}, verb(ctx, a)
		},
		Del: verb, Check: verb, GC: verb,
	}
}

const (
	conf   = `{"cniVersion":"1.1.0","name":"net","type":"test"}`
	confGC = `{"cniVersion":"1.1.0","name":"net","type":"test","cni.dev/valid-attachments":[]}`
)

func command(t *testing.T, mode, stdin string, env ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append([]string{
		"TEST_PLUGIN=" + mode, "CNI_COMMAND=ADD", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0",
		"CNI_NETNS=/no/such/ns", "CNI_PATH=/no/such/dir",
	}, env...)
	c.Stdin = strings.NewReader(stdin)
	return c
}

func call(t *testing.T, mode, stdin string, env ...string) (stdout, stderr string, status int) {
	t.Helper()
	c := command(t, mode, stdin, env...)
	var out, errb bytes.Buffer
	c.Stdout, c.Stderr = &out, &errb
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errb.String(), c.ProcessState.ExitCode()
}

func TestMainContract(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, mode, stdin string
		env               []string
		code              uint // of the error object; 0 = success
		out               string
	}{
		{name: "add", stdin: conf, out: "{\n    \"cniVersion\": \"1.1.0\"\n}"},
		{name: "del", stdin: conf, env: []string{"CNI_COMMAND=DEL"}},
		{name: "absent verb", stdin: conf, env: []string{"CNI_COMMAND=STATUS"}},
		{name: "version", env: []string{"CNI_COMMAND=VERSION"}, out: `{"cniVersion":"1.1.0","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}` + "\n"},
		{name: "unknown command", stdin: conf, env: []string{"CNI_COMMAND=ADDD"}, code: 4},
		{name: "no container", stdin: conf, env: []string{"CNI_CONTAINERID="}, code: 4},
		{name: "bad container", stdin: conf, env: []string{"CNI_CONTAINERID=../x"}, code: 4},
		{name: "long ifname", stdin: conf, env: []string{"CNI_IFNAME=abcdefghijklmnop"}, code: 4},
		{name: "not JSON", stdin: "{", code: 6},
		{name: "no name", stdin: `{"cniVersion":"1.1.0"}`, code: 7},
		{name: "version not served", stdin: `{"cniVersion":"0.2.0","name":"n"}`, code: 1},
		{name: "version of the future", stdin: `{"cniVersion":"2.0.0","name":"n"}`, code: 1},
		{name: "check too early", stdin: `{"cniVersion":"0.3.1","name":"n"}`, env: []string{"CNI_COMMAND=CHECK"}, code: 1},
		{name: "panic", mode: "panic", stdin: conf, code: 100},
		{name: "gc without a list", mode: "panic", stdin: conf, env: []string{"CNI_COMMAND=GC"}},
		{name: "panic in gc", mode: "panic", stdin: confGC, env: []string{"CNI_COMMAND=GC"}, code: 100},
		{name: "plain error", mode: "plain", stdin: conf, code: 100},
		{name: "coded error", mode: "code", stdin: conf, code: 7},
		{name: "own netns", stdin: conf, env: []string{"CNI_NETNS=/proc/self/ns/net"}, code: 8},
		{name: "own netns at check", stdin: conf, env: []string{"CNI_NETNS=/proc/self/ns/net", "CNI_COMMAND=CHECK"}, code: 8},
		{name: "own netns at del", stdin: conf, env: []string{"CNI_NETNS=/proc/self/ns/net", "CNI_COMMAND=DEL"}, code: 8},
		{name: "own netns wanted", stdin: conf, env: []string{"CNI_NETNS=/proc/self/ns/net", "CNI_NETNS_OVERRIDE=True"}, out: "{\n    \"cniVersion\": \"1.1.0\"\n}"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if tc.mode == "" {
				tc.mode = "ok"
			}
			out, stderr, status := call(t, tc.mode, tc.stdin, tc.env...)
			if tc.code == 0 {
				if status != 0 || out != tc.out {
					t.Errorf("status %d, stdout %q, stderr %q; want %q", status, out, stderr, tc.out)
				}
				return
			}
			var e types.Error
			if err := json.Unmarshal([]byte(out), &e); err != nil {
				t.Fatalf("stdout %q is not one JSON object: %v", out, err)
			}
			if e.Code != tc.code || status != 1 || e.Msg == "" {
				t.Errorf("status %d, error %+v; want code %d", status, e, tc.code)
			}
		})
	}
}

func TestMainGuardsBeforeActing(t *testing.T) {
	t.Parallel()
	touched := t.TempDir() + "/touched"
	call(t, "ok", conf, "CNI_NETNS=/proc/self/ns/net", "TEST_TOUCH="+touched)
	if _, err := os.Stat(touched); err == nil {
		t.Error("ADD ran in our own network namespace")
	}
}

func TestMainAbout(t *testing.T) {
	t.Parallel()
	out, stderr, status := call(t, "ok", "", "CNI_COMMAND=")
	if status != 0 || out != "" || !strings.Contains(stderr, "the test plugin") || !strings.Contains(stderr, "1.1.0") {
		t.Errorf("status %d, stdout %q, stderr %q", status, out, stderr)
	}
}

func TestMainFullStdout(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	r := &run{result: &types100.Result{CNIVersion: "1.1.0"}}
	if e := r.printResult(full); e == nil || e.Code != cnierr.CodeIO {
		t.Errorf("error %+v, want code 5", e)
	}
}

// A verb that has run for a while is told to end, and still answers.
func TestMainTerminates(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		waiting := filepath.Join(t.TempDir(), "waiting")
		c := command(t, "wait", conf, "TEST_TOUCH="+waiting)
		var out bytes.Buffer
		c.Stdout = &out
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if _, err := os.Stat(waiting); err == nil {
				break
			}
		}
		if err := c.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		if c.ProcessState.ExitCode() != 1 || !strings.Contains(out.String(), `"code": 11`) {
			t.Errorf("%v: %v, %s", sig, c.ProcessState, out.String())
		}
	}
}
