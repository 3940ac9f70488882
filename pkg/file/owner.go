// SPDX-License-Identifier: Apache-2.0

package file

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// OwnerError says that another user made a directory, or can change what is in it.
type OwnerError struct {
	Path string
	Why  string
	Do   string
	// Owned says that the directory is root's: only its mode is wrong.
	Owned bool
}

// Error names the path, what is wrong and what to do.
func (e *OwnerError) Error() string { return e.Path + ": " + e.Why + "; " + e.Do }

const othersWrite = unix.S_IWGRP | unix.S_IWOTH

// CheckOwner returns a *OwnerError unless path is a directory, no symbolic link, that belongs to root or to the process's user, and that
// neither its group nor others may write to. It does not look at the parents. The error of a missing one is unix.ENOENT.
func CheckOwner(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return &OwnerError{Path: path, Why: "is a symbolic link", Do: "remove it: no other user may choose where Sluice writes"}
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return &OwnerError{Path: path, Why: "is not a directory", Do: "remove it"}
	case !ours(st.Uid):
		return &OwnerError{Path: path, Why: fmt.Sprintf("belongs to user %d, not to root", st.Uid), Do: "look who made it, then remove it with what is in it"}
	case st.Mode&othersWrite != 0:
		return &OwnerError{
			Path: path, Why: fmt.Sprintf("has mode %04o: other users can change what is in it", st.Mode&0o7777),
			Do: "run \"chmod go-w " + path + "\" if all in it belongs to root, else remove it", Owned: true,
		}
	}
	return nil
}

// CheckParentOwner is CheckOwner for the directory that others may share: a mount point, a path that may have symbolic links. Others may
// write to it if it is sticky, for then they cannot rename or remove what is not theirs.
func CheckParentOwner(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	switch {
	case !ours(st.Uid):
		return &OwnerError{Path: path, Why: fmt.Sprintf("belongs to user %d, not to root", st.Uid), Do: "run \"chown root " + path + "\""}
	case st.Mode&othersWrite != 0 && st.Mode&unix.S_ISVTX == 0:
		return &OwnerError{
			Path: path, Why: fmt.Sprintf("has mode %04o: other users can replace what is in it", st.Mode&0o7777),
			Do: "run \"chmod 0700 " + path + "\"", Owned: true,
		}
	}
	return nil
}

func ours(uid uint32) bool { return uid == 0 || int(uid) == unix.Geteuid() }
