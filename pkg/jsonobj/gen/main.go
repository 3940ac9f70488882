// SPDX-License-Identifier: Apache-2.0

// Command gen writes the Field methods of package jsonobj from the json tags of structs. "go generate" runs it in each
// package that has a struct marked with the comment //jsonobj:object. It writes zz_generated_fields.go there, and
// zz_generated_fields_test.go for structs of tests. It reads the syntax only: no other package has to compile.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
)

// Output is the name of a generated file.
const (
	output     = "zz_generated_fields.go"
	testOutput = "zz_generated_fields_test.go"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "jsonobj/gen:", err)
		os.Exit(1)
	}
}

// run brings the generated files of the package in dir up to date.
func run(dir string) error {
	files, err := Generate(dir)
	if err != nil {
		return err
	}
	for name, want := range files {
		path := filepath.Join(dir, name)
		got, err := os.ReadFile(path)
		switch {
		case err == nil && want == nil:
			err = os.Remove(path)
		case want != nil && (err != nil || !bytes.Equal(got, want)):
			err = os.WriteFile(path, want, 0o644)
		default:
			err = nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
