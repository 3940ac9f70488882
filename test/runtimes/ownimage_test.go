// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"context"
	"flag"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/test/require"
)

// ownImage is an image of Sluice in an archive, and its name.
var (
	ownImage     = flag.String("image", "", "an archive that make image wrote")
	ownImageName = flag.String("image-name", "", "the image's name, with its tag")
)

// A real containerd imports the image of every architecture, finds it for a pod's specification, and runs the tool in it.
func TestPrivilegedImageContainerd(t *testing.T) {
	require.Asked(t, *ownImage != "", "make package-check")
	file, err := filepath.Abs(*ownImage)
	if err != nil {
		t.Fatal(err)
	}
	c := newContainerd(t, "", `{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "loopback"}]}`)
	c.ctr("images", "import", "--all-platforms", file)
	for line := range strings.Lines(c.ctr("images", "list", "name=="+*ownImageName)) {
		if strings.HasPrefix(line, *ownImageName) && !strings.Contains(line, "linux/amd64,linux/arm64") {
			t.Errorf("containerd lists %s", line)
		}
	}
	if out := c.ctr("run", "--rm", "--cgroup", c.group, *ownImageName, "own", "/usr/bin/sluice", "version"); !strings.Contains(out, "map layout") {
		t.Errorf("the tool in the image says %q", out)
	}
	conn, err := grpc.NewClient("passthrough:///containerd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (conn net.Conn, err error) {
			err = c.Node.Do(func() error {
				conn, err = net.Dial("unix", containerdSocket)
				return err
			})
			return conn, err
		}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), netlab.Patient(commandTime))
	defer cancel()
	got, err := cri.NewImageServiceClient(conn).ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: *ownImageName}})
	if err != nil || got.Image == nil {
		t.Errorf("kubelet would not find %s: %v, %v", *ownImageName, got, err)
	}
}

// podman loads the image for its own architecture, and runs the tool in it.
func TestPrivilegedImagePodman(t *testing.T) {
	require.Asked(t, *ownImage != "", "make package-check")
	file, err := filepath.Abs(*ownImage)
	if err != nil {
		t.Fatal(err)
	}
	p := newPodman(t)
	p.do("load", "--input", file)
	out := p.do("run", "--rm", "--network", "none", "--cgroups", "disabled", "--entrypoint", "/usr/bin/sluice", *ownImageName, "version")
	if !strings.Contains(out, "map layout") {
		t.Errorf("the tool in the image says %q", out)
	}
}
