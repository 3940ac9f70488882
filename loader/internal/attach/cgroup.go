// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/internal/programs"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/log"
)

// cgroupID returns the kernel's number of a cgroup, which is its inode (64-bit kernels since 5.5).
func cgroupID(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, fmt.Errorf("cgroup %s: %w", dir, err)
	}
	return st.Ino, nil
}

// EnsureSockets makes sure that the node's own processes reach published ports. Where that cannot be, the node works without,
// and Status says why.
func EnsureSockets(t *pintree.Tree) {
	for _, h := range hook.Sockets() {
		if !pintree.Exists(t.Paths.SockPin(h)) {
			if err := attachSockets(t, ""); err != nil {
				t.Log.Warn("the node's own processes do not reach host ports", log.Error(err))
			}
			return
		}
	}
}

// attachSockets attaches the programs in dir, the committed ones when it is empty, to the cgroup root, or puts them in place of
// older ones.
func attachSockets(t *pintree.Tree, dir string) error {
	root, err := t.CgroupRoot()
	if err != nil {
		return err
	}
	if root == "" {
		return DetachSockets(t)
	}
	if dir == "" {
		if dir, err = t.CommittedDir(); err != nil {
			return err
		}
	}
	if pintree.Exists(filepath.Join(dir, pintree.NoSockLBDir)) {
		return errors.Join(errors.New("the kernel refused the programs for sockets"), DetachSockets(t))
	}
	id, err := cgroupID(root)
	if err != nil {
		return err
	}
	for _, h := range hook.Sockets() {
		prog, err := pintree.ProgramAt(dir, h.Program)
		if err != nil {
			return err
		}
		err = putSockLink(t, root, id, h, prog)
		_ = prog.Close()
		if err != nil {
			return errors.Join(err, DetachSockets(t))
		}
	}
	return nil
}

func putSockLink(t *pintree.Tree, root string, id uint64, h hook.Socket, prog *bpfsys.Program) error {
	pin := t.Paths.SockPin(h)
	if at, err := sockLinkAt(pin); err == nil && at.cgroup == id {
		if updated, err := updateLink(pin, prog); updated || err != nil {
			return err
		}
	}
	if err := dropPin(pin); err != nil {
		return err
	}
	l, err := bpfsys.AttachCgroup(prog, root, h.Attach)
	if err != nil {
		return fmt.Errorf("attach %s to cgroup %s: %w", h.Program, root, err)
	}
	// Closing detaches unless the pin holds the link: a crash here leaves nothing.
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin link %s: %w", filepath.Base(pin), err)
	}
	return nil
}

// sockLink is what a pinned cgroup link says of itself.
type sockLink struct {
	cgroup  uint64 // 0: detached, or the cgroup has gone
	program uint32
}

func sockLinkAt(pin string) (sockLink, error) {
	l, err := bpfsys.OpenLink(pin)
	if err != nil {
		return sockLink{}, err
	}
	defer l.Close()
	info, err := l.Info()
	if err != nil {
		return sockLink{}, err
	}
	return sockLink{cgroup: info.Cgroup, program: info.Program}, nil
}

// DetachSockets removes the programs from the cgroup root. Missing is success.
func DetachSockets(t *pintree.Tree) error {
	var errs []error
	for _, h := range hook.Sockets() {
		errs = append(errs, dropPin(t.Paths.SockPin(h)))
	}
	return errors.Join(errs...)
}

// ReplaceSockets is the part of an upgrade: only what hangs already is replaced.
func ReplaceSockets(t *pintree.Tree, dir string) error {
	for _, h := range hook.Sockets() {
		if pintree.Exists(t.Paths.SockPin(h)) {
			if err := attachSockets(t, dir); err != nil {
				t.Log.Warn("the node's own processes do not reach host ports", log.Error(err))
			}
			return nil
		}
	}
	return nil
}

// LocalStatus says whether and how the node's own processes reach published ports.
type LocalStatus struct {
	Cgroup   string          `json:"cgroup,omitempty"`
	Attached bool            `json:"attached"`
	Reason   string          `json:"reason,omitempty"` // why not
	Programs []ProgramStatus `json:"programs,omitempty"`
}

// ReadLocalStatus looks at the cgroup links. Without published ports they need not be there.
func ReadLocalStatus(t *pintree.Tree) (LocalStatus, error) {
	dir, err := t.CommittedDir()
	if err != nil {
		return LocalStatus{}, err
	}
	s := LocalStatus{}
	var id uint64
	s.Cgroup, id, s.Reason = whereSockets(t, dir)
	if s.Cgroup = t.CgroupName(s.Cgroup); s.Reason != "" {
		return s, nil
	}
	return s, sockPrograms(t, &s, dir, id)
}

// whereSockets returns the cgroup to attach to, or why there is none.
func whereSockets(t *pintree.Tree, dir string) (root string, id uint64, why string) {
	root, err := t.CgroupRoot()
	switch {
	case err != nil:
		return "", 0, err.Error()
	case root == "":
		return "", 0, "cgroupRoot is \"off\" in the node configuration"
	case pintree.Exists(filepath.Join(dir, pintree.NoSockLBDir)):
		return root, 0, "the kernel refused the programs for sockets"
	}
	if id, err = cgroupID(root); err != nil {
		return root, 0, err.Error()
	}
	return root, id, ""
}

// sockPrograms fills in what hangs at the cgroup id.
func sockPrograms(t *pintree.Tree, s *LocalStatus, dir string, id uint64) error {
	s.Attached = true
	for _, h := range hook.Sockets() {
		p := ProgramStatus{Name: h.Program, Hook: h.Name, How: "cgroup"}
		if pintree.Exists(t.Paths.SockPin(h)) {
			at, err := sockLinkAt(t.Paths.SockPin(h))
			if err != nil {
				return err
			}
			if at.cgroup == id {
				p.ID = at.program
			}
		}
		want, err := programs.ID(dir, h.Program)
		if err != nil {
			return err
		}
		p.OK = p.ID != 0 && p.ID == want
		s.Attached = s.Attached && p.OK
		s.Programs = append(s.Programs, p)
	}
	if !s.Attached {
		s.Reason = "not attached yet: the first published port does that"
	}
	return nil
}

// CheckSockets reports programs that should hang at the cgroup root and do not. A node that cannot have them is as it should be.
func CheckSockets(t *pintree.Tree) error {
	s, err := ReadLocalStatus(t)
	if err != nil || s.Attached || s.Programs == nil {
		return err
	}
	var errs []error
	for _, p := range s.Programs {
		if !p.OK {
			errs = append(errs, pintree.Differs("%s is not attached to %s of cgroup %s", p.Name, p.Hook, s.Cgroup))
		}
	}
	return errors.Join(errs...)
}

// ProgramStatus is one attached program.
type ProgramStatus struct {
	Name string `json:"name"`
	Hook string `json:"hook"` // "ingress" or "egress"
	How  string `json:"how"`  // "tcx", "clsact" or "netkit"
	ID   uint32 `json:"id"`   // as bpftool shows it; 0: not attached
	OK   bool   `json:"ok"`   // attached, and of the build that is pinned
}
