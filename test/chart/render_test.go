// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"helm.sh/helm/v3/pkg/strvals"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// kubeVersions are the oldest version that the chart takes, the first one with the admission policy, and those that the tests run.
var kubeVersions = []string{"v1.30.0", "v1.31.9", "v1.32.0", KubeVersion, "v1.37.2"}

// set parses what follows --set.
func set(tb testing.TB, lines ...string) map[string]any {
	tb.Helper()
	values := map[string]any{}
	for _, line := range lines {
		if err := strvals.ParseInto(line, values); err != nil {
			tb.Fatal(err)
		}
	}
	return values
}

func mustRender(tb testing.TB, values map[string]any) *Rendered {
	tb.Helper()
	r, err := Render(values, KubeVersion)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func mustProfile(tb testing.TB, name string) map[string]any {
	tb.Helper()
	values, err := Profile(name)
	if err != nil {
		tb.Fatal(err)
	}
	return values
}

// variants are the values that every check runs with: the defaults, each profile, and what changes the shape of an object.
func variants(tb testing.TB) map[string]map[string]any {
	tb.Helper()
	all := map[string]map[string]any{
		"defaults": {},
		"remove":   set(tb, "mode=remove"),
		"observe":  set(tb, "config.observe.enabled=true", "config.observe.address=0.0.0.0:4244", "observeSecret=hubble-tls"),
		"bridge":   set(tb, "config.network.plugin=bridge", "config.network.bridge=br7"),
		"no health, on delete": set(tb, "config.health.address=", "updateStrategy.type=OnDelete", "imagePullSecrets={one,two}",
			"image.digest=sha256:"+strings.Repeat("ab", 32), "apiServer.host=192.0.2.1"),
		"IPv6 health, prefix": set(tb, "config.health.address=[::]:9000", "config.paths.hostPrefix=/host", "securityContext.extraCapabilities={DAC_OVERRIDE}",
			`podAnnotations.example\.org/team=net`, "podLabels.team=net", `serviceAccount.annotations.example\.org/a=b`, "resources.limits.memory=1Gi"),
	}
	profiles, err := Profiles()
	if err != nil || len(profiles) != 8 {
		tb.Fatalf("profiles %v: %v", profiles, err)
	}
	for _, p := range profiles {
		all["profile "+p] = mustProfile(tb, p)
	}
	return all
}

// decode makes a typed object of one of the manifest. A field that the type lacks, or one that is given twice, is an error.
func decode[T any](tb testing.TB, o Object) *T {
	tb.Helper()
	text, err := yaml.Marshal(o)
	if err != nil {
		tb.Fatal(err)
	}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	typed, _, err := strict.Decode(text, nil, nil)
	if err != nil {
		tb.Fatalf("%s: %v", o.ID(), err)
	}
	if t, ok := any(typed).(*T); ok {
		return t
	}
	return nil
}

func daemonSet(tb testing.TB, values map[string]any) *appsv1.DaemonSet {
	tb.Helper()
	o, ok := mustRender(tb, values).Object("DaemonSet/sluice-agent")
	if !ok {
		tb.Fatal("no DaemonSet")
	}
	return decode[appsv1.DaemonSet](tb, o)
}

// The Prometheus operator gets a PodMonitor and the rules of the file, Grafana's sidecar the dashboard; none of it by default.
func TestMonitoring(t *testing.T) {
	wanted := []string{"PodMonitor/sluice-agent", "PrometheusRule/sluice-agent", "ConfigMap/sluice-agent-dashboard"}
	plain := mustRender(t, nil)
	r := mustRender(t, set(t, "config.health.address=0.0.0.0:9000", "monitoring.podMonitor=true", "monitoring.rules=true", "monitoring.dashboard=true", "monitoring.labels.release=prom"))
	found := map[string]Object{}
	for _, id := range wanted {
		if _, ok := plain.Object(id); ok {
			t.Errorf("%s is there by default", id)
		}
		o, ok := r.Object(id)
		if !ok {
			t.Fatalf("no %s", id)
		}
		found[id] = o
	}
	var rules map[string]any
	text, err := os.ReadFile(filepath.Join(Dir, "monitoring/rules.yaml"))
	if err == nil {
		err = yaml.Unmarshal(text, &rules)
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rules, found[wanted[1]]["spec"]); diff != "" {
		t.Errorf("rules: %s", diff)
	}
	monitor, err := yaml.Marshal(found[wanted[0]])
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"release: prom", "replacement: $1:9000", "replacement: '[$1]:9000'", "app.kubernetes.io/component: agent"} {
		if !strings.Contains(string(monitor), part) {
			t.Errorf("no %q in\n%s", part, monitor)
		}
	}
	for _, address := range []string{"127.0.0.1:9879", "[::1]:9879", ""} {
		_, err := Render(set(t, "monitoring.podMonitor=true", "config.health.address="+address), KubeVersion)
		if err == nil || !strings.Contains(err.Error(), "monitoring.podMonitor: Prometheus does not reach config.health.address") {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// "helm lint" has nothing to say, with any values.
func TestLint(t *testing.T) {
	for name, values := range variants(t) {
		for _, m := range lint.AllWithKubeVersion(Dir, values, namespace, &chartutil.KubeVersion{Version: KubeVersion, Major: "1", Minor: "34"}).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// What is rendered has only fields that Kubernetes knows, for each version of it that the chart takes.
func TestObjects(t *testing.T) {
	for _, version := range kubeVersions {
		for name, values := range variants(t) {
			r, err := Render(values, version)
			if err != nil {
				t.Errorf("%s, %s: %v", version, name, err)
				continue
			}
			for _, o := range r.Objects {
				if o.Kind() != "SecurityContextConstraints" { // OpenShift's own
					decode[corev1.Pod](t, o)
				}
			}
			_, policy := r.Object("ValidatingAdmissionPolicy/sluice-agent")
			if want := !strings.HasPrefix(version, "v1.30") && !strings.HasPrefix(version, "v1.31"); policy != want {
				t.Errorf("%s, %s: admission policy %t, want %t", version, name, policy, want)
			}
		}
	}
	if _, err := Render(nil, "v1.29.9"); err == nil {
		t.Error("Kubernetes 1.29 has no appArmorProfile, and the chart takes it")
	}
}

// The container has three capabilities, a read-only root, and no privilege.
func TestPodSecurity(t *testing.T) {
	for name, values := range variants(t) {
		ds := daemonSet(t, values)
		spec := ds.Spec.Template.Spec
		if spec.HostPID || spec.HostIPC || !spec.HostNetwork || spec.PriorityClassName != "system-node-critical" {
			t.Errorf("%s: hostPID %t, hostIPC %t, hostNetwork %t, priority %s", name, spec.HostPID, spec.HostIPC, spec.HostNetwork, spec.PriorityClassName)
		}
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			s := c.SecurityContext
			if *s.Privileged || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || s.ProcMount != nil {
				t.Errorf("%s, %s: %v", name, c.Name, s)
			}
			want := []corev1.Capability{"NET_ADMIN", "BPF", "PERFMON"}
			if strings.Contains(name, "prefix") {
				want = append(want, "DAC_OVERRIDE")
			}
			if diff := cmp.Diff(want, s.Capabilities.Add); diff != "" || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
				t.Errorf("%s, %s: dropped %v, added (-want +got):\n%s", name, c.Name, s.Capabilities.Drop, diff)
			}
			if s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s, %s: seccomp %v", name, c.Name, s.SeccompProfile)
			}
			if len(c.Ports) != 0 {
				t.Errorf("%s, %s: a port of the container is a hostPort in the node's network: %v", name, c.Name, c.Ports)
			}
		}
		for _, effect := range []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute} {
			if !slices.ContainsFunc(spec.Tolerations, func(c corev1.Toleration) bool {
				return c.Effect == effect && c.Operator == corev1.TolerationOpExists && c.Key == "" && c.TolerationSeconds == nil
			}) {
				t.Errorf("%s: not every taint of effect %s is tolerated", name, effect)
			}
		}
	}
}

// The directories of the node that the container gets, and no others. Paths are those of the node, so that what a plugin is told holds.
func TestMounts(t *testing.T) {
	fixed := []string{"/proc/sys/net", "/run/netns", "/run/sluice", "/sys/fs/bpf", "/sys/fs/cgroup", "/var/lib/cni", "/var/lib/sluice"}
	tests := map[string][]string{
		"kubeadm":   {"/opt/cni/bin", "/etc/cni/net.d", "/run/containerd", "/etc/sluice"},
		"k3s":       {"/var/lib/rancher/k3s/data/cni", "/var/lib/rancher/k3s/agent/etc/cni/net.d", "/run/k3s/containerd", "/etc/sluice"},
		"rke2":      {"/opt/cni/bin", "/etc/cni/net.d", "/run/k3s/containerd", "/etc/sluice"},
		"talos":     {"/opt/cni/bin", "/etc/cni/net.d", "/run/containerd"},
		"openshift": {"/var/lib/cni/bin", "/run/multus/cni/net.d", "/run/crio", "/etc/sluice"},
		"microk8s":  {"/var/snap/microk8s/current/opt/cni/bin", "/var/snap/microk8s/current/args/cni-network", "/var/snap/microk8s/common/run", "/etc/sluice"},
		"gke":       {"/home/kubernetes/bin", "/etc/cni/net.d", "/run/containerd", "/etc/sluice"},
		"fedora":    {"/usr/libexec/cni", "/etc/cni/net.d", "/run/crio", "/etc/sluice"},
	}
	for profile, own := range tests {
		spec := daemonSet(t, mustProfile(t, profile)).Spec.Template.Spec
		volumes := map[string]string{}
		for _, v := range spec.Volumes {
			if v.HostPath != nil {
				volumes[v.Name] = v.HostPath.Path
			}
		}
		want := slices.Sorted(slices.Values(slices.Concat(fixed, own)))
		if diff := cmp.Diff(want, slices.Sorted(maps.Values(volumes))); diff != "" {
			t.Errorf("%s: directories of the node (-want +got):\n%s", profile, diff)
		}
		for _, m := range spec.Containers[0].VolumeMounts {
			if path := volumes[m.Name]; path != "" && m.MountPath != path && m.MountPath != "/var"+path && m.MountPath != "/run/host"+path {
				t.Errorf("%s: %s is mounted at %s", profile, path, m.MountPath)
			}
		}
	}
}

// Rights in the API, all of them.
func TestRBAC(t *testing.T) {
	r := mustRender(t, nil)
	cluster, _ := r.Object("ClusterRole/sluice-agent")
	events, _ := r.Object("Role/sluice-agent-events")
	role := decode[rbacv1.Role](t, events)
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
	}
	policies := append(slices.Clone(want),
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods", "namespaces"}, Verbs: []string{"list", "watch"}},
		rbacv1.PolicyRule{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: []string{"list", "watch"}})
	if diff := cmp.Diff(policies, decode[rbacv1.ClusterRole](t, cluster).Rules); diff != "" {
		t.Errorf("in the cluster (-want +got):\n%s", diff)
	}
	without, _ := mustRender(t, set(t, "config.networkPolicy.enabled=false")).Object("ClusterRole/sluice-agent")
	want = append(want, rbacv1.PolicyRule{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"networkpolicies"}, Verbs: []string{"list"}})
	if diff := cmp.Diff(want, decode[rbacv1.ClusterRole](t, without).Rules); diff != "" {
		t.Errorf("in the cluster, without policies (-want +got):\n%s", diff)
	}
	want = []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create"}}}
	if diff := cmp.Diff(want, role.Rules); diff != "" || role.Namespace != "default" {
		t.Errorf("in namespace %s (-want +got):\n%s", role.Namespace, diff)
	}
	for _, o := range r.Objects {
		if strings.HasSuffix(o.Kind(), "Role") && o.ID() != "ClusterRole/sluice-agent" && o.ID() != "Role/sluice-agent-events" {
			t.Errorf("one more: %s", o.ID())
		}
	}
}

// kubelet asks the agent where it listens, from the node.
func TestProbes(t *testing.T) {
	tests := map[string]struct {
		host string
		port int32
	}{
		"127.0.0.1:9879": {"127.0.0.1", 9879},
		"0.0.0.0:9000":   {"127.0.0.1", 9000},
		"[::]:9000":      {"::1", 9000},
		"[fd00::1]:80":   {"fd00::1", 80},
		"192.0.2.7:1":    {"192.0.2.7", 1},
	}
	for address, want := range tests {
		c := daemonSet(t, map[string]any{"config": map[string]any{"health": map[string]any{"address": address}}}).Spec.Template.Spec.Containers[0]
		for path, probe := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
			if g := probe.HTTPGet; g.Path != path || g.Host != want.host || g.Port.IntVal != want.port {
				t.Errorf("%s: %+v", address, *g)
			}
		}
	}
	if c := daemonSet(t, set(t, "config.health.address=")).Spec.Template.Spec.Containers[0]; c.LivenessProbe != nil || c.ReadinessProbe != nil || c.StartupProbe != nil {
		t.Error("probes of an agent that does not listen")
	}
}

// One node at a time by default. Never two agents on one node.
func TestUpdateStrategy(t *testing.T) {
	for line, want := range map[string]string{"updateStrategy.maxUnavailable=3": "3", "updateStrategy.maxUnavailable=25%": "25%", "mode=remove": "100%", "logLevel=info": "1"} {
		s := daemonSet(t, set(t, line)).Spec.UpdateStrategy
		if s.Type != appsv1.RollingUpdateDaemonSetStrategyType || s.RollingUpdate.MaxUnavailable.String() != want || s.RollingUpdate.MaxSurge.String() != "0" {
			t.Errorf("%s: %+v", line, s.RollingUpdate)
		}
	}
	if s := daemonSet(t, set(t, "updateStrategy.type=OnDelete")).Spec.UpdateStrategy; s.Type != appsv1.OnDeleteDaemonSetStrategyType || s.RollingUpdate != nil {
		t.Errorf("%+v", s)
	}
	// A change of the agent's configuration alone is a rollout.
	a, b := daemonSet(t, nil).Spec.Template, daemonSet(t, set(t, "config.network.mtu=1400")).Spec.Template
	if cmp.Equal(a, b) {
		t.Error("another MTU starts no rollout")
	}
}

// Whoever installs the chart is told what becomes of policies, and they need the plugin that gives them to pods.
func TestNetworkPolicy(t *testing.T) {
	for enabled, want := range map[string]string{"true": "NetworkPolicy objects are enforced", "false": "NetworkPolicy objects are not enforced"} {
		if r := mustRender(t, set(t, "config.networkPolicy.enabled="+enabled)); !strings.Contains(r.Notes, want) {
			t.Errorf("enabled: %s: the notes are\n%s", enabled, r.Notes)
		}
	}
	_, err := Render(set(t, "config.network.firewall=false"), KubeVersion)
	if err == nil || !strings.Contains(err.Error(), "at '/config/networkPolicy/enabled': true needs config.network.firewall: true") {
		t.Errorf("without the plugin firewall: %v", err)
	}
	mustRender(t, set(t, "config.network.firewall=false", "config.networkPolicy.enabled=false"))
}

// No registry is named anywhere, and the user is told to name one.
func TestRegistry(t *testing.T) {
	r := mustRender(t, nil)
	if !strings.Contains(r.Notes, `image.repository is "sluice"`) {
		t.Errorf("the notes do not say that an image must be set:\n%s", r.Notes)
	}
	own := set(t, "image.repository=registry.example.org:5000/net/sluice", "image.tag=v1.2.3")
	if r := mustRender(t, own); strings.Contains(r.Notes, "image.repository is") {
		t.Errorf("the notes do not know the registry:\n%s", r.Notes)
	}
	if image := daemonSet(t, own).Spec.Template.Spec.Containers[0].Image; image != "registry.example.org:5000/net/sluice:v1.2.3" {
		t.Errorf("image %s", image)
	}
	host := regexp.MustCompile(`(?m)(image|repository|newName): *"?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+(:[0-9]+)?/`)
	files := 0
	for _, dir := range []string{"helm", "kustomize"} {
		err := filepath.WalkDir(filepath.Join(Root, "deploy", dir), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) == ".md" {
				return err
			}
			files++
			text, err := os.ReadFile(path)
			if m := host.Find(text); m != nil {
				t.Errorf("%s: %s", path, m)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	if files < 20 {
		t.Errorf("%d files", files)
	}
}

// The chart has the version of the source: "dev" until a release says another (make chart).
func TestVersion(t *testing.T) {
	ch, err := loader.LoadDir(Dir)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile(Root + "/pkg/version/version.go")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^var build = "(.*?)"`).FindSubmatch(source)
	if m == nil || ch.Metadata.AppVersion != string(m[1]) || ch.Metadata.Version != "0.0.0-"+string(m[1]) {
		t.Errorf("appVersion %s, version %s, pkg/version %s", ch.Metadata.AppVersion, ch.Metadata.Version, m)
	}
}

// Cluster-wide addresses: the definitions stay when the release goes, a node's token has few rights, and the agent asks for it.
func TestIPAM(t *testing.T) {
	r := mustRender(t, set(t, "ipam.enabled=true"))
	crds := 0
	for _, o := range r.Objects {
		if o.Kind() != "CustomResourceDefinition" {
			decode[corev1.Pod](t, o)
			continue
		}
		crds++
		meta, _ := o["metadata"].(map[string]any)
		if a, _ := meta["annotations"].(map[string]any); a["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s goes with the release", o.ID())
		}
	}
	if crds != 3 {
		t.Errorf("%d definitions, want 3", crds)
	}
	for _, o := range mustRender(t, set(t, "ipam.enabled=true", "ipam.crds=false")).Objects {
		if o.Kind() == "CustomResourceDefinition" {
			t.Errorf("%s is there", o.ID())
		}
	}
	rules := func(r *Rendered, id string) []rbacv1.PolicyRule {
		o, ok := r.Object(id)
		if !ok {
			t.Fatalf("no %s", id)
		}
		if o.Kind() == "Role" {
			return decode[rbacv1.Role](t, o).Rules
		}
		return decode[rbacv1.ClusterRole](t, o).Rules
	}
	nodes := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list"}}
	if diff := cmp.Diff([]rbacv1.PolicyRule{nodes}, rules(r, "ClusterRole/sluice-ipam")); diff != "" {
		t.Errorf("in the cluster: %s", diff)
	}
	kept := mustRender(t, set(t, "ipam.enabled=true", "ipam.keptAddresses=true"))
	if n := len(rules(kept, "ClusterRole/sluice-ipam-kept-addresses")); n != 4 {
		t.Errorf("%d rules for kept addresses", n)
	}
	for _, rule := range slices.Concat(rules(r, "Role/sluice-ipam"), rules(kept, "ClusterRole/sluice-ipam-kept-addresses"), rules(r, "Role/sluice-agent-ipam-token")) {
		if slices.Contains(rule.Verbs, "*") || slices.Contains(rule.Resources, "*") || slices.Contains(rule.Resources, "secrets") ||
			slices.Contains(rule.Resources, "serviceaccounts/token") && !slices.Equal(rule.ResourceNames, []string{"sluice-ipam"}) {
			t.Errorf("%+v", rule)
		}
	}
	o, _ := r.Object("ConfigMap/sluice-agent")
	data, _ := o["data"].(map[string]any)
	if text, _ := data["agent.yaml"].(string); !strings.Contains(text, "serviceAccount: kube-system/sluice-ipam") {
		t.Errorf("the agent does not know the account:\n%s", text)
	}
	for _, o := range mustRender(t, nil).Objects {
		if strings.Contains(o.ID(), "ipam") {
			t.Errorf("%s is there by default", o.ID())
		}
	}
	if _, err := Render(set(t, "ipam.enabled=true"), "v1.31.9"); err == nil || !strings.Contains(err.Error(), "ipam.enabled: Kubernetes v1.31.9") {
		t.Errorf("Kubernetes 1.31: %v", err)
	}
}
