// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/sluice-cni/sluice/pkg/test/ociimage"
	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// BuildBefore builds the programs of another build of Sluice and gives them to every node, in the folder Before: those of a revision of the
// repository, or without one this source under another version, with the name of another set of datapath programs. An upgrade between the
// two replaces every file and every program in the kernel.
func (c *Cluster) BuildBefore(ctx context.Context, revision string) (err error) {
	root, err := testbin.Root()
	if err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "sluice-before-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	args := []string{"build", "-trimpath", "-buildvcs=false", "-tags", "grpcnotrace", "-ldflags", "-s -w -X github.com/sluice-cni/sluice/pkg/version.build=before", "-o", temp + "/"}
	if revision == "" {
		overlay, err := testbin.OtherRelease(root, temp)
		if err != nil {
			return err
		}
		args = append(args, "-overlay", overlay)
	} else {
		source := filepath.Join(temp, "source")
		if err := os.Mkdir(source, 0o755); err != nil {
			return err
		}
		if _, err := output(ctx, root, "sh", "-euc", `git archive "$1" > "$2.tar"; tar -xf "$2.tar" -C "$2"`, "archive", revision, source); err != nil {
			return err
		}
		root = source
	}
	for _, name := range programs() {
		args = append(args, "./cmd/"+name)
	}
	if _, err := output(ctx, root, "go", args...); err != nil {
		return err
	}
	return c.give(Before, temp, programs())
}

// output runs a program of the real machine in a folder and returns what it prints. The go command sees no workspace: it builds products.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	out, err := cmd.Output()
	if err != nil {
		said := ""
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			said = string(exit.Stderr)
		}
		return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(said))
	}
	return strings.TrimSpace(string(out)), nil
}

// AgentImage is the name of the agent's image of a build. ImportAgents gives it to the nodes.
func AgentImage(build Plugins) string { return "localhost/sluice-agent:" + string(build) }

// ImportAgents gives every node the images of the agents of this build and of the one before. BuildBefore comes first.
func (c *Cluster) ImportAgents(ctx context.Context) error {
	var images []ociimage.Image
	for _, build := range []Plugins{Sluice, Before} {
		files := map[string]string{}
		for _, name := range programs() {
			files["/bin/"+name] = filepath.Join(c.Node[0].Dir, string(build), name)
		}
		images = append(images, ociimage.Image{Name: AgentImage(build), Files: files, Entrypoint: []string{"/bin/" + Agent}})
	}
	archives, err := writeImages(c.images(), "agent", images...)
	if err != nil {
		return err
	}
	for i := range c.Node {
		if err := c.importImages(ctx, i, archives); err != nil {
			return err
		}
	}
	return nil
}

// AgentManifest is the repository's manifest for this cluster: its networks, the image of a build, and a network file behind the cluster's own.
// All nodes are updated at once. The seccomp profile is none: that of containerd before 1.7 allows bpf(2) to SYS_ADMIN only.
func (c *Cluster) AgentManifest(ctx context.Context, build Plugins) (string, error) {
	root, err := testbin.Root()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy/kustomize/base/sluice.yaml"))
	if err != nil {
		return "", err
	}
	manifest := string(text)
	for old, changed := range map[string]string{
		"clusterCIDRs: []":         "clusterCIDRs: [" + quoted(Pods) + "]",
		"serviceCIDRs: []":         "serviceCIDRs: [" + quoted(Services) + "]",
		"file: 10-sluice.conflist": "file: 90-sluice.conflist",
		"routing: host-gw":         "routing: native",
		`image: "sluice:dev"`:      "image: " + AgentImage(build),
		"maxUnavailable: 1":        "maxUnavailable: 100%",
		"type: RuntimeDefault":     "type: Unconfined",
	} {
		if strings.Count(manifest, old) != 1 {
			return "", fmt.Errorf("deploy/kustomize/base/sluice.yaml: %d lines with %q, want one", strings.Count(manifest, old), old)
		}
		manifest = strings.Replace(manifest, old, changed, 1)
	}
	return manifest, nil
}
