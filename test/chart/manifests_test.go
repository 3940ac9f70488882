// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write the files that are made from the chart")

const manifestHead = licence + `# Rendered from deploy/helm/sluice with its default values: make chart-generate.
# Set the image before you apply it, and clusterCIDRs and serviceCIDRs in the ConfigMap. docs/install-kubernetes.md says how.
`

// generated are all files that are made from the chart, by their path below deploy.
func generated(tb testing.TB) map[string]string {
	tb.Helper()
	base := mustRender(tb, nil)
	files := map[string]string{
		"kustomize/base/sluice.yaml": manifestHead + base.Manifest,
		"kustomize/base/kustomization.yaml": licence + `# The plain manifests, to be changed by overlays.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [sluice.yaml]
`,
	}
	for name, text := range ipam(tb) {
		files["ipam/"+name] = text
	}
	for name, values := range overlays(tb) {
		comment := "What profiles/" + name + ".yaml of the Helm chart makes: make chart-generate."
		if name == "remove" {
			comment = "Takes Sluice off each node (docs/operations.md): make chart-generate."
		}
		overlay, err := Overlay(comment, base, mustRender(tb, values))
		if err != nil {
			tb.Fatal(err)
		}
		for file, text := range overlay {
			files["kustomize/overlays/"+name+"/"+file] = text
		}
	}
	return files
}

// ipam are the parts of the chart that cluster-wide addresses need: the definitions, the rights of nodes, further ones for addresses that are
// kept, what bounds them all, and what the agent needs to make the kubeconfigs.
func ipam(tb testing.TB) map[string]string {
	tb.Helper()
	const head = licence + `# Rendered from deploy/helm/sluice: make chart-generate. docs/ipam.md says how to use it without the chart.
`
	files := map[string]string{}
	r := mustRender(tb, set(tb, "ipam.enabled=true", "ipam.keptAddresses=true"))
	for i, text := range strings.Split(r.Manifest, "---\n")[1:] {
		name := "agent.yaml"
		switch o := r.Objects[i]; {
		case o.Kind() == "CustomResourceDefinition":
			name = "crds.yaml"
		case strings.HasSuffix(o.ID(), "/sluice-ipam-kept-addresses"):
			name = "kept-addresses.yaml"
		case strings.HasSuffix(o.ID(), "/sluice-ipam") && strings.HasPrefix(o.Kind(), "Validating"):
			name = "admission.yaml"
		case strings.HasSuffix(o.ID(), "/sluice-ipam"):
			name = "rbac.yaml"
		case !strings.Contains(o.ID(), "ipam"):
			continue
		}
		if files[name] == "" {
			files[name] = head
		}
		files[name] += "---\n" + text
	}
	return files
}

// The rights of a node in the plain manifests are those that docs/ipam.md names: of pods it reads none, unless addresses are kept.
func TestIPAMRights(t *testing.T) {
	files := ipam(t)
	for name, want := range map[string]bool{"rbac.yaml": false, "kept-addresses.yaml": true} {
		text, err := os.ReadFile(filepath.Join(Root, "deploy/ipam", name))
		if err != nil {
			t.Error(err)
		}
		for _, resource := range []string{"pods", "statefulsets", "ipamclaims"} {
			if has := strings.Contains(string(text), "resources: ["+resource+"]"); has != want {
				t.Errorf("%s: rights of %s: %v", name, resource, has)
			}
		}
	}
	if !strings.Contains(files["admission.yaml"], "kind: ValidatingAdmissionPolicyBinding") {
		t.Errorf("nothing bounds what a node does with a pool:\n%s", files["admission.yaml"])
	}
}

func overlays(tb testing.TB) map[string]map[string]any {
	tb.Helper()
	all := map[string]map[string]any{"remove": {"mode": "remove"}}
	profiles, err := Profiles()
	if err != nil {
		tb.Fatal(err)
	}
	for _, p := range profiles {
		all[p] = mustProfile(tb, p)
	}
	return all
}

// What is made from the chart is as committed, and there is nothing else.
func TestManifests(t *testing.T) {
	deploy := filepath.Join(Root, "deploy")
	files := generated(t)
	if *update {
		if err := os.RemoveAll(filepath.Join(deploy, "kustomize")); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			path := filepath.Join(deploy, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, want := range files {
		have, err := os.ReadFile(filepath.Join(deploy, name))
		if err != nil {
			t.Error(err)
		} else if diff := cmp.Diff(want, string(have)); diff != "" {
			t.Errorf("deploy/%s: run make chart-generate (-want +got):\n%s", name, diff)
		}
	}
	err := filepath.WalkDir(filepath.Join(deploy, "kustomize"), func(path string, d os.DirEntry, err error) error {
		name := strings.TrimPrefix(path, deploy+"/")
		if err == nil && !d.IsDir() && files[name] == "" {
			t.Errorf("deploy/%s is not made from the chart", name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// An overlay makes what the chart makes of the same values.
func TestKustomize(t *testing.T) {
	all := overlays(t)
	all[""] = nil // the base
	for name, values := range all {
		dir := filepath.Join(Root, "deploy/kustomize/overlays", name)
		if name == "" {
			dir = filepath.Join(Root, "deploy/kustomize/base")
		}
		built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
		if err != nil {
			t.Errorf("%s: %v", dir, err)
			continue
		}
		text, err := built.AsYaml()
		if err != nil {
			t.Fatal(err)
		}
		var have []Object
		for doc := range strings.SplitSeq(string(text), "\n---\n") {
			o := Object{}
			if err := yaml.UnmarshalStrict([]byte(doc+"\n"), &o); err != nil {
				t.Fatalf("%s: %v", dir, err)
			}
			have = append(have, o)
		}
		want := mustRender(t, values).Objects
		for _, objects := range [][]Object{have, want} {
			slices.SortFunc(objects, func(a, b Object) int { return strings.Compare(a.ID(), b.ID()) })
		}
		if diff := cmp.Diff(want, have); diff != "" {
			t.Errorf("%s and the chart (-chart +kustomize):\n%s", dir, diff)
		}
	}
}
