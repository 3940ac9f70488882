// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

const (
	kubeletDir    = stateDir + "/kubelet"
	kubeletLog    = stateDir + "/kubelet.log"
	manifestDir   = stateDir + "/manifests"
	kubeletConfig = stateDir + "/kubelet.yaml"
)

// kubelet is a node with one that has no API server: its pods are files.
type kubelet struct {
	*containerd
}

func newKubelet(t *testing.T) *kubelet {
	t.Helper()
	k := &kubelet{newContainerd(t, builtContainerd(t), pods("1.1.0"))}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kubelet's log:\n%s", k.read(kubeletLog))
		}
	})
	// The places that kubelet knows and no flag changes are tmpfs of the machine, which has /var/lib/cni already.
	k.run("sh", "-ec", `mkdir -p /run/.cni /run/.lib/kubelet /run/.lib/cni `+manifestDir+`
mount --bind /var/lib/cni /run/.cni; mount -t overlay -o lowerdir=/run/.lib:/var/lib overlay /var/lib
mount --bind /run/.cni /var/lib/cni; mount -t tmpfs tmpfs /var/lib/kubelet; mount -t tmpfs tmpfs /var/log
for tree in /sys/fs/cgroup/*/; do mkdir -p "$tree`+k.group+`" 2>/dev/null || true; done`)
	k.write(kubeletConfig, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://`+containerdSocket+`
staticPodPath: `+manifestDir+`
podLogsDir: /var/log/pods
volumePluginDir: `+kubeletDir+`/plugins
fileCheckFrequency: 1s
syncFrequency: 1s
authentication: { anonymous: { enabled: true }, webhook: { enabled: false } }
authorization: { mode: AlwaysAllow }
readOnlyPort: 10255
failSwapOn: false
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: `+k.group+`
oomScoreAdj: 0
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
evictionHard: { memory.available: 1Mi, nodefs.available: 1%, imagefs.available: 1%, nodefs.inodesFree: 0% }
resolvConf: ""
enableServer: true
`)
	k.run("sh", "-c", filepath.Join(builtKubelet(t), "kubelet")+" --config "+kubeletConfig+" --root-dir "+kubeletDir+
		" --cert-dir "+kubeletDir+"/pki --hostname-override node --node-ip 192.0.2.1,2001:db8:1::1 >"+kubeletLog+" 2>&1 &")
	return k
}

// manifest writes a pod into kubelet's directory.
func (k *kubelet) manifest(name, annotations, ports string) {
	k.t.Helper()
	k.write(manifestDir+"/"+name+".yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: { name: %[1]s, namespace: default, annotations: { %[2]s } }
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: `+imageName+`
    imagePullPolicy: Never
    command: [ /workload, serve, %[1]s ]
    ports: [ %[3]s ]
    readinessProbe: { httpGet: { path: /, port: 80 }, periodSeconds: 1 }
    livenessProbe: { tcpSocket: { port: 80 }, periodSeconds: 1 }
`, name, annotations, ports))
}

// podStatus is what kubelet says of a pod.
type podStatus struct {
	Metadata struct{ Name string }
	Status   struct {
		PodIPs     []struct{ IP string }
		Conditions []struct{ Type, Status string }
	}
}

// ready waits until kubelet's probe of a pod succeeds, and returns the pod's addresses.
func (k *kubelet) ready(name string) []string {
	k.t.Helper()
	for late := time.Now().Add(netlab.Patient(60 * time.Second)); time.Now().Before(late); time.Sleep(200 * time.Millisecond) {
		list, err := k.podList()
		if err != nil {
			continue
		}
		for _, p := range list {
			if p.Metadata.Name != name+"-node" || !slices.Contains(p.Status.Conditions, struct{ Type, Status string }{"Ready", "True"}) {
				continue
			}
			var ips []string
			for _, ip := range p.Status.PodIPs {
				ips = append(ips, ip.IP)
			}
			return ips
		}
	}
	k.t.Fatalf("pod %s does not become ready", name)
	return nil
}

func (k *kubelet) podList() ([]podStatus, error) {
	r, err := k.Node.HTTPClient(5 * time.Second).Get("http://127.0.0.1:10255/pods")
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("kubelet: %s", r.Status)
	}
	var list struct{ Items []podStatus }
	err = json.NewDecoder(r.Body).Decode(&list)
	return list.Items, err
}

// gone waits until no process has the port.
func (k *kubelet) gone(name string, port uint16) {
	k.t.Helper()
	k.run("rm", manifestDir+"/"+name+".yaml")
	for late := time.Now().Add(netlab.Patient(60 * time.Second)); time.Now().Before(late); time.Sleep(200 * time.Millisecond) {
		if out := k.sluice("hostports"); !strings.Contains(out, ":"+strconv.Itoa(int(port))) {
			return
		}
	}
	k.t.Fatalf("pod %s is not ended", name)
}

// With -kubelet, since building it takes long, else skipped: ports, limits, probes; one that changes while it runs; all of them gone.
func TestPrivilegedKubelet(t *testing.T) {
	t.Parallel()
	require.Asked(t, *withKubelet, target)
	t.Run("built", testKubelet)
}

func testKubelet(t *testing.T) {
	k := newKubelet(t)
	k.manifest("settle", "", "{ containerPort: 80, hostPort: 7999 }")
	k.ready("settle")
	k.gone("settle", 7999)
	k.sluice("resync")
	before := k.snapshot()
	k.manifest("a", "kubernetes.io/ingress-bandwidth: 80M, kubernetes.io/egress-bandwidth: 40M",
		"{ containerPort: 80, hostPort: 8080 }, { containerPort: 80, hostPort: 5353, protocol: UDP }, { containerPort: 80, hostPort: 8081, hostIP: 192.0.2.1 }")
	ips := k.ready("a")
	if len(ips) != 2 || !strings.HasPrefix(ips[0], "10.244.0.") || !strings.HasPrefix(ips[1], "fd00:10:244::") {
		t.Errorf("kubelet knows the addresses %v", ips)
	}
	k.published(8080, "a")
	k.publishedUDP(5353, "a")
	if out := k.sluice("bandwidth"); !strings.Contains(out, "80Mbit/s") || !strings.Contains(out, "40Mbit/s") {
		t.Errorf("the pod's limits are not what its annotations say:\n%s", out)
	}
	// Another specification is another pod at the same port.
	k.manifest("a", "", "{ containerPort: 80, hostPort: 8082 }")
	for late := time.Now().Add(netlab.Patient(60 * time.Second)); !strings.Contains(k.sluice("hostports"), ":8082") && time.Now().Before(late); {
		time.Sleep(200 * time.Millisecond)
	}
	k.ready("a")
	k.published(8082, "a")
	k.unpublished(8080)
	k.gone("a", 8082)
	k.unchanged(before, "kubelet's pods")
}
