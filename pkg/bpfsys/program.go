// SPDX-License-Identifier: Apache-2.0

package bpfsys

import (
	"time"

	"golang.org/x/sys/unix"
)

// Program is an open program.
type Program struct{ file }

// OpenProgram opens the program that is pinned at path. fs.ErrNotExist: nothing is.
func OpenProgram(path string) (*Program, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	return &Program{f}, nil
}

type idAttr struct {
	id uint32
	_  [2]uint32
}

// ProgramFromID opens a program by the kernel's number. ENOENT: it has gone.
func ProgramFromID(id uint32) (*Program, error) {
	fd, err := call(unix.BPF_PROG_GET_FD_BY_ID, &idAttr{id: id})
	if err != nil {
		return nil, err
	}
	return &Program{file{fd}}, nil
}

// ProgramInfo is what the kernel says about a program.
type ProgramInfo struct {
	ID   uint32
	Name string // at most 15 characters
}

// progInfo is the beginning of struct bpf_prog_info.
type progInfo struct {
	_    uint32 // type
	id   uint32
	_    [8]byte // tag
	_    [2]uint32
	_    [2]uint64
	_    uint64 // load_time
	_    uint32 // created_by_uid
	_    uint32 // nr_map_ids
	_    uint64
	name [16]byte
}

// Info asks the kernel.
func (p *Program) Info() (ProgramInfo, error) {
	var i progInfo
	if err := info(p.file, &i); err != nil {
		return ProgramInfo{}, err
	}
	return ProgramInfo{ID: i.id, Name: unix.ByteSliceToString(i.name[:])}, nil
}

// progRuns is struct bpf_prog_info up to what the kernel has counted. Nothing of what lies before is asked for.
type progRuns struct {
	_       progInfo
	_       uint32    // ifindex
	_       uint32    // gpl_compatible
	_       [2]uint64 // netns_dev, netns_ino
	_       [2]uint32 // nr_jited_ksyms, nr_jited_func_lens
	_       [2]uint64 // jited_ksyms, jited_func_lens
	_       [2]uint32 // btf_id, func_info_rec_size
	_       uint64    // func_info
	_       [2]uint32 // nr_func_info, nr_line_info
	_       [2]uint64 // line_info, jited_line_info
	_       [4]uint32 // nr_jited_line_info, line_info_rec_size, jited_line_info_rec_size, nr_prog_tags
	_       uint64    // prog_tags
	runTime uint64
	runs    uint64
}

// Runs returns how often the program ran and for how long, on all CPUs, since it was loaded. The kernel counts only while the sysctl
// kernel.bpf_stats_enabled is 1.
func (p *Program) Runs() (n uint64, took time.Duration, err error) {
	var i progRuns
	if err := info(p.file, &i); err != nil {
		return 0, 0, err
	}
	return i.runs, time.Duration(i.runTime), nil
}
