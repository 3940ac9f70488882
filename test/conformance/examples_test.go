// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/sluice-cni/sluice/pkg/test/require"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

var jsonBlock = regexp.MustCompile("(?ms)^```json\n(.*?)^```$")

// The examples of the plugins' READMEs and of docs/ are configurations that the
// plugins accept: STATUS refuses what ADD would.
func TestPrivilegedExamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../plugins/*/*/README.md")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "../../docs/install-runtimes.md")
	if len(files) < 19 {
		t.Fatalf("only %q", files)
	}
	for _, file := range files {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			n := exampleNode(t)
			for _, m := range jsonBlock.FindAllSubmatch(text, -1) {
				for _, conf := range exampleConfs(t, m[1]) {
					acceptable(t, n, conf)
				}
			}
		})
	}
}

// exampleConfs returns the plugins of an example as a runtime would call them: of
// a list, or of the configuration of a single plugin.
func exampleConfs(t *testing.T, text []byte) []object {
	t.Helper()
	var probe struct {
		Name    string   `json:"name"`
		Plugins []object `json:"plugins"`
	}
	if err := json.Unmarshal(text, &probe); err != nil {
		t.Errorf("an example is no JSON: %v\n%s", err, text)
		return nil
	}
	var one object
	_ = json.Unmarshal(text, &one)
	switch {
	case probe.Plugins == nil && probe.Name == "": // a part of a configuration
		one["name"] = "example"
		probe.Plugins = []object{one}
	case probe.Plugins == nil:
		probe.Plugins = []object{one}
	default:
		if _, err := libcni.ConfListFromBytes(bytes.TrimSpace(text)); err != nil {
			t.Errorf("a list that no runtime loads: %v", err)
		}
	}
	for _, p := range probe.Plugins {
		if p["name"] == nil {
			p["name"] = probe.Name
		}
	}
	return probe.Plugins
}

// acceptable asks for STATUS, in the version that has it.
func acceptable(t *testing.T, n *node, conf object) {
	t.Helper()
	plugin, _ := conf["type"].(string)
	if !slices.Contains(testbin.Plugins(), plugin) {
		t.Errorf("an example of the type %q, which is none of ours", plugin)
		return
	}
	if kind := map[string]string{"ipvlan": "ipvlan", "vlan": "vlan", "dummy": "dummy", "vrf": "vrf", "macvlan": "macvlan"}[plugin]; kind != "" && !require.HasLink(t, kind) {
		return
	}
	conf["cniVersion"] = "1.1.0"
	_, err := n.call(plugin, "STATUS", nil, conf)
	if err != nil && !strings.Contains(err.Error(), "dhcp daemon") && !strings.Contains(err.Error(), "whereabouts.kubeconfig") { // which are not here
		t.Errorf("%s: %v", plugin, err)
	}
}

// exampleNode is a node with what the examples name: devices, and flanneld's file.
func exampleNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	err := n.Node.Do(func() error {
		for _, name := range []string{"eth1", "ens5"} {
			if err := exec.Command("ip", "link", "add", name, "type", "veth", "peer", "name", name+"x").Run(); err != nil {
				return err
			}
		}
		const env = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
		return errors.Join(os.MkdirAll("/run/flannel", 0o755), os.WriteFile("/run/flannel/subnet.env", []byte(env), 0o600))
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
