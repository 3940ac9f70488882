// SPDX-License-Identifier: Apache-2.0

// Package chart renders the Helm chart of deploy/helm/sluice with Helm's own libraries, and makes the plain manifests and kustomize
// overlays from it. Its tests check the chart. It is a module of its own: Helm's libraries belong into no program of Sluice.
package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/releaseutil"
	"sigs.k8s.io/yaml"
)

// Places in the source tree, from this folder.
const (
	Root = "../.."
	Dir  = Root + "/deploy/helm/sluice"
)

// KubeVersion is what the plain manifests are rendered for.
const KubeVersion = "v1.34.0"

// namespace is where the chart and the plain manifests are installed.
const namespace = "kube-system"

// Object is one object of a manifest, as YAML decodes it.
type Object map[string]any

// Kind is the kind of the object.
func (o Object) Kind() string { s, _ := o["kind"].(string); return s }

// ID is kind and name, which are unique in the chart.
func (o Object) ID() string {
	meta, _ := o["metadata"].(map[string]any)
	return fmt.Sprintf("%s/%s", o.Kind(), meta["name"])
}

// Rendered is what "helm template" prints, and what "helm install" says.
type Rendered struct {
	Manifest string
	Objects  []Object
	Notes    string
}

// Render is "helm template sluice DIR -n kube-system --kube-version V" with these values. The values are checked by the schema first.
func Render(values map[string]any, kubeVersion string) (*Rendered, error) {
	ch, err := loader.LoadDir(Dir)
	if err != nil {
		return nil, err
	}
	return render(ch, values, kubeVersion)
}

func render(ch *chart.Chart, values map[string]any, kubeVersion string) (*Rendered, error) {
	version, err := chartutil.ParseKubeVersion(kubeVersion)
	if err != nil {
		return nil, err
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = *version
	if !chartutil.IsCompatibleRange(ch.Metadata.KubeVersion, version.Version) {
		return nil, fmt.Errorf("the chart wants Kubernetes %s, the cluster has %s", ch.Metadata.KubeVersion, version.Version)
	}
	all, err := chartutil.ToRenderValues(ch, values, chartutil.ReleaseOptions{
		Name: "sluice", Namespace: namespace, Revision: 1, IsInstall: true,
	}, capabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.Render(ch, all)
	if err != nil {
		return nil, err
	}
	r := &Rendered{}
	for name, text := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			r.Notes = text
			delete(files, name)
		}
	}
	_, manifests, err := releaseutil.SortManifests(files, nil, releaseutil.InstallOrder)
	if err != nil {
		return nil, err
	}
	for _, m := range manifests {
		text := strings.TrimSpace(m.Content) + "\n" // a block at the end keeps its line's end
		r.Manifest += "---\n" + text
		o := Object{}
		if err := yaml.UnmarshalStrict([]byte(text), &o); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Name, err)
		}
		r.Objects = append(r.Objects, o)
	}
	return r, nil
}

// Object returns the object of that kind and name.
func (r *Rendered) Object(id string) (Object, bool) {
	i := slices.IndexFunc(r.Objects, func(o Object) bool { return o.ID() == id })
	if i < 0 {
		return nil, false
	}
	return r.Objects[i], true
}

// Profiles returns the names of the profiles, sorted.
func Profiles() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(Dir, "profiles", "*.yaml"))
	if err != nil {
		return nil, err
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".yaml")
	}
	return files, nil
}

// Profile reads the values of a profile.
func Profile(name string) (map[string]any, error) {
	text, err := os.ReadFile(filepath.Join(Dir, "profiles", name+".yaml"))
	if err != nil {
		return nil, err
	}
	values := map[string]any{}
	return values, yaml.UnmarshalStrict(text, &values)
}
