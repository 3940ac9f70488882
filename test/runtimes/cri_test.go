// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// sandbox is a pod by CRI: what kubelet asks for, and what it was told.
type sandbox struct {
	c      *containerd
	config *cri.PodSandboxConfig
	id     string
	// container serves the pod's name on port 80, TCP.
	container string
	ips       []string
}

// podConfig is what kubelet says of a pod.
func (c *containerd) podConfig(name string, ports ...*cri.PortMapping) *cri.PodSandboxConfig {
	return &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Hostname:     name,
		LogDirectory: stateDir + "/logs/" + name,
		DnsConfig:    &cri.DNSConfig{Servers: []string{"192.0.2.2"}, Searches: []string{"example.org"}},
		PortMappings: ports,
		Annotations:  map[string]string{},
		Linux:        &cri.LinuxPodSandboxConfig{CgroupParent: c.group},
	}
}

// port maps a port of the node to the pod's port 80.
func port(host int32, protocol cri.Protocol, ip string) *cri.PortMapping {
	return &cri.PortMapping{Protocol: protocol, HostPort: host, ContainerPort: 80, HostIp: ip}
}

func tcp(host int32) *cri.PortMapping { return port(host, cri.Protocol_TCP, "") }

// tryRun makes the sandbox.
func (c *containerd) tryRun(config *cri.PodSandboxConfig) (*sandbox, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	r, err := c.pods.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		return nil, err
	}
	s := &sandbox{c: c, config: config, id: r.PodSandboxId}
	status, err := s.status()
	if err != nil {
		return nil, err
	}
	s.ips = append(s.ips, status.GetNetwork().GetIp())
	for _, ip := range status.GetNetwork().GetAdditionalIps() {
		s.ips = append(s.ips, ip.Ip)
	}
	return s, nil
}

func (s *sandbox) status() (*cri.PodSandboxStatus, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	r, err := s.c.pods.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.id})
	return r.GetStatus(), err
}

// serve runs a container that tells the pod's name.
func (s *sandbox) serve() error {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	r, err := s.c.pods.CreateContainer(ctx, &cri.CreateContainerRequest{
		PodSandboxId: s.id, SandboxConfig: s.config,
		Config: &cri.ContainerConfig{
			Metadata: &cri.ContainerMetadata{Name: "main"},
			Image:    &cri.ImageSpec{Image: imageName},
			Command:  []string{"/workload", "serve", s.config.Metadata.Name},
			LogPath:  "main.log",
			Linux: &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{
				NamespaceOptions: s.config.Linux.GetSecurityContext().GetNamespaceOptions(),
			}},
		},
	})
	if err != nil {
		return fmt.Errorf("create container: %w", err)
	}
	s.container = r.ContainerId
	_, err = s.c.pods.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: s.container})
	return err
}

// pod makes a pod that serves its name.
func (c *containerd) pod(config *cri.PodSandboxConfig) *sandbox {
	c.t.Helper()
	s, err := c.tryRun(config)
	if err == nil {
		err = s.serve()
	}
	if err != nil {
		c.t.Fatalf("pod %s: %v", config.Metadata.Name, err)
	}
	return s
}

// ask has the pod ask a server.
func (s *sandbox) ask(url string) string {
	s.c.t.Helper()
	text, err := s.tryAsk(url)
	if err != nil {
		s.c.t.Errorf("pod %s asks %s: %v", s.config.Metadata.Name, url, err)
	}
	return text
}

// tryAsk is by what kubelet does for a probe.
func (s *sandbox) tryAsk(url string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	r, err := s.c.pods.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: s.container, Cmd: []string{"/workload", "ask", url}, Timeout: 10})
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("exit status %d: %s", r.ExitCode, r.Stderr)
	}
	return strings.TrimSpace(string(r.GetStdout())), err
}

func (s *sandbox) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	_, err := s.c.pods.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.id})
	return err
}

func (s *sandbox) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	_, err := s.c.pods.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: s.id})
	return err
}

// end is what kubelet does with a pod that is deleted: each step as often as it likes, and again when containerd has not heard yet of
// the end of a process.
func (s *sandbox) end() error {
	for _, step := range []func() error{s.stop, s.stop} {
		if err := step(); err != nil {
			return err
		}
	}
	for late := time.Now().Add(netlab.Patient(5 * time.Second)); ; time.Sleep(50 * time.Millisecond) {
		err := s.remove()
		if err == nil || !strings.Contains(err.Error(), "is still running") || time.Now().After(late) {
			return err
		}
	}
}

// serveHere has this process tell the pod's name in the pod's network namespace.
func (s *sandbox) serveHere() (stop func(), err error) {
	path, err := s.netnsPath()
	if err != nil {
		return nil, err
	}
	ns, err := netns.Open(fmt.Sprintf("/proc/%d/root%s", s.c.init, path))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	var l net.Listener
	if err := ns.Do(func() error {
		l, err = net.Listen("tcp", ":80")
		return err
	}); err != nil {
		return nil, err
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, s.config.Metadata.Name)
	})}
	go func() { _ = server.Serve(l) }()
	return func() { _ = server.Close() }, nil
}

// netnsPath is the path of the pod's network namespace in the machine.
func (s *sandbox) netnsPath() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	r, err := s.c.pods.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: s.id, Verbose: true})
	if err != nil {
		return "", err
	}
	var info struct {
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string }
			}
		}
	}
	if err := json.Unmarshal([]byte(r.Info["info"]), &info); err != nil {
		return "", err
	}
	for _, n := range info.RuntimeSpec.Linux.Namespaces {
		if n.Type == "network" {
			// /var/run is a link that would lead out of the machine.
			return strings.TrimPrefix(n.Path, "/var"), nil
		}
	}
	return "", errors.New("the pod has no network namespace")
}
