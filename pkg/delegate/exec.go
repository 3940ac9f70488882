// SPDX-License-Identifier: Apache-2.0

package delegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/cniskel"
)

const (
	// busyTries bounds how often a file that is just being written is tried.
	busyTries = 6
	busyPause = time.Second
	// outputPause is how long a plugin that has ended, or was killed at the
	// deadline, is waited for while a process that it left holds its output.
	outputPause = 5 * time.Second
)

// execPlugin runs the file with the caller's call, only the verb replaced, and
// returns its stdout; stderr is passed on. It does what the library's RawExec
// does, without the tracing that would come with it: packages whose
// initialisers every process of a chain would run.
func execPlugin(ctx context.Context, path, verb string, a *cniskel.Args) ([]byte, error) {
	env := append(os.Environ(), // of the same key the last counts
		"CNI_COMMAND="+verb, "CNI_CONTAINERID="+a.ContainerID, "CNI_NETNS="+a.Netns,
		"CNI_ARGS="+a.Args, "CNI_IFNAME="+a.IfName, "CNI_PATH="+a.Path)
	for try := 1; ; try++ {
		out, err := runPlugin(ctx, path, env, a.StdinData)
		if err == nil {
			return out, nil
		}
		if !errors.Is(err, syscall.ETXTBSY) || try == busyTries {
			return nil, coded(err, path)
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return nil, coded(err, path)
		}
	}
}

func runPlugin(ctx context.Context, path string, env []string, stdin []byte) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	c := exec.CommandContext(ctx, path)
	c.Env, c.Stdin, c.Stdout, c.Stderr = env, bytes.NewReader(stdin), &stdout, &stderr
	c.WaitDelay = outputPause
	err := c.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // it succeeded, and has said what it had to say
	}
	if err != nil && c.ProcessState == nil { // it did not start
		return nil, err
	}
	if err != nil {
		return nil, said(err, stdout.Bytes(), stderr.Bytes())
	}
	_, _ = stderr.WriteTo(os.Stderr) // only informational
	return stdout.Bytes(), nil
}

// said is the failed plugin's error object, or what can be made of its output.
func said(err error, stdout, stderr []byte) error {
	var obj types.Error
	switch {
	case len(stdout) == 0 && len(stderr) == 0:
		obj.Msg = fmt.Sprintf("netplugin failed with no error message: %v", err)
	case len(stdout) == 0:
		obj.Msg = fmt.Sprintf("netplugin failed: %q: %v", stderr, err)
	default:
		if perr := json.Unmarshal(stdout, &obj); perr != nil {
			obj.Msg = fmt.Sprintf("netplugin failed but error parsing its diagnostic message %q: %v", stdout, perr)
		}
	}
	return &obj
}
