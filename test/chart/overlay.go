// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

const licence = "# SPDX-License-Identifier: Apache-2.0\n"

// operation is one of RFC 6902.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Overlay returns the files of a kustomize overlay that makes want of base: patches for objects that differ, and a file with those that
// base lacks. comment is its first line.
func Overlay(comment string, base, want *Rendered) (map[string]string, error) {
	type target struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
	}
	type patch struct {
		Target target `json:"target"`
		Patch  string `json:"patch"`
	}
	kustomization := struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Resources  []string `json:"resources"`
		Patches    []patch  `json:"patches,omitempty"`
	}{"kustomize.config.k8s.io/v1beta1", "Kustomization", []string{"../../base"}, nil}
	more := ""
	for _, o := range want.Objects {
		old, ok := base.Object(o.ID())
		if !ok {
			text, err := yaml.Marshal(o)
			if err != nil {
				return nil, err
			}
			more += "---\n" + string(text)
			continue
		}
		ops := difference("", map[string]any(old), map[string]any(o))
		if len(ops) == 0 {
			continue
		}
		text, err := yaml.Marshal(ops)
		if err != nil {
			return nil, err
		}
		_, name, _ := strings.Cut(o.ID(), "/")
		kustomization.Patches = append(kustomization.Patches, patch{target{o.Kind(), name}, string(text)})
	}
	for _, o := range base.Objects {
		if _, ok := want.Object(o.ID()); !ok {
			return nil, fmt.Errorf("%s is in the base only", o.ID())
		}
	}
	files := map[string]string{}
	if more != "" {
		files["more.yaml"] = licence + more
		kustomization.Resources = append(kustomization.Resources, "more.yaml")
	}
	text, err := yaml.Marshal(kustomization)
	if err != nil {
		return nil, err
	}
	files["kustomization.yaml"] = licence + "# " + comment + "\n" + string(text)
	return files, nil
}

// difference returns what makes want of have. Lists of one length are compared element by element, others are replaced whole.
func difference(path string, have, want any) []operation {
	if reflect.DeepEqual(have, want) {
		return nil
	}
	switch want := want.(type) {
	case map[string]any:
		have, ok := have.(map[string]any)
		if !ok {
			break
		}
		var ops []operation
		keys := map[string]bool{}
		for k := range have {
			keys[k] = true
		}
		for k := range want {
			keys[k] = true
		}
		for _, k := range slices.SortedFunc(maps.Keys(keys), cmp.Compare) {
			below := path + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(k)
			before, was := have[k]
			after, is := want[k]
			switch {
			case !is:
				ops = append(ops, operation{Op: "remove", Path: below})
			case !was:
				ops = append(ops, operation{Op: "add", Path: below, Value: after})
			default:
				ops = append(ops, difference(below, before, after)...)
			}
		}
		return ops
	case []any:
		have, ok := have.([]any)
		if !ok || len(have) != len(want) {
			break
		}
		var ops []operation
		for i := range want {
			ops = append(ops, difference(fmt.Sprintf("%s/%d", path, i), have[i], want[i])...)
		}
		return ops
	}
	return []operation{{Op: "replace", Path: path, Value: want}}
}
