// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/sluice-cni/sluice/pkg/test/e2etest"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// enoughFiles is how many files a plugin must be able to open, with stdin, stdout and stderr.
const enoughFiles = 32

// fewFiles starts plugins with a limit on open files.
type fewFiles struct {
	invoke.DefaultExec
	limit int
}

func (f *fewFiles) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "prlimit", fmt.Sprintf("--nofile=%d:%d", f.limit, f.limit), path)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = bytes.NewReader(stdin), &stdout, &stderr, append(env, "PATH=/usr/bin:/bin:/usr/sbin:/sbin")
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%w: %s%s", err, stdout.String(), stderr.String())
	}
	return stdout.Bytes(), nil
}

// Where a runtime lets plugins open too few files, ADD fails, and DEL removes what is left or fails too.
func TestPrivilegedFewFiles(t *testing.T) {
	t.Parallel()
	w := e2etest.NewWorld(t)
	before := w.Warmup(w.Runtime(fullChain()), somePorts()...)
	for _, limit := range []int{5, 9, 12, 16, 18, 20, 22, enoughFiles} {
		f := &fewFiles{limit: limit}
		f.DefaultExec = invoke.DefaultExec{RawExec: &invoke.RawExec{}, PluginDecoder: version.PluginDecoder{}}
		rt, err := w.Node.CNI(netlab.CNIOptions{Path: []string{e2etest.Programs.Dir}, Conflist: fullChain().Conflist(t), Exec: f})
		if err != nil {
			t.Fatal(err)
		}
		p := w.NewPod(rt, "few-"+strconv.Itoa(limit), somePorts()...)
		addErr := p.TryAdd()
		if limit >= enoughFiles && addErr != nil {
			t.Errorf("ADD with %d files: %v", limit, addErr)
		}
		if delErr := p.TryDel(); delErr != nil {
			t.Logf("with %d files: ADD %v, DEL %v", limit, addErr == nil, delErr)
			f.limit = 1024
			if err := p.TryDel(); err != nil {
				t.Fatalf("DEL after one with %d: %v", limit, err)
			}
		}
		if d := netlab.DiffSoon(before, w.SyncedSnapshot); d != "" {
			t.Fatalf("with %d files: the node differs:\n%s", limit, d)
		}
		if err := p.Delete(); err != nil {
			t.Fatal(err)
		}
	}
	assertNoAttachments(w)
}
