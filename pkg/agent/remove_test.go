// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// A removal takes back the annotations that an agent of Sluice has set on its own node, and no others.
func TestRemoveAnnotations(t *testing.T) {
	t.Parallel()
	flannel := []string{"backend-type", "backend-data", "backend-v6-data", "public-ip", "public-ipv6", "kube-subnet-manager"}
	spoken := map[string]string{"example.org/a": "b", "flannel.alpha.coreos.com/public-ip-overwrite": "192.0.2.9"}
	for _, key := range flannel {
		spoken["flannel.alpha.coreos.com/"+key] = "x"
	}
	with := func(more map[string]string) map[string]string {
		all := maps.Clone(spoken)
		maps.Copy(all, more)
		return all
	}
	for name, tt := range map[string]struct {
		has  map[string]string // nil: there is no such node
		want []string
	}{
		"vxlan":      {with(map[string]string{"sluice-cni.io/routing": "vxlan"}), append([]string{"sluice-cni.io/routing"}, prefixed(flannel)...)},
		"host-gw":    {with(map[string]string{"sluice-cni.io/routing": "host-gw"}), append([]string{"sluice-cni.io/routing"}, prefixed(flannel)...)},
		"wireguard":  {with(map[string]string{"sluice-cni.io/routing": "wireguard", "sluice-cni.io/wireguard": "k"}), []string{"sluice-cni.io/routing", "sluice-cni.io/wireguard"}},
		"of flannel": {spoken, nil},
		"none":       {map[string]string{}, nil},
		"no node":    {nil, nil},
	} {
		var patched map[string]any
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			switch {
			case r.Method == http.MethodGet && r.URL.Path == "/api/v1/nodes" && r.URL.Query().Get("fieldSelector") == "metadata.name=m":
				items := []any{}
				if tt.has != nil {
					items = append(items, map[string]any{"metadata": map[string]any{"name": "m", "annotations": tt.has}})
				}
				_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "items": items})
			case r.Method == http.MethodPatch && r.URL.Path == "/api/v1/nodes/m":
				var body struct {
					Metadata struct{ Annotations map[string]any }
				}
				if text, err := io.ReadAll(r.Body); err != nil || json.Unmarshal(text, &body) != nil {
					t.Errorf("%s: %v", name, err)
				}
				patched = body.Metadata.Annotations
				fmt.Fprint(w, `{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "m"}}`)
			default:
				w.WriteHeader(http.StatusForbidden)
			}
		}))
		r := &removal{Options: Options{Kube: &rest.Config{Host: server.URL}, Node: "m"}}
		if err := r.removeAnnotations(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := slices.Sorted(maps.Keys(patched)); !slices.Equal(got, slices.Sorted(slices.Values(tt.want))) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		for key, value := range patched {
			if value != nil {
				t.Errorf("%s: %s is %v, not removed", name, key, value)
			}
		}
		r.Node = "another"
		if err := r.removeAnnotations(t.Context()); err == nil || !strings.Contains(err.Error(), "annotations of node another") {
			t.Errorf("%s: the API server refuses: %v", name, err)
		}
		server.Close()
	}
}

func prefixed(keys []string) (all []string) {
	for _, key := range keys {
		all = append(all, "flannel.alpha.coreos.com/"+key)
	}
	return all
}
