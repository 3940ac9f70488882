// SPDX-License-Identifier: Apache-2.0

// Package ipamaccess keeps the kubeconfig of the node by which sluice-ipam reaches the pools of cluster-wide addresses.
//
// The agent uses it. Its token is that of a ServiceAccount with few rights, names the node, and ends with the Node object.
// It reads and writes no pool.
package ipamaccess

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/sluice-cni/sluice/pkg/file"
)

const (
	// Lifetime is what is asked for. A node without an API server for that long needs it first: the agent comes back at once.
	Lifetime = 24 * time.Hour
	// folder and flat are where whereabouts' configurations are looked for.
	folder     = "whereabouts.d"
	flat       = "whereabouts.conf"
	kubeconfig = "sluice-ipam.kubeconfig"
	only       = 0o600 // root's: who reads the token can take addresses
)

// Access is the files of one node.
type Access struct {
	Conf    string // directory of network configurations, as the agent sees it
	ConfDir string // the same, as the plugins see it
	// Namespace has the pools.
	Namespace string
	Server    *rest.Config
	// Token returns a new token, and when it ends.
	Token func(ctx context.Context, lifetime time.Duration) (string, time.Time, error)
	Now   func() time.Time // nil: time.Now

	text  []byte
	renew time.Time
}

func (a *Access) now() time.Time {
	if a.Now != nil {
		return a.Now()
	}
	return time.Now()
}

func (a *Access) path(name string) string { return filepath.Join(a.Conf, folder, name) }

// Ensure writes the kubeconfig if it is missing or was changed, or if half of its token's time is over. It writes
// whereabouts.conf, which names it, only if there is none: whereabouts' own names another kubeconfig that does as well.
func (a *Access) Ensure(ctx context.Context) error {
	if a.text == nil || !a.now().Before(a.renew) {
		if err := a.ask(ctx); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(a.Conf, folder), 0o700); err != nil {
		return err
	}
	if _, err := file.Update(a.path(kubeconfig), a.text, only); err != nil {
		return err
	}
	if err := os.Chmod(a.path(kubeconfig), only); err != nil {
		return err
	}
	have, err := file.Read(a.path(flat))
	if err != nil || have != nil {
		return err
	}
	_, err = file.Update(a.path(flat), a.flat(), only)
	return err
}

// ask gets a token and makes the kubeconfig.
func (a *Access) ask(ctx context.Context) error {
	began := a.now()
	token, end, err := a.Token(ctx, Lifetime)
	if err != nil {
		return fmt.Errorf("token of sluice-ipam: %w", err)
	}
	ca := a.Server.CAData
	if len(ca) == 0 && a.Server.CAFile != "" {
		if ca, err = os.ReadFile(a.Server.CAFile); err != nil {
			return err
		}
	}
	if len(ca) == 0 || !strings.HasPrefix(a.Server.Host, "https://") {
		return fmt.Errorf("API server %s: the plugins need https and the certificate of its authority", a.Server.Host)
	}
	name := "sluice-ipam"
	cluster := map[string]any{"server": a.Server.Host, "certificate-authority-data": ca}
	if a.Server.ServerName != "" {
		cluster["tls-server-name"] = a.Server.ServerName
	}
	text, err := json.MarshalIndent(map[string]any{ // JSON is YAML
		"apiVersion": "v1", "kind": "Config", "current-context": name,
		"clusters": []any{map[string]any{"name": name, "cluster": cluster}},
		"users":    []any{map[string]any{"name": name, "user": map[string]any{"token": token}}},
		"contexts": []any{map[string]any{"name": name, "context": map[string]any{"cluster": name, "user": name, "namespace": a.Namespace}}},
	}, "", "  ")
	if err != nil {
		return err
	}
	a.text, a.renew = append(text, '\n'), began.Add(end.Sub(began)/2)
	return nil
}

func (a *Access) flat() []byte {
	text, _ := json.MarshalIndent(map[string]any{
		"datastore": "kubernetes", "kubernetes": map[string]string{"kubeconfig": filepath.Join(a.ConfDir, folder, kubeconfig)},
	}, "", "  ")
	return append(text, '\n')
}

// Remove takes away what Ensure wrote. A whereabouts.conf that is another's stays.
func (a *Access) Remove() error {
	errs := []error{file.Discard(a.path(kubeconfig))}
	have, err := file.Read(a.path(flat))
	if err == nil && bytes.Equal(have, a.flat()) {
		err = file.Discard(a.path(flat))
	}
	return errors.Join(append(errs, err)...)
}
