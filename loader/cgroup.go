// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/mountinfo"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
)

// sockHook is a socket call of the node's processes together with the program that goes there.
type sockHook struct {
	name    string // in pin names
	program string
	attach  bpfsys.AttachType
}

func sockHooks() []sockHook {
	return []sockHook{
		{"connect4", "sl_connect4", bpfsys.CgroupInet4Connect},
		{"connect6", "sl_connect6", bpfsys.CgroupInet6Connect},
		{"sendmsg4", "sl_sendmsg4", bpfsys.CgroupUDP4Sendmsg},
		{"sendmsg6", "sl_sendmsg6", bpfsys.CgroupUDP6Sendmsg},
		{"recvmsg4", "sl_recvmsg4", bpfsys.CgroupUDP4Recvmsg},
		{"recvmsg6", "sl_recvmsg6", bpfsys.CgroupUDP6Recvmsg},
		{"getpeername4", "sl_peername4", bpfsys.CgroupInet4GetPeername},
		{"getpeername6", "sl_peername6", bpfsys.CgroupInet6GetPeername},
		{"sock_release", "sl_sock_release", bpfsys.CgroupInetSockRelease},
	}
}

const (
	sockPrefix  = "cg_"       // of the pins of cgroup links
	noSockLBDir = "no_socklb" // in a set of programs: the kernel refused those for sockets
)

func (p paths) sockPin(h sockHook) string { return filepath.Join(p.links(), sockPrefix+h.name) }

var errNoCgroup = errors.New("cgroup v2 is not mounted")

// cgroupRoot returns the directory whose sockets are handled: the configured one, else where cgroup v2 is mounted, its whole
// tree if there is a mount of that. Where it is mounted nowhere, as behind "ip netns exec", the tree is used all the same.
// errNoCgroup when the kernel has none, and an empty path when it is turned off.
func (d *Datapath) cgroupRoot() (string, error) {
	switch root := d.opts.Config.CgroupRoot; root {
	case nodeconf.CgroupOff:
		return "", nil
	case "", nodeconf.CgroupAuto:
		root, err := findCgroup2("/proc/thread-self/mountinfo")
		if errors.Is(err, errNoCgroup) {
			return d.cgroupTree()
		}
		return root, err
	default:
		return root, nil
	}
}

// cgroupTree returns a path, good until Close, to the root of cgroup v2 in a mount that is nowhere in the file system.
func (d *Datapath) cgroupTree() (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cgroup == nil {
		root, err := mountNowhere("cgroup2")
		if err != nil {
			return "", fmt.Errorf("%w, and cannot be: %w", errNoCgroup, err)
		}
		d.cgroup = root
	}
	return fmt.Sprintf("/proc/self/fd/%d", d.cgroup.Fd()), nil
}

// mountNowhere returns the root of a file system of that kind in a mount without a place.
func mountNowhere(kind string) (*os.File, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, err
	}
	root, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(root), kind), nil
}

// cgroupName is what to call a result of cgroupRoot.
func (d *Datapath) cgroupName(root string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cgroup != nil {
		return "the root, not mounted"
	}
	return root
}

// findCgroup2 reads a table of proc_pid_mountinfo(5).
func findCgroup2(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("find cgroup v2: %w", err)
	}
	defer f.Close()
	found := ""
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		mount, fs, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(mount)
		if !ok || !strings.HasPrefix(fs, "cgroup2 ") || len(fields) < 5 {
			continue
		}
		dir := mountinfo.Unescape(fields[4])
		if !isCgroup2(dir) { // something else is mounted over it
			continue
		}
		if fields[3] == "/" {
			return dir, nil
		}
		if found == "" {
			found = dir
		}
	}
	if err := lines.Err(); err != nil {
		return "", fmt.Errorf("find cgroup v2: %w", err)
	}
	if found == "" {
		return "", errNoCgroup
	}
	return found, nil
}

func isCgroup2(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// cgroupID returns the kernel's number of a cgroup, which is its inode (64-bit kernels since 5.5).
func cgroupID(dir string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, fmt.Errorf("cgroup %s: %w", dir, err)
	}
	return st.Ino, nil
}

// ensureSockets makes sure that the node's own processes reach published ports. Where that cannot be, the node works without,
// and Status says why.
func (d *Datapath) ensureSockets() {
	for _, h := range sockHooks() {
		if !exists(d.paths.sockPin(h)) {
			if err := d.attachSockets(""); err != nil {
				d.log.Warn("the node's own processes do not reach host ports", log.Error(err))
			}
			return
		}
	}
}

// attachSockets attaches the programs in dir, the committed ones when it is empty, to the cgroup root, or puts them in place of
// older ones.
func (d *Datapath) attachSockets(dir string) error {
	root, err := d.cgroupRoot()
	if err != nil {
		return err
	}
	if root == "" {
		return d.detachSockets()
	}
	if dir == "" {
		if dir, err = d.committedDir(); err != nil {
			return err
		}
	}
	if exists(filepath.Join(dir, noSockLBDir)) {
		return errors.Join(errors.New("the kernel refused the programs for sockets"), d.detachSockets())
	}
	id, err := cgroupID(root)
	if err != nil {
		return err
	}
	for _, h := range sockHooks() {
		prog, err := programAt(dir, h.program)
		if err != nil {
			return err
		}
		err = d.putSockLink(root, id, h, prog)
		_ = prog.Close()
		if err != nil {
			return errors.Join(err, d.detachSockets())
		}
	}
	return nil
}

func (d *Datapath) putSockLink(root string, id uint64, h sockHook, prog *bpfsys.Program) error {
	pin := d.paths.sockPin(h)
	if at, err := sockLinkAt(pin); err == nil && at.cgroup == id {
		if updated, err := updateLink(pin, prog); updated || err != nil {
			return err
		}
	}
	if err := dropPin(pin); err != nil {
		return err
	}
	l, err := bpfsys.AttachCgroup(prog, root, h.attach)
	if err != nil {
		return fmt.Errorf("attach %s to cgroup %s: %w", h.program, root, err)
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

func (d *Datapath) detachSockets() error {
	var errs []error
	for _, h := range sockHooks() {
		errs = append(errs, dropPin(d.paths.sockPin(h)))
	}
	return errors.Join(errs...)
}

// replaceSockets is the part of an upgrade: only what hangs already is replaced.
func (d *Datapath) replaceSockets(dir string) error {
	for _, h := range sockHooks() {
		if exists(d.paths.sockPin(h)) {
			if err := d.attachSockets(dir); err != nil {
				d.log.Warn("the node's own processes do not reach host ports", log.Error(err))
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

// localStatus looks at the cgroup links. Without published ports they need not be there.
func (d *Datapath) localStatus() (LocalStatus, error) {
	dir, err := d.committedDir()
	if err != nil {
		return LocalStatus{}, err
	}
	s := LocalStatus{}
	var id uint64
	s.Cgroup, id, s.Reason = d.whereSockets(dir)
	if s.Cgroup = d.cgroupName(s.Cgroup); s.Reason != "" {
		return s, nil
	}
	return s, d.sockPrograms(&s, dir, id)
}

// whereSockets returns the cgroup to attach to, or why there is none.
func (d *Datapath) whereSockets(dir string) (root string, id uint64, why string) {
	root, err := d.cgroupRoot()
	switch {
	case err != nil:
		return "", 0, err.Error()
	case root == "":
		return "", 0, "cgroupRoot is \"off\" in the node configuration"
	case exists(filepath.Join(dir, noSockLBDir)):
		return root, 0, "the kernel refused the programs for sockets"
	}
	if id, err = cgroupID(root); err != nil {
		return root, 0, err.Error()
	}
	return root, id, ""
}

// sockPrograms fills in what hangs at the cgroup id.
func (d *Datapath) sockPrograms(s *LocalStatus, dir string, id uint64) error {
	s.Attached = true
	for _, h := range sockHooks() {
		p := ProgramStatus{Name: h.program, Hook: h.name, How: "cgroup"}
		if exists(d.paths.sockPin(h)) {
			at, err := sockLinkAt(d.paths.sockPin(h))
			if err != nil {
				return err
			}
			if at.cgroup == id {
				p.ID = at.program
			}
		}
		want, err := pinnedID(dir, h.program)
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

// checkSockets reports programs that should hang at the cgroup root and do not. A node that cannot have them is as it should be.
func (d *Datapath) checkSockets() error {
	s, err := d.localStatus()
	if err != nil || s.Attached || s.Programs == nil {
		return err
	}
	var errs []error
	for _, p := range s.Programs {
		if !p.OK {
			errs = append(errs, errDiffers("%s is not attached to %s of cgroup %s", p.Name, p.Hook, s.Cgroup))
		}
	}
	return errors.Join(errs...)
}
