// SPDX-License-Identifier: Apache-2.0

package garbage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	criTime = 10 * time.Second
	// maxAnswer is kubelet's own limit for an answer of the runtime.
	maxAnswer = 16 << 20
)

// KnownEndpoints are the sockets of runtimes, where distributions have them.
func KnownEndpoints() []string {
	return []string{
		"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock", "/run/k3s/containerd/containerd.sock", "/run/k0s/containerd.sock",
		"/var/snap/microk8s/common/run/containerd.sock",
	}
}

// CRI asks the runtime at endpoint, "unix:///path" or a path. With no endpoint it asks each of the known ones that is there: a node may
// have a second runtime that kubelet does not use.
func CRI(endpoint string, on func(path string) string) Sandboxes {
	return func(ctx context.Context) (map[string]bool, error) {
		paths := []string{strings.TrimPrefix(endpoint, "unix://")}
		if endpoint == "" {
			paths = nil
			for _, p := range KnownEndpoints() {
				if info, err := os.Stat(on(p)); err == nil && info.Mode()&os.ModeSocket != 0 {
					paths = append(paths, p)
				}
			}
			if len(paths) == 0 {
				return nil, errors.New("no socket of a runtime is in the known places: set runtimeEndpoint")
			}
		}
		ids := map[string]bool{}
		for _, p := range paths {
			if err := listSandboxes(ctx, on(p), ids); err != nil {
				return nil, fmt.Errorf("%s: %w", p, err)
			}
		}
		return ids, nil
	}
}

// listSandboxes adds all sandboxes of one runtime, running or not. The connection does not stay: it would hold memory for five minutes.
func listSandboxes(ctx context.Context, path string, into map[string]bool) error {
	ctx, cancel := context.WithTimeout(ctx, criTime)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := cri.NewRuntimeServiceClient(conn).ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	for _, s := range answer.GetItems() {
		into[s.GetId()] = true
	}
	return nil
}
