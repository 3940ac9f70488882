// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// enter moves the shell into the groups that come first, and then into the machine: programs for the machine's own sockets sit at the root
// of its cgroup namespace, and a process that enters only the namespace stays outside of its root.
const enter = `pid=$1; shift; while [ "$1" != -- ]; do echo 0 > "$1/cgroup.procs" || exit 126; shift; done; shift
exec nsenter --target "$pid" --mount --net --pid --uts --ipc --cgroup --root=/proc/$pid/root --wd=/proc/$pid/root -- "$@"`

// Command runs a program in the machine, which sees its paths. It ends with ctx.
func (m *Machine) Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	pid, err := m.PID()
	if err != nil {
		return nil, err
	}
	groups, err := m.groupDirs()
	if err != nil {
		return nil, err
	}
	line := append([]string{"-c", enter, "enter", strconv.Itoa(pid)}, groups...)
	return exec.CommandContext(ctx, "sh", append(append(line, "--"), args...)...), nil
}

// Run runs a program in the machine and returns what it prints. An error has what it says on standard error.
func (m *Machine) Run(ctx context.Context, args ...string) (string, error) {
	return m.RunWith(ctx, "", args...)
}

// RunWith is Run with a standard input.
func (m *Machine) RunWith(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd, err := m.Command(ctx, args...)
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %s: %w: %s", m.Name, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Shell runs lines of sh(1) in the machine. The first one that fails is the last one.
func (m *Machine) Shell(ctx context.Context, lines string) (string, error) {
	return m.RunWith(ctx, lines, "sh", "-eu")
}
