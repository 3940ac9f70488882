// SPDX-License-Identifier: Apache-2.0

package cniskel

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/version"
)

// outcome is what comes of a call.
type outcome struct {
	Verb    string  // what was called
	Args    CmdArgs // without StdinData
	Stdin   string
	Code    uint
	Stdout  string
	Culprit string // words about what is missing or malformed
}

func outcomeOf(verb string, args CmdArgs, err *types.Error, stdout string) outcome {
	o := outcome{Verb: verb, Args: args, Stdin: string(args.StdinData), Stdout: stdout}
	o.Args.StdinData = nil
	if err != nil {
		o.Code = err.Code
		for _, words := range []string{
			"required env variables [", "invalid characters in containerID", "interface name is too long", "interface name is . or ..",
			"interface name contains", "missing network name", "invalid characters found in network name", "incompatible CNI versions",
			"an interface name has no slash", "config version does not allow ", "plugin version does not allow ", "unknown CNI_COMMAND: ",
			`network "net" takes no new pods`,
		} {
			if i := strings.Index(err.Msg, words); i >= 0 {
				o.Culprit = err.Msg[i:] + "; " + err.Details
			}
		}
	}
	return o
}

// ofSkeleton is the call under upstream's skeleton, which works on the process.
func ofSkeleton(t *testing.T, env map[string]string, stdin string) outcome {
	t.Helper()
	for _, v := range variables {
		t.Setenv(v, env[v])
	}
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.WriteFile(in, []byte(stdin), 0o600); err != nil {
		t.Fatal(err)
	}
	savedIn, savedOut := os.Stdin, os.Stdout
	defer func() { os.Stdin, os.Stdout = savedIn, savedOut }()
	var err error
	if os.Stdin, err = os.Open(in); err != nil {
		t.Fatal(err)
	}
	defer os.Stdin.Close()
	if os.Stdout, err = os.Create(out); err != nil {
		t.Fatal(err)
	}
	defer os.Stdout.Close()
	var verb string
	var args CmdArgs
	called := func(name string) func(*skel.CmdArgs) error {
		return func(a *skel.CmdArgs) error {
			verb, args = name, CmdArgs{a.ContainerID, a.Netns, a.IfName, a.Args, a.Path, a.NetnsOverride, a.StdinData}
			return nil
		}
	}
	e := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add: called("ADD"), Del: called("DEL"), Check: called("CHECK"), GC: called("GC"), Status: called("STATUS"),
	}, version.Since("0.3.0"), "")
	printed, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return outcomeOf(verb, args, e, string(printed))
}

func ofOurs(env map[string]string, stdin string) outcome {
	var verb string
	var args CmdArgs
	called := func(name string) func(context.Context, *Args) error {
		return func(_ context.Context, a *Args) error { verb, args = name, a.CmdArgs; return nil }
	}
	r := &run{plugin: &Plugin{
		Name: "test", Versions: version.Since("0.3.0"),
		Add: func(ctx context.Context, a *Args) (types.Result, error) {
			return &types100.Result{}, called("ADD")(ctx, a)
		},
		Del: called("DEL"), Check: called("CHECK"), GC: called("GC"), Status: called("STATUS"),
	}}
	var out, stderr bytes.Buffer
	e := r.call(stdio{func(v string) string { return env[v] }, strings.NewReader(stdin), &out, &stderr})
	return outcomeOf(verb, args, e, out.String())
}

var variables = []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH", "CNI_NETNS_OVERRIDE"}

// Upstream's skeleton accepts, refuses and passes on the same.
func TestProtocol(t *testing.T) {
	whole := map[string]string{
		"CNI_CONTAINERID": "c1", "CNI_NETNS": "/no/such/ns", "CNI_IFNAME": "eth0", "CNI_ARGS": "A=b", "CNI_PATH": "/no/such/dir", "CNI_NETNS_OVERRIDE": "x",
	}
	changes := []map[string]string{
		{}, {"CNI_CONTAINERID": "../x"}, {"CNI_CONTAINERID": ".x"}, {"CNI_CONTAINERID": "a_B.c-9"}, {"CNI_CONTAINERID": "é"}, {"CNI_CONTAINERID": "a\n"},
		{"CNI_IFNAME": "abcdefghijklmnop"}, {"CNI_IFNAME": "abcdefghijklmno"}, {"CNI_IFNAME": "."}, {"CNI_IFNAME": ".."}, {"CNI_IFNAME": "a/b"}, {"CNI_IFNAME": "a:b"},
		{"CNI_IFNAME": "a b"}, {"CNI_IFNAME": "a\u2003b"}, {"CNI_IFNAME": "éd"}, {"CNI_IFNAME": "a/b", "CNI_CONTAINERID": ""},
	}
	for _, v := range variables[1:] {
		changes = append(changes, map[string]string{v: ""}, map[string]string{v: "", "CNI_PATH": ""})
	}
	const net = `{"cniVersion":"1.1.0","name":"net","type":"test","cni.dev/valid-attachments":[]}`
	docs := []string{net}
	for _, v := range []string{"0.1.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.2.0", "2.0.0", "x", "1", "1.x.0", "1.1.0.0", ""} {
		docs = append(docs, strings.Replace(net, "1.1.0", v, 1))
	}
	docs = append(docs, ``, `{`, `[]`, `null`, `{}`, `{"name":7}`, `{"name":"a b"}`, `{"name":"-a"}`, `{"NAME":"n","CNIVersion":"1.0.0"}`, `{"name":"n","cniVersion":1}`)
	try := func(command string, change map[string]string, doc string) {
		env := map[string]string{"CNI_COMMAND": command}
		for _, from := range []map[string]string{whole, change} {
			for k, v := range from {
				env[k] = v
			}
		}
		t.Run(fmt.Sprintf("%s %v %s", command, change, doc), func(t *testing.T) {
			if d := cmp.Diff(ofSkeleton(t, env, doc), ofOurs(env, doc)); d != "" {
				t.Errorf("the skeleton (-), ours (+):\n%s", d)
			}
		})
	}
	for _, command := range []string{"", "ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "ADDD"} {
		for _, c := range changes {
			try(command, c, net)
		}
		if command == "ADDD" {
			continue // ours says so before it looks at the configuration
		}
		for _, doc := range docs {
			try(command, nil, doc)
		}
	}
}

// Upstream's skeleton accepts a name for ADD that the kernel changes ("eth%d"). Sluice's refuses it. Both accept it for CHECK
// and DEL.
func TestTemplateName(t *testing.T) {
	for _, name := range []string{"é%d", "eth%d", "a\x01", "a\x7f"} {
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			env := map[string]string{"CNI_COMMAND": command, "CNI_CONTAINERID": "c", "CNI_IFNAME": name, "CNI_NETNS": "/no/such/ns", "CNI_PATH": "/x"}
			const doc = `{"cniVersion":"1.1.0","name":"net"}`
			want := ofSkeleton(t, env, doc)
			if command == "ADD" {
				want = outcome{Code: 4, Culprit: cniconf.BadIfName(name) + "; "}
			}
			if d := cmp.Diff(want, ofOurs(env, doc)); d != "" {
				t.Errorf("%s %q (-want +got):\n%s", command, name, d)
			}
		}
	}
}

// What is malformed is named with its value.
func TestMalformed(t *testing.T) {
	for name, value := range map[string]string{"CNI_IFNAME": "a/b", "CNI_CONTAINERID": "../x"} {
		env := map[string]string{"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0", "CNI_PATH": "/x", name: value}
		_, _, err := stdio{getenv: func(v string) string { return env[v] }}.readCall()
		if want := fmt.Sprintf("invalid %s %q: ", name, value); err == nil || !strings.HasPrefix(err.Msg, want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A closed network refuses new pods, and serves all that the pods need that it has.
func TestClosed(t *testing.T) {
	for command, code := range map[string]uint{"ADD": 11, "STATUS": 50, "DEL": 0, "CHECK": 0, "GC": 0} {
		env := map[string]string{"CNI_COMMAND": command, "CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0", "CNI_NETNS": "/no/such/ns", "CNI_PATH": "/x"}
		const doc = `{"cniVersion":"1.1.0","name":"net","closed":%t,"cni.dev/valid-attachments":[]}`
		closed := ofOurs(env, fmt.Sprintf(doc, true))
		if open := ofOurs(env, fmt.Sprintf(doc, false)); open.Verb != command {
			t.Errorf("%s, open: %+v", command, open)
		}
		if code == 0 {
			if closed.Verb != command || closed.Code != 0 {
				t.Errorf("%s: %+v", command, closed)
			}
		} else if closed.Code != code || closed.Verb != "" || !strings.Contains(closed.Culprit, `network "net" takes no new pods`) {
			t.Errorf("%s: %+v", command, closed)
		}
	}
}
