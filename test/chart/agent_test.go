// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// agentProgram builds the agent from the source tree, which is another module.
func agentProgram(tb testing.TB) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "sluice-agent")
	build := exec.Command("go", "build", "-o", file, "./cmd/sluice-agent")
	build.Dir, build.Env = Root, append(os.Environ(), "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("%v\n%s", err, out)
	}
	return file
}

// The agent takes the configuration that the chart writes, with any values.
func TestAgentTakesConfig(t *testing.T) {
	agent := agentProgram(t)
	for name, values := range variants(t) {
		o, _ := mustRender(t, values).Object("ConfigMap/sluice-agent")
		data, _ := o["data"].(map[string]any)
		text, _ := data["agent.yaml"].(string)
		file := filepath.Join(t.TempDir(), "agent.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(agent, "check-config", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s\n%s", name, err, out, text)
		}
	}
}

// values.config has the keys of the agent's own schema, no more, and its defaults. The socket of the runtime has another one, because
// the container gets its directory only.
func TestAgentSchema(t *testing.T) {
	out, err := exec.Command(agentProgram(t), "schema").Output()
	if err != nil {
		t.Fatal(err)
	}
	type property struct {
		Default    any                  `json:"default"`
		Properties map[string]*property `json:"properties"`
	}
	agent := &property{}
	if err := json.Unmarshal(out, agent); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{}
	var walk func(path string, p *property)
	walk = func(path string, p *property) {
		if p.Properties == nil {
			want[path] = p.Default
		}
		for k, below := range p.Properties {
			walk(path+"."+k, below)
		}
	}
	walk("config", agent)
	have := map[string]any{}
	for path, v := range defaults(t) {
		if _, object := v.(map[string]any); !object && strings.HasPrefix(path, "config.") {
			have[path] = v
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(have))); diff != "" {
		t.Errorf("keys (-agent +chart):\n%s", diff)
	}
	// The chart knows the runtime's socket, and gives the rights that policies need.
	others := []string{"config.runtimeEndpoint", "config.networkPolicy.enabled"}
	for path, def := range want {
		if !slices.Contains(others, path) && !equal(def, have[path]) {
			t.Errorf("%s: the agent's default is %v, the chart's %v", path, def, have[path])
		}
	}
}

// equal compares values as JSON has them. Durations have many forms: 5m is 5m0s.
func equal(a, b any) bool {
	x, isText := a.(string)
	y, alsoText := b.(string)
	if isText && alsoText {
		d, err := time.ParseDuration(x)
		e, err2 := time.ParseDuration(y)
		return x == y || err == nil && err2 == nil && d == e
	}
	return cmp.Equal(a, b)
}
