// SPDX-License-Identifier: Apache-2.0

package image

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
)

// Offsets in the setup header of a bzImage (Documentation/arch/x86/boot.rst).
const (
	offSetupSects    = 0x1f1
	offMagic         = 0x202 // "HdrS"
	offPayload       = 0x248
	offPayloadLength = 0x24c
)

var elfMagic = []byte("\x7fELF")

// Vmlinux returns the ELF kernel inside a bzImage. A virtual machine that
// enters it directly saves the seconds that emulated decompression takes. It
// runs lz4, xz or zstd, whichever the kernel was packed with.
func Vmlinux(ctx context.Context, bzImage []byte) ([]byte, error) {
	payload, err := payload(bzImage)
	if err != nil {
		return nil, err
	}
	args := unpacker(&payload)
	if args == nil {
		return nil, fmt.Errorf("kernel is compressed in an unknown way: % x", payload[:min(8, len(payload))])
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var out, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(payload), &out, &stderr
	runErr := cmd.Run() // the tools may complain about the length that follows the stream
	if !bytes.HasPrefix(out.Bytes(), elfMagic) {
		return nil, fmt.Errorf("unpack the kernel by %s: no ELF file: %w: %s", args[0], errors.Join(runErr, errors.New("see stderr")), stderr.Bytes())
	}
	return out.Bytes(), nil
}

func payload(b []byte) ([]byte, error) {
	if len(b) < offPayloadLength+4 || string(b[offMagic:offMagic+4]) != "HdrS" {
		return nil, errors.New("no bzImage")
	}
	sects := int(b[offSetupSects])
	if sects == 0 {
		sects = 4
	}
	start := (sects+1)*512 + int(binary.LittleEndian.Uint32(b[offPayload:]))
	end := start + int(binary.LittleEndian.Uint32(b[offPayloadLength:]))
	if start > end || end > len(b) {
		return nil, fmt.Errorf("bzImage: payload at %d to %d of %d bytes", start, end, len(b))
	}
	return b[start:end], nil
}

// unpacker returns the command for the payload's magic number. lz4 has no end
// mark in the form that the kernel uses, so the four bytes of length that the
// build appends must go first.
func unpacker(p *[]byte) []string {
	switch b := *p; {
	case bytes.HasPrefix(b, []byte("\x28\xb5\x2f\xfd")):
		return []string{"zstd", "-dcq"}
	case bytes.HasPrefix(b, []byte("\x02\x21\x4c\x18")):
		*p = b[:len(b)-4]
		return []string{"lz4", "-dcq"}
	case bytes.HasPrefix(b, []byte("\xfd7zXZ\x00")):
		return []string{"xz", "-dcq", "--single-stream"}
	case bytes.HasPrefix(b, []byte("\x1f\x8b")):
		return []string{"gzip", "-dcq"}
	}
	return nil
}
