// SPDX-License-Identifier: Apache-2.0

//go:build ignore

// Writes ../types_bpfel.go, a step of "go generate": what bpf2go made of types.c
// without the code that loads it, which would link a BPF library into all that
// use the types. The object itself has no programs and is removed.
package main

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"log"
	"os"
	"strings"
)

const (
	source = "types_bpfel.go"
	object = "types_bpfel.o"
	// prefix is what the C types and their enumerators begin with; bpf2go's own names do not.
	prefix = "TypesSl"
)

func main() {
	text, err := os.ReadFile(source)
	if err != nil {
		log.Fatal(err)
	}
	types, err := typesIn(text)
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile("../types_bpfel.go", types, 0o644); err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{source, object} {
		if err := os.Remove(name); err != nil {
			log.Fatal(err)
		}
	}
}

// typesIn returns the declarations of C types in text, under its header.
func typesIn(text []byte) ([]byte, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, source, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	offset := func(p token.Pos) int { return files.Position(p).Offset }
	var out bytes.Buffer
	out.Write(text[:offset(file.Package)]) // who generated it, and for which machines
	out.WriteString("package bpfgen\n\nimport \"structs\"\n")
	for _, decl := range file.Decls {
		if isType(decl) {
			out.WriteString("\n")
			out.Write(text[offset(decl.Pos()):offset(decl.End())])
			out.WriteString("\n")
		}
	}
	return format.Source(out.Bytes())
}

// isType reports whether decl declares a C type or the values of an enum.
func isType(decl ast.Decl) bool {
	group, ok := decl.(*ast.GenDecl)
	if !ok || len(group.Specs) == 0 {
		return false
	}
	switch spec := group.Specs[0].(type) {
	case *ast.TypeSpec:
		return strings.HasPrefix(spec.Name.Name, prefix)
	case *ast.ValueSpec:
		return group.Tok == token.CONST && strings.HasPrefix(spec.Names[0].Name, prefix)
	}
	return false
}
