// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// programs holds the binaries under test, built once for the whole suite.
var programs *testbin.Set

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == leaseIPAM {
		os.Exit(runLeaseIPAM())
	}
	set, err := testbin.Build()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = set
	code := m.Run()
	if err := set.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

type object map[string]any

// node is one node with one pod, whose plugins are called one by one.
type node struct {
	*netlab.Lab
	pod      *netlab.Pod
	programs *testbin.Set
}

func newNode(t testing.TB) *node {
	t.Helper()
	l := netlab.NewT(t)
	return &node{l, l.Node.PodT(t, "pod"), programs}
}

// call runs one plugin for the pod's attachment.
func (n *node) call(plugin, verb string, env map[string]string, conf object) (string, error) {
	all := map[string]string{"CNI_CONTAINERID": "pod", "CNI_NETNS": n.pod.Path, "CNI_IFNAME": "eth0"}
	switch verb {
	case "GC", "STATUS", "VERSION": // libcni gives these nothing
		all = map[string]string{"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": ""}
	}
	maps.Copy(all, env)
	stdin, err := json.Marshal(conf)
	if err != nil {
		return "", err
	}
	return n.programs.Run(testbin.Call{Plugin: plugin, Verb: verb, Env: all, Stdin: stdin, Do: n.Node.Do})
}

// versions lists the specification's, oldest first.
func versions() []string {
	return []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
}

func atLeast(t testing.TB, v, min string) bool {
	t.Helper()
	ok, err := version.GreaterThanOrEqualTo(v, min)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// since is the first version a plugin serves.
func since(plugin string) string {
	switch plugin {
	case "firewall":
		return "0.4.0"
	case "vrf":
		return "0.3.1"
	}
	return "0.1.0"
}

// verbSince is the first version that has a verb.
func verbSince(verb string) string {
	switch verb {
	case "CHECK":
		return "0.4.0"
	case "GC", "STATUS":
		return "1.1.0"
	}
	return "0.1.0"
}

// wantCode wants a CNI error of one code.
func wantCode(t testing.TB, what string, err error, code uint) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Errorf("%s: %v, want a CNI error with code %d", what, err, code)
	}
}

// decode reads a result by the specification library's own types of a version.
func decode(t testing.TB, v, text string) object {
	t.Helper()
	if _, err := create.Create(v, []byte(text)); err != nil {
		t.Fatalf("the result is not one of %s: %v\n%s", v, err, text)
	}
	var o object
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return o
}
