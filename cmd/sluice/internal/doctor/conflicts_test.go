// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The holder of a socket is found by its inode.
func TestHolders(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	proc := t.TempDir() // with this process only
	if err := os.Symlink(filepath.Join("/proc", fmt.Sprint(os.Getpid())), filepath.Join(proc, "1")); err != nil {
		t.Fatal(err)
	}
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	got := holders(proc, append(conflictsOf(uint32(st.Ino)), conflictsOf(1)...))
	if len(got) != 1 || got[uint32(st.Ino)]+"\n" != string(comm) {
		t.Errorf("holders: %v, want %q", got, comm)
	}
}
