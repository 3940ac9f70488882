// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
)

// node is a part of values.schema.json.
type node struct {
	Ref                  string           `json:"$ref"`
	Type                 any              `json:"type"`
	AdditionalProperties any              `json:"additionalProperties"`
	Properties           map[string]*node `json:"properties"`
	PropertyNames        *node            `json:"propertyNames"`
	Required             []string         `json:"required"`
	Items                *node            `json:"items"`
	Pattern              string           `json:"pattern"`
	AnyOf                []*node          `json:"anyOf"`
	AllOf                []*node          `json:"allOf"`
	Defs                 map[string]*node `json:"$defs"`
}

func schema(tb testing.TB) *node {
	tb.Helper()
	text, err := os.ReadFile(Dir + "/values.schema.json")
	if err != nil {
		tb.Fatal(err)
	}
	n := &node{}
	if err := json.Unmarshal(text, n); err != nil {
		tb.Fatal(err)
	}
	return n
}

// resolve follows a reference to $defs.
func (n *node) resolve(root *node) *node {
	if name, ok := strings.CutPrefix(n.Ref, "#/$defs/"); ok {
		return root.Defs[name]
	}
	return n
}

// leaves calls f with each value that the schema describes. Elements of lists are "key[]", keys of free maps "key.*".
func (n *node) leaves(root *node, path string, f func(path string, n *node)) {
	n = n.resolve(root)
	f(path, n)
	for _, k := range slices.Sorted(maps.Keys(n.Properties)) {
		n.Properties[k].leaves(root, strings.TrimPrefix(path+"."+k, "."), f)
	}
	if n.Items != nil {
		n.Items.leaves(root, path+"[]", f)
	}
}

// defaults are the values of values.yaml by path, objects too.
func defaults(tb testing.TB) map[string]any {
	tb.Helper()
	ch, err := loader.LoadDir(Dir)
	if err != nil {
		tb.Fatal(err)
	}
	all := map[string]any{}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		if path != "" {
			all[path] = v
		}
		if m, ok := v.(map[string]any); ok {
			for k, v := range m {
				walk(strings.TrimPrefix(path+"."+k, "."), v)
			}
		}
	}
	walk("", ch.Values)
	return all
}

// Each value has a schema, and each schema a value. No object takes a key that the schema does not name.
func TestSchemaCoversValues(t *testing.T) {
	root, have := schema(t), defaults(t)
	known := map[string]bool{}
	root.leaves(root, "", func(path string, n *node) {
		known[path] = true
		switch {
		case n.Type == "object" && n.Properties != nil && n.AdditionalProperties != false:
			t.Errorf("%q takes keys that the schema does not name", path)
		case n.Type == "object" && n.Properties == nil && (n.PropertyNames == nil || n.AdditionalProperties == nil):
			t.Errorf("%q takes any key, or any value", path)
		case n.Type == "array" && n.Items == nil:
			t.Errorf("%q takes any element", path)
		case n.Type == "string" && n.Pattern == "" && len(n.AllOf) == 0:
			t.Errorf("%q takes any string", path)
		case n.Type == nil && n.AnyOf == nil:
			t.Errorf("%q takes any type", path)
		}
		_, ok := have[path]
		optional := strings.HasPrefix(path, "resources.") || strings.HasPrefix(path, "tolerations[]") || strings.HasSuffix(path, "[]")
		if path != "" && !ok && !optional {
			t.Errorf("%q has no default in values.yaml", path)
		}
		for _, k := range n.Required {
			if n.Properties[k] == nil {
				t.Errorf("%q requires %s, which it does not know", path, k)
			}
		}
	})
	for path := range have {
		if !known[path] && !strings.HasPrefix(path, "nodeSelector.") {
			t.Errorf("%q has no schema", path)
		}
	}
}

// bad values for each key: what is set, and what the error says besides the key. An error of a wrong type names the type.
var bad = map[string][][2]any{
	"image":                        {{"x", "got string, want object"}, {map[string]any{"name": "x"}, "'name' not allowed"}},
	"image.repository":             {{"https://example.org/sluice", "'https://example.org/sluice' does not match"}, {"Sluice:latest", "'Sluice:latest'"}, {"", "''"}},
	"image.tag":                    {{"a b", "'a b'"}, {1.2, "got number, want string"}},
	"image.digest":                 {{"sha256:12", "'sha256:12'"}},
	"image.pullPolicy":             {{"Sometimes", "'Sometimes'"}},
	"imagePullSecrets":             {{"one", "got string, want array"}},
	"imagePullSecrets[]":           {{"One", "'One'"}, {map[string]any{"name": "x"}, "got object, want string"}},
	"mode":                         {{"uninstall", "'uninstall'"}},
	"config":                       {{"x", "got string, want object"}, {map[string]any{"rooting": "vxlan"}, "'rooting' not allowed"}},
	"config.routing":               {{"bgp", "'bgp'"}, {"", "''"}, {nil, "missing property 'routing'"}},
	"config.network":               {{map[string]any{"mode": 1}, "'mode' not allowed"}},
	"config.network.name":          {{"../x", "'../x'"}, {strings.Repeat("a", 64), "'aaaa"}},
	"config.network.file":          {{"10-sluice.conf", "'10-sluice.conf'"}, {"../a.conflist", "'../a.conflist'"}},
	"config.network.cniVersion":    {{"0.4.0", "'0.4.0'"}},
	"config.network.plugin":        {{"macvlan", "'macvlan'"}},
	"config.network.bridge":        {{"a/b", "'a/b'"}, {"abcdefghijklmnop", "maxLength: got 16, want 15"}, {"..", "'..'"}},
	"config.network.mtu":           {{100, "got 100, want 576"}, {70000, "got 70,000, want 65,535"}, {"big", "got string, want integer"}},
	"config.network.ipMasq":        {{"yes", "got string, want boolean"}},
	"config.network.portMappings":  {{1, "got number, want boolean"}},
	"config.network.bandwidth":     {{"on", "got string, want boolean"}},
	"config.network.firewall":      {{"no", "got string, want boolean"}},
	"config.networkPolicy":         {{map[string]any{"mode": "on"}, "'mode' not allowed"}},
	"config.networkPolicy.enabled": {{"yes", "got string, want boolean"}},
	"config.clusterCIDRs":          {{"10.0.0.0/8", "got string, want array"}, {[]any{"10.0.0.0/8", "10.0.0.0/8"}, "items at 0 and 1 are equal"}},
	"config.clusterCIDRs[]": {{"10.0.0.0/33", "'10.0.0.0/33'"}, {"10.0.0/24", "'10.0.0/24'"}, {"10.0.0.256/8", "'10.0.0.256/8'"}, {"fd00::/129", "'fd00::/129'"},
		{"10.244.0.1/16", "10.244.0.1/16 has bits beyond its prefix length"}, {"10.128.0.0/8", "beyond"}, {"10.244.1.0/23", "beyond"}, {"0.0.0.1/0", "beyond"},
		{"fd00:10:244::1/56", "beyond"}, {"fd00:0:0:ff::/60", "beyond"}, {"::1/127", "beyond"}, {"1:2:3:4:5:6:7:9/127", "beyond"}},
	"config.serviceCIDRs":                  {{1, "got number, want array"}},
	"config.serviceCIDRs[]":                {{"10.96.0.1", "'10.96.0.1'"}, {"fd00:/64", "'fd00:/64'"}, {"10.96.0.1/16", "beyond"}},
	"config.nonMasqueradeCIDRs":            {{map[string]any{}, "got object, want array"}},
	"config.nonMasqueradeCIDRs[]":          {{"::ffff:10.0.0.0/104", "'::ffff:10.0.0.0/104'"}, {"all", "'all'"}},
	"config.paths":                         {{map[string]any{"bin": "/x"}, "'bin' not allowed"}},
	"config.paths.binDir":                  {{"opt/cni/bin", "'opt/cni/bin'"}, {"/opt/../etc", "'/opt/../etc'"}, {"/opt/cni/bin/", "'/opt/cni/bin/'"}, {"/", "'/'"}},
	"config.paths.confDir":                 {{"/etc/cni net.d", "'/etc/cni net.d'"}},
	"config.paths.hostPrefix":              {{"host", "'host'"}},
	"config.vxlan":                         {{map[string]any{"id": 1}, "'id' not allowed"}},
	"config.vxlan.vni":                     {{0, "got 0, want 1"}, {16777216, "maximum: got 1.6777216"}, {1.5, "got number, want integer"}},
	"config.vxlan.port":                    {{65536, "got 65,536, want 65,535"}},
	"config.vxlan.device":                  {{"", "''"}},
	"config.wireguard":                     {{map[string]any{"key": "x"}, "'key' not allowed"}},
	"config.wireguard.port":                {{0, "got 0, want 1"}},
	"config.wireguard.device":              {{"wg 0", "'wg 0'"}},
	"config.wireguard.keyRotation":         {{"30d", "'30d'"}, {720, "got number, want string"}, {"30m", "at least 1h"}, {"59m59.9s", "at least 1h"}, {"0", "at least 1h"}},
	"config.health":                        {{map[string]any{"port": 1}, "'port' not allowed"}},
	"config.health.podMetrics":             {{"yes", "got string, want boolean"}},
	"config.health.address":                {{"9879", "'9879'"}, {"127.0.0.1:65536", "'127.0.0.1:65536'"}, {"localhost:1", "'localhost:1'"}, {"::1:80", "'::1:80'"}},
	"config.garbage":                       {{map[string]any{"every": "1m"}, "'every' not allowed"}},
	"config.garbage.interval":              {{"soon", "'soon'"}, {"-5m", "'-5m'"}, {"1s", "at least 10s"}, {"9999ms", "at least 10s"}, {"1us", "at least 10s"}},
	"config.observe":                       {{map[string]any{"port": 1}, "'port' not allowed"}},
	"config.observe.enabled":               {{"yes", "got string, want boolean"}},
	"config.observe.socket":                {{"hubble.sock", "'hubble.sock'"}, {"", "''"}, {"/run/../hubble.sock", "'/run/../hubble.sock'"}},
	"config.observe.address":               {{"4244", "'4244'"}, {"node:4244", "'node:4244'"}},
	"config.observe.tls":                   {{map[string]any{"ca": "/x"}, "'ca' not allowed"}},
	"config.observe.tls.cert":              {{"tls.crt", "'tls.crt'"}},
	"config.observe.tls.key":               {{"tls.key", "'tls.key'"}},
	"config.observe.tls.clientCA":          {{"ca.crt", "'ca.crt'"}},
	"config.observe.maxRate":               {{0, "got 0, want 1"}, {10001, "maximum: got 10,001"}},
	"config.observe.sample":                {{0, "got 0, want 1"}},
	"observeSecret":                        {{"A_b", "'A_b'"}, {1, "got number, want string"}},
	"config.runtimeEndpoint":               {{"tcp://127.0.0.1:1", "'tcp://127.0.0.1:1'"}, {"", "''"}, {"unix:///containerd.sock", "'unix:///containerd.sock'"}},
	"config.ipam":                          {{map[string]any{"token": "x"}, "'token' not allowed"}},
	"config.ipam.serviceAccount":           {{"sluice-ipam", "'sluice-ipam'"}, {"a/b/c", "'a/b/c'"}, {"a/..", "'a/..'"}},
	"ipam":                                 {{map[string]any{"on": true}, "'on' not allowed"}},
	"ipam.enabled":                         {{"true", "got string, want boolean"}},
	"ipam.crds":                            {{"no", "got string, want boolean"}},
	"ipam.keptAddresses":                   {{1, "got number, want boolean"}},
	"logLevel":                             {{"trace", "'trace'"}},
	"apiServer":                            {{map[string]any{"url": "x"}, "'url' not allowed"}},
	"apiServer.host":                       {{"https://a", "'https://a'"}},
	"apiServer.port":                       {{"6443", "got string, want integer"}, {0, "got 0, want 1"}},
	"updateStrategy":                       {{map[string]any{"maxSurge": 1}, "'maxSurge' not allowed"}},
	"updateStrategy.type":                  {{"Recreate", "'Recreate'"}},
	"updateStrategy.maxUnavailable":        {{0, "got 0, want 1"}, {"0%", "'0%'"}, {"101%", "'101%'"}, {"two", "'two'"}},
	"resources":                            {{map[string]any{"memory": "1Gi"}, "'memory' not allowed"}},
	"resources.requests":                   {{map[string]any{"gpu": 1}, "'gpu' not allowed"}},
	"resources.requests.cpu":               {{"10 m", "'10 m'"}},
	"resources.requests.memory":            {{"64MB", "'64MB'"}, {0, "got 0, want 1"}},
	"resources.requests.ephemeral-storage": {{"-1", "'-1'"}},
	"resources.limits":                     {{"none", "got string, want object"}},
	"resources.limits.cpu":                 {{true, "got boolean, want integer or string"}},
	"resources.limits.memory":              {{"much", "'much'"}},
	"resources.limits.ephemeral-storage":   {{"1 Gi", "'1 Gi'"}},
	"priorityClassName":                    {{"High", "'High'"}},
	"nodeSelector":                         {{map[string]any{"a b": "x"}, "invalid propertyName 'a b'"}, {map[string]any{"a": true}, "got boolean, want string"}},
	"tolerations":                          {{"all", "got string, want array"}},
	"tolerations[]":                        {{map[string]any{"taint": "x"}, "'taint' not allowed"}},
	"tolerations[].key":                    {{"a b", "'a b'"}},
	"tolerations[].operator":               {{"In", "'In'"}},
	"tolerations[].value":                  {{"a b", "'a b'"}},
	"tolerations[].effect":                 {{"Never", "'Never'"}},
	"tolerations[].tolerationSeconds":      {{-1, "got -1, want 0"}},
	"podAnnotations":                       {{map[string]any{"a": 1}, "got number, want string"}},
	"podLabels":                            {{map[string]any{"-a": "b"}, "invalid propertyName '-a'"}},
	"serviceAccount":                       {{map[string]any{"name": "x"}, "'name' not allowed"}},
	"serviceAccount.annotations":           {{"x", "got string, want object"}},
	"securityContext":                      {{map[string]any{"privileged": true}, "'privileged' not allowed"}},
	"securityContext.seccompProfile":       {{"Localhost", "'Localhost'"}},
	"securityContext.appArmorProfile":      {{"none", "'none'"}},
	"securityContext.seLinuxType":          {{"spc-t", "'spc-t'"}},
	"securityContext.extraCapabilities":    {{"ALL", "got string, want array"}},
	"securityContext.extraCapabilities[]":  {{"ALL", "'ALL'"}, {"SYS_MODULE", "'SYS_MODULE'"}},
	"admissionPolicy":                      {{"sometimes", "'sometimes'"}, {true, "got boolean, want string"}},
	"securityContextConstraints":           {{"true", "got string, want boolean"}},
	"monitoring":                           {{map[string]any{"serviceMonitor": true}, "'serviceMonitor' not allowed"}},
	"monitoring.podMonitor":                {{"yes", "got string, want boolean"}},
	"monitoring.rules":                     {{1, "want boolean"}},
	"monitoring.dashboard":                 {{"true", "got string, want boolean"}},
	"monitoring.labels":                    {{map[string]any{"release": 1}, "want string"}},
	"hostPaths":                            {{map[string]any{"run": "/run"}, "'run' not allowed"}},
	"hostPaths.config":                     {{"etc", "'etc'"}},
	"hostPaths.bpffs":                      {{"", "''"}},
	"hostPaths.cgroup":                     {{"/sys/..", "'/sys/..'"}},
}

// at makes the values that have v at path, and the JSON pointer to it.
func at(path string, v any) (values map[string]any, pointer string) {
	keys := strings.Split(path, ".")
	for i := len(keys) - 1; i >= 0; i-- {
		key, list := strings.CutSuffix(keys[i], "[]")
		pointer = "/" + key + map[bool]string{true: "/0"}[list] + pointer
		if list {
			v = []any{v}
		}
		v = map[string]any{key: v}
	}
	return v.(map[string]any), pointer
}

// A bad value of any key is an error before anything is rendered. It names the key and the value, or its type where that is wrong.
func TestBadValues(t *testing.T) {
	root := schema(t)
	root.leaves(root, "", func(path string, _ *node) {
		if path != "" && len(bad[path]) == 0 {
			t.Errorf("%s: no bad value is tried", path)
		}
	})
	for path, tries := range bad {
		for _, try := range tries {
			values, pointer := at(path, try[0])
			_, err := Render(values, KubeVersion)
			if err == nil {
				t.Errorf("%s: %v is taken", path, try[0])
				continue
			}
			switch {
			case strings.HasPrefix(fmt.Sprint(try[1]), "invalid propertyName"): // Helm's library says which name it is, not of what
				pointer = ""
			case try[0] == nil:
				pointer = pointer[:strings.LastIndex(pointer, "/")]
			}
			if says := fmt.Sprint(try[1]); !strings.Contains(err.Error(), "at '"+pointer) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v: the error names not %q and %q:\n%v", path, try[0], pointer, says, err)
			}
		}
	}
	if _, err := Render(map[string]any{"routing": "vxlan"}, KubeVersion); err == nil || !strings.Contains(err.Error(), "'routing' not allowed") {
		t.Errorf("an unknown key: %v", err)
	}
}

// A key that is taken away is an error that names it. It does not become an empty string in some object.
func TestMissingValues(t *testing.T) {
	for path := range defaults(t) {
		if strings.HasPrefix(path, "resources.") || strings.HasPrefix(path, "nodeSelector.") || path == "config.network.bridge" {
			continue
		}
		values, pointer := at(path, nil)
		_, err := Render(values, KubeVersion)
		if key := pointer[strings.LastIndex(pointer, "/")+1:]; err == nil || !strings.Contains(err.Error(), "'"+key+"'") {
			t.Errorf("%s: null: %v", path, err)
		}
	}
}

// Values that must be taken.
func TestGoodValues(t *testing.T) {
	for path, tries := range map[string][]any{
		"config.clusterCIDRs[]":               {"0.0.0.0/0", "10.244.0.0/16", "255.255.255.255/32", "::/0", "fd00:10:244::/56", "2001:db8::1/128", "10.128.0.0/9", "fd00:0:0:f0::/60", "::2/127", "1:2:3:4:5:6:7:8/128", "fd00::/8"},
		"config.routing":                      {"native", "host-gw", "vxlan", "wireguard"},
		"config.network.mtu":                  {0, 576, 65535},
		"config.network.bridge":               {"cni0", "br-a.1", "…"},
		"config.health.address":               {"", "127.0.0.1:9879", "[::1]:1", "0.0.0.0:65535"},
		"config.garbage.interval":             {"0", "0s", "5m", "1h30m", "2.5m", "10s", "9s1000ms"},
		"config.wireguard.keyRotation":        {"1h", "60m", "3600s", "0.5h30m"},
		"config.runtimeEndpoint":              {"/run/crio/crio.sock", "unix:///var/snap/microk8s/common/run/containerd.sock"},
		"config.paths.binDir":                 {"/home/kubernetes/bin", "/x"},
		"image.repository":                    {"sluice", "registry.example.org/sluice", "registry.example.org:5000/net/sluice", "localhost/sluice", "192.0.2.1:5000/a/b-c_d.e"},
		"image.tag":                           {"v1.2.3", "v1.2.3-4-gabcdef0-dirty"},
		"updateStrategy.maxUnavailable":       {1, 50, "1%", "100%"},
		"resources.limits.memory":             {"64Mi", 67108864, "1.5Gi"},
		"resources.requests.cpu":              {"10m", 1, "0.1"},
		"securityContext.extraCapabilities[]": {"DAC_OVERRIDE", "SYS_RESOURCE"},
		"apiServer.host":                      {"", "api.example.org", "192.0.2.1", "fd00::1"},
		"nodeSelector":                        {map[string]any{"kubernetes.io/os": "linux", "node.example.org/net": "sluice"}},
		"tolerations[]":                       {map[string]any{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}},
	} {
		for _, v := range tries {
			values, _ := at(path, v)
			if _, err := Render(values, KubeVersion); err != nil {
				t.Errorf("%s: %v: %v", path, v, err)
			}
		}
	}
}
