// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// keepArg is the second command line argument of an agent that keeps files open for another one and does nothing else.
const keepArg = "keep"

// keeperSocket is where a keeper gets files, as a descriptor of its own.
const keeperSocket = 3

// keeper is a process that keeps files for this one, whose limit of open files is too low for them.
type keeper struct {
	cmd  *exec.Cmd
	sock int
}

func startKeeper() (*keeper, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "keeper")
	defer theirs.Close()
	k := &keeper{cmd: exec.Command("/proc/self/exe", Arg, keepArg), sock: pair[0]}
	k.cmd.Stderr, k.cmd.ExtraFiles = os.Stderr, []*os.File{theirs}
	if err := k.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start a process that keeps files: %w", err), unix.Close(k.sock))
	}
	return k, nil
}

// pass gives a file away: it is closed here.
func (k *keeper) pass(fd int) error {
	err := unix.Sendmsg(k.sock, []byte{0}, unix.UnixRights(fd), nil, 0)
	rawClose(fd)
	return err
}

// release ends the keeper, and closes with it what it has.
func (k *keeper) release() error {
	return errors.Join(unix.Close(k.sock), k.cmd.Wait())
}

// keepFiles is the whole life of a keeper: it ends when the other end of its socket is closed, also by that process' death.
func keepFiles() error {
	var fds []int
	one, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	for {
		n, oob, flags, _, err := unix.Recvmsg(keeperSocket, one, rights, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			closeAll(fds)
			return err
		}
		if flags&unix.MSG_CTRUNC != 0 {
			return fmt.Errorf("keep file %d: more than the limit of open files", len(fds)+1)
		}
		messages, err := unix.ParseSocketControlMessage(rights[:oob])
		if err != nil {
			return err
		}
		for _, m := range messages {
			got, err := unix.ParseUnixRights(&m)
			if err != nil {
				return err
			}
			fds = append(fds, got...)
		}
	}
}

// closeAll closes connections at once, without a handshake and without TIME_WAIT.
func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // else it closes in the usual way
		rawClose(fd)
	}
}
