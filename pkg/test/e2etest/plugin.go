// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"

	"github.com/sluice-cni/sluice/pkg/test/testbin"
)

// CallPlugin runs one plugin without a runtime, so env and stdin may be what no runtime
// sends. It returns the plugin's stdout, and its error (see testbin.Set.Run).
func (w *World) CallPlugin(plugin, verb string, env map[string]string, stdin []byte) (string, error) {
	w.T.Helper()
	all := map[string]string{"CNI_CONTAINERID": "bad", "CNI_NETNS": "/run/netns/bad", "CNI_IFNAME": "eth0"}
	maps.Copy(all, env)
	return Programs.Run(testbin.Call{Plugin: plugin, Verb: verb, Env: all, Stdin: stdin, Stderr: w.Stderr, Do: w.Node.Do})
}

// ConfJSON is a plugin's configuration with some keys replaced.
func ConfJSON(base Attributes, changes Attributes) []byte {
	c := maps.Clone(base)
	maps.Copy(c, changes)
	b, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return b
}

// InstallFile copies a program to another path by a rename, as packages do.
func InstallFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(err, out.Close())
	}
	return errors.Join(out.Close(), os.Rename(to+".new", to))
}
