// SPDX-License-Identifier: Apache-2.0

package file

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrHolderStopped says that the process with the lock is stopped, as by SIGSTOP or a debugger. It gives the lock back when it goes on or ends.
var ErrHolderStopped = errors.New("the process that has the lock is stopped")

const (
	// lookTime is how often a process that waits looks at the one that has the lock, and patience for how long that may be stopped.
	lookTime = time.Second
	patience = 5 * time.Second
)

// holder is the process that has a lock.
type holder struct {
	pid     int
	name    string
	stopped bool
}

func (h holder) String() string {
	return fmt.Sprintf("process %d (%q) has it", h.pid, h.name)
}

// holderOf finds who has the lock of f. A process in another pid namespace is not seen.
func holderOf(f *os.File) (holder, bool) {
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil {
		return holder{}, false
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return holder{}, false
	}
	file := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for line := range strings.Lines(string(locks)) { // "1: FLOCK  ADVISORY  WRITE 123 00:1a:456 0 EOF"
		v := strings.Fields(line)
		if len(v) < 6 || v[1] != "FLOCK" || v[5] != file {
			continue
		}
		pid, err := strconv.Atoi(v[4])
		if err != nil || pid <= 0 {
			continue
		}
		stat, err := os.ReadFile("/proc/" + v[4] + "/stat") // "123 (name) T ..."
		_, rest, found := strings.Cut(string(stat), "(")
		end := strings.LastIndex(rest, ") ")
		if err != nil || !found || end < 0 || len(rest) < end+3 {
			continue
		}
		return holder{pid: pid, name: rest[:end], stopped: rest[end+2] == 'T' || rest[end+2] == 't'}, true
	}
	return holder{}, false
}
