// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-cni/sluice/pkg/test/kubebin"
	"github.com/sluice-cni/sluice/pkg/test/kubetest"
	"github.com/sluice-cni/sluice/pkg/test/ociimage"
)

// The images have the names that Kubernetes' own tests ask for. No registry is asked for them.
const (
	PauseImage   = "registry.k8s.io/pause:3.10.1"
	AgnhostImage = "registry.k8s.io/e2e-test-images/agnhost:2.56"
	DNSImage     = "registry.k8s.io/coredns/coredns:v1.12.4"
	// Tests of DNS ask with this one too. Upstream's is an old Debian; here it is agnhost's with the tools of this machine.
	DigImage = "registry.k8s.io/e2e-test-images/jessie-dnsutils:1.7"
)

// tools are what tests run in containers beside agnhost. Those in needed must be on this machine.
var (
	needed = []string{
		"awk", "cat", "curl", "date", "echo", "env", "getent", "grep", "head", "hostname", "id", "ls", "mkdir", "rm", "seq", "sh", "sleep", "tail", "test",
		"timeout", "touch", "true", "wc",
	}
	wanted = []string{"wget", "nc", "dig", "nslookup", "ss", "ip", "ping"}
)

func (c *Cluster) images() string { return filepath.Join(c.Dir, "images") }

// makeImages writes the archives of the images that every cluster has, and returns their paths.
func (c *Cluster) makeImages(ctx context.Context, bin string) ([]string, error) {
	dir := c.images()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	pause := filepath.Join(dir, "pause")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", pause, "github.com/sluice-cni/sluice/test/cluster/pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build pause: %w: %s", err, out)
	}
	agnhost := map[string]string{"/agnhost": filepath.Join(bin, kubebin.Agnhost)}
	// Tests of DNS run a server of their own. Only those who want them have built it.
	if dns := filepath.Join(bin, kubebin.CoreDNS); exists(dns) {
		agnhost["/coredns"] = dns
	}
	if err := addTools(ctx, agnhost); err != nil {
		return nil, err
	}
	// Its server for TLS looks for these two.
	localhost, err := kubetest.NewPKI(filepath.Join(dir, "localhost"), []string{"localhost"}, nil)
	if err != nil {
		return nil, err
	}
	agnhost["/localhost.crt"], agnhost["/localhost.key"] = localhost.File("server.crt"), localhost.File("server.key")
	withTools := func(name string) ociimage.Image {
		return ociimage.Image{
			Name: name, Files: agnhost, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"},
			Text: map[string]string{"/etc/passwd": "root:x:0:0:root:/:/bin/sh\n", "/etc/nsswitch.conf": "hosts: files dns\n"},
		}
	}
	return writeImages(dir, "base",
		ociimage.Image{Name: PauseImage, Files: map[string]string{"/pause": pause}, Entrypoint: []string{"/pause"}}, withTools(AgnhostImage), withTools(DigImage))
}

// writeImages writes archives of images and returns their paths.
func writeImages(dir, name string, images ...ociimage.Image) (paths []string, err error) {
	for i, image := range images {
		path := filepath.Join(dir, fmt.Sprintf("%s-%d.tar", name, i))
		f, err := os.Create(path)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(image.Write(f), f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", image.Name, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// importImages gives archives to the runtime of a node.
func (c *Cluster) importImages(ctx context.Context, i int, paths []string) error {
	node := c.Node[i]
	for _, path := range paths {
		// The archive is the standard input: the node does not see the folder.
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		cmd, err := node.Command(ctx, "ctr", "-n", "k8s.io", "images", "import", "-")
		if err != nil {
			return errors.Join(err, f.Close())
		}
		cmd.Stdin = f
		out, err := cmd.CombinedOutput()
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("import %s on %s: %w: %s", path, node.Name, err, out)
		}
	}
	return nil
}

// addTools adds programs of this machine with the libraries that they are linked to.
func addTools(ctx context.Context, files map[string]string) error {
	for _, name := range slices.Concat(needed, wanted) {
		path, err := exec.LookPath(name)
		if err != nil {
			if slices.Contains(needed, name) {
				return fmt.Errorf("%s: %w; install it", name, err)
			}
			continue
		}
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return err
		}
		files["/bin/"+name] = path
		libraries, err := linkedTo(ctx, path)
		if err != nil {
			return err
		}
		for _, l := range libraries {
			files[l] = l
		}
	}
	return nil
}

// linkedTo lists the libraries of a program, and what loads them, where the program looks for them.
func linkedTo(ctx context.Context, path string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "ldd", path).CombinedOutput()
	if strings.Contains(string(out), "not a dynamic executable") {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w: %s", path, err, out)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		for _, f := range strings.Fields(line) {
			if strings.HasPrefix(f, "/") {
				found = append(found, f)
			}
		}
	}
	return found, nil
}
