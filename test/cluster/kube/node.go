// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/test/cluster/machine"
)

// The services of a node.
const (
	Containerd = "containerd"
	Kubelet    = kubebin.Kubelet
	KubeProxy  = kubebin.Proxy
)

const containerdSocket = "/run/containerd/containerd.sock"

// containerdMetrics is where containerd tells a process of the node how it fares.
const containerdMetrics = "127.0.0.1:1338"

// staticPods is the folder, below the machine's own, of the pods that kubelet runs whatever the API server says.
const staticPods = "/static-pods"

// startRuntime starts containerd on a node and gives it the images.
func (c *Cluster) startRuntime(ctx context.Context, i int, images []string) error {
	node := c.Node[i]
	if err := os.WriteFile(filepath.Join(node.Dir, "containerd.toml"), []byte(containerdConfig), 0o600); err != nil {
		return err
	}
	if err := c.StartContainerd(ctx, i); err != nil {
		return err
	}
	return c.importImages(ctx, i, images)
}

// StartContainerd starts containerd on a node, also after a stop, and returns when it answers.
func (c *Cluster) StartContainerd(ctx context.Context, i int) error {
	node := c.Node[i]
	if err := node.StartService(machine.Service{Name: Containerd, Args: []string{"/usr/bin/containerd", "-c", machine.Shared + "/containerd.toml"}}); err != nil {
		return err
	}
	return Poll(ctx, 30*time.Second, "containerd answers on "+node.Name, func(ctx context.Context) error {
		_, err := node.Run(ctx, "ctr", "version")
		return err
	})
}

// StartKubelet starts kubelet on a node, also after a stop.
func (c *Cluster) StartKubelet(i int) error {
	node := c.Node[i]
	return node.StartService(machine.Service{Name: Kubelet, Args: []string{
		sharedBin + "/kubelet", "--config", machine.Shared + "/kubelet.yaml", "--kubeconfig", machine.Shared + "/kubelet.kubeconfig",
		"--hostname-override", node.Name, "--node-ip", fmt.Sprintf("%s,%s", NodeAddrs(i)[0], NodeAddrs(i)[1]),
	}})
}

// StartProxy starts kube-proxy on a node, also after a stop.
func (c *Cluster) StartProxy(i int) error {
	return c.Node[i].StartService(machine.Service{Name: KubeProxy, Args: []string{sharedBin + "/kube-proxy", "--config", machine.Shared + "/proxy.yaml"}})
}

// SetProxyMode has kube-proxy of a node use that mode when it starts again.
func (c *Cluster) SetProxyMode(i int, mode string) error {
	return os.WriteFile(filepath.Join(c.Node[i].Dir, "proxy.yaml"), []byte(c.proxyConfig(i, mode)), 0o644)
}

func (c *Cluster) proxyConfig(i int, mode string) string {
	return strings.NewReplacer("@NODE@", c.Node[i].Name, "@MODE@", mode, "@PODS@", list(Pods)).Replace(proxyConfig)
}

// joinNode starts kubelet and kube-proxy, and gives the node a network when it has its pod CIDRs.
func (c *Cluster) joinNode(ctx context.Context, pki *kubetest.PKI, i int) error {
	node := c.Node[i]
	for name, user := range map[string][]string{
		"kubelet": {"system:node:" + node.Name, "system:nodes"}, "proxy": {"system:kube-proxy"}, "agent": {agentUser},
	} {
		path, err := pki.Kubeconfig(node.Name+"-"+name, serverURL(), user[0], user[1:]...)
		if err != nil {
			return err
		}
		if err := copyFile(path, filepath.Join(node.Dir, name+".kubeconfig")); err != nil {
			return err
		}
	}
	for from, to := range map[string]string{pki.File("ca.crt"): "ca.crt", c.Kubeconfig(): "admin.kubeconfig"} {
		if err := copyFile(from, filepath.Join(node.Dir, to)); err != nil {
			return err
		}
	}
	resolv := "nameserver " + ControlAddrs()[0].String() + "\n"
	fill := strings.NewReplacer("@NODE@", node.Name, "@DNS@", DNS.String(), "@SOCKET@", containerdSocket)
	for name, text := range map[string]string{"kubelet.yaml": fill.Replace(kubeletConfig), "proxy.yaml": c.proxyConfig(i, c.Proxy), "resolv.conf": resolv} {
		if err := os.WriteFile(filepath.Join(node.Dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.Mkdir(node.Dir+staticPods, 0o755); err != nil {
		return err
	}
	if err := errors.Join(c.StartKubelet(i), c.StartProxy(i)); err != nil {
		return err
	}
	return c.Connect(ctx, i)
}

// StaticPod has a node run a pod without the API server, until remove is called. Its name in the cluster ends with the node's.
func (c *Cluster) StaticPod(i int, pod *corev1.Pod) (remove func() error, err error) {
	pod = pod.DeepCopy()
	pod.APIVersion, pod.Kind, pod.Spec.NodeName = "v1", "Pod", ""
	text, err := json.Marshal(pod)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(c.Node[i].Dir+staticPods, pod.Name+".json")
	// kubelet does not read names that begin with a dot.
	hidden := filepath.Join(filepath.Dir(path), "."+pod.Name)
	return func() error { return os.Remove(path) }, errors.Join(os.WriteFile(hidden, text, 0o644), os.Rename(hidden, path))
}

// Connect gives a node the network of the cluster's plugins, and the other machines routes to its pods. It returns when the node is ready.
func (c *Cluster) Connect(ctx context.Context, i int) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	node := c.Node[i]
	var got *corev1.Node
	if err := Poll(ctx, time.Minute, node.Name+" has its pod CIDRs", func(ctx context.Context) (err error) {
		got, err = client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if err == nil && len(got.Spec.PodCIDRs) < len(Pods) {
			err = fmt.Errorf("it has %v", got.Spec.PodCIDRs)
		}
		return err
	}); err != nil {
		return err
	}
	routed := append([]*machine.Machine{c.Control}, c.Node...)
	if c.Agent != "" {
		routed = routed[:1]
		err = c.startAgent(i)
	} else {
		err = c.install(ctx, i, got.Spec.PodCIDRs)
	}
	if err != nil {
		return err
	}
	if err := c.route(ctx, i, got.Spec.PodCIDRs, routed); err != nil {
		return err
	}
	return c.WaitReady(ctx, client, i)
}

// WaitReady returns when a node is ready.
func (c *Cluster) WaitReady(ctx context.Context, client kubernetes.Interface, i int) error {
	name := c.Node[i].Name
	return Poll(ctx, time.Minute, name+" is ready", func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		why := "it has said nothing"
		for _, cond := range node.Status.Conditions {
			if cond.Type == corev1.NodeReady {
				if cond.Status == corev1.ConditionTrue {
					return nil
				}
				why = cond.Message
			}
		}
		return errors.New(why)
	})
}

// route tells machines where a node's pods are, and to forget where they were: a node that joins again may have other pod CIDRs.
func (c *Cluster) route(ctx context.Context, i int, cidrs []string, machines []*machine.Machine) error {
	lines := fmt.Sprintf("ip route flush via %s\nip -6 route flush via %s\n", NodeAddrs(i)[0], NodeAddrs(i)[1])
	for _, cidr := range cidrs {
		via := NodeAddrs(i)[0]
		if strings.Contains(cidr, ":") {
			via = NodeAddrs(i)[1]
		}
		lines += fmt.Sprintf("ip route replace %s via %s\n", cidr, via)
	}
	for _, m := range machines {
		if m == c.Node[i] {
			continue
		}
		if _, err := m.Shell(ctx, lines); err != nil {
			return err
		}
	}
	return nil
}

const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "` + containerdSocket + `"
[metrics]
  address = "` + containerdMetrics + `"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
  restrict_oom_score_adj = true
  enable_unprivileged_ports = true
  enable_unprivileged_icmp = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`

// kubeletConfig is for a node whose files are in memory and whose cgroup namespace begins at its own cgroup.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: "::"
authentication:
  anonymous: { enabled: false }
  webhook: { enabled: true }
  x509: { clientCAFile: ` + machine.Shared + `/ca.crt }
authorization: { mode: Webhook }
containerRuntimeEndpoint: unix://@SOCKET@
cgroupDriver: cgroupfs
cgroupRoot: /
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
evictionHard: { memory.available: 100Mi, nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%" }
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 4s
syncFrequency: 5s
staticPodPath: ` + machine.Shared + staticPods + `
maxPods: 250
kubeAPIQPS: 100
kubeAPIBurst: 200
clusterDNS: [ "@DNS@" ]
clusterDomain: cluster.local
resolvConf: ` + machine.Shared + `/resolv.conf
`

const proxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: @MODE@
clusterCIDR: @PODS@
hostnameOverride: @NODE@
clientConnection: { kubeconfig: ` + machine.Shared + `/proxy.kubeconfig }
conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 1h0m0s }
iptables: { minSyncPeriod: 0s, syncPeriod: 30s }
nftables: { minSyncPeriod: 0s, syncPeriod: 30s }
`
