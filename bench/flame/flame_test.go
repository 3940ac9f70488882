// SPDX-License-Identifier: Apache-2.0

package flame

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

const samples = `bridge 
	ffffffff81000010 do_syscall_64
	ffffffff81000000 entry_SYSCALL_64
	          401000 syscall.write
	          400000 main.main

bridge 
	          402000 runtime.mallocgc
	          400000 main.main

other program 
	          400000 main.main

`

func TestRead(t *testing.T) {
	root, err := Read(strings.NewReader(samples), func(program string) bool { return program == "bridge" })
	if err != nil {
		t.Fatal(err)
	}
	if root.Samples != 2 || len(root.Children()) != 1 {
		t.Fatalf("%+v", root)
	}
	bridge := root.Children()[0]
	main := bridge.Children()[0]
	if bridge.Name != "bridge" || main.Name != "main.main" || main.Samples != 2 || len(main.Children()) != 2 {
		t.Errorf("%+v, %+v", bridge, main)
	}
	entry := main.Children()[1].Children()[0]
	if entry.Name != "entry_SYSCALL_64" || !entry.Kernel || main.Kernel {
		t.Errorf("%+v", entry)
	}
	if _, err := Read(strings.NewReader("bridge\n\tnone main\n"), func(string) bool { return true }); err == nil || !strings.Contains(err.Error(), "none main") {
		t.Error(err)
	}
}

func TestDraw(t *testing.T) {
	root, err := Read(strings.NewReader(samples), func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := root.Draw(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", ">main.main<", ">runtime.mallocgc<", ">other program<"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q", want)
		}
	}
	for d := xml.NewDecoder(&out); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := new(Frame).Draw(io.Discard); err == nil {
		t.Error("a picture of nothing")
	}
}
