// SPDX-License-Identifier: Apache-2.0

package bpfsys

import "golang.org/x/sys/unix"

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
