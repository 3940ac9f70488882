// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// parts is the SBOM in the making: programs of all architectures, and the modules that they contain.
type parts struct {
	components   map[string]cdx.Component
	dependencies map[string][]string
}

// makeSBOM writes one CycloneDX document about all programs, with the digest of each, and the image if it is among the results.
// cyclonedx-gomod reads the modules out of the programs. The document says neither when nor by which copy of that tool it was made,
// so it is the same each time.
func (r *release) makeSBOM() error {
	if r.bom == "" {
		return errors.New("-sbom-tool: must be the path of cyclonedx-gomod; make sbom installs it")
	}
	names, err := programs()
	if err != nil {
		return err
	}
	p := &parts{components: map[string]cdx.Component{}, dependencies: map[string][]string{}}
	for _, arch := range r.arches {
		for _, name := range names {
			if err := r.addProgram(p, arch, name); err != nil {
				return err
			}
		}
	}
	if err := r.addImage(p); err != nil {
		return err
	}
	return create(r.result("sluice-%s.cdx.json", r.version), func(w io.Writer) error {
		return cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(r.document(p), cdx.SpecVersion1_6)
	})
}

// addProgram adds a program and its modules.
func (r *release) addProgram(p *parts, arch, name string) error {
	file := r.program(arch, name)
	cmd := exec.Command(r.bom, "bin", "-json", "-noserial", "-notimestamp", "-std", "-licenses", "-version", r.version, file)
	// Licences are looked for in the module cache, which the build has filled.
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=-mod=mod", "GOWORK=off")
	out, err := output(cmd)
	if err != nil {
		return err
	}
	var bom cdx.BOM
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(&bom); err != nil {
		return fmt.Errorf("%s: %w", r.bom, err)
	}
	if bom.Metadata == nil || bom.Metadata.Component == nil || bom.Components == nil || bom.Dependencies == nil {
		return fmt.Errorf("%s bin %s: names no parts", r.bom, name)
	}
	sum, err := digest(file)
	if err != nil {
		return err
	}
	ref := "program:" + arch + "/" + name
	program := *bom.Metadata.Component
	p.dependencies[ref] = nil
	for _, d := range *bom.Dependencies {
		if d.Ref == program.BOMRef && d.Dependencies != nil {
			p.dependencies[ref] = *d.Dependencies
		}
	}
	program.BOMRef, program.Name = ref, name
	program.Hashes = hashes(sum)
	program.Properties = &[]cdx.Property{{Name: "architecture", Value: arch}}
	program.Licenses = licence("Apache-2.0")
	if name == "sluice-helper" || name == "sluice" { // they contain the compiled eBPF programs
		program.Licenses = &cdx.Licenses{{Expression: "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)"}}
	}
	p.components[ref] = program
	for _, c := range *bom.Components {
		c.PackageURL = withoutPlatform(c.PackageURL)
		if c.Name == "std" {
			c.Licenses = licence("BSD-3-Clause")
		}
		p.components[c.BOMRef] = c
	}
	return nil
}

// addImage adds the image that lies among the results.
func (r *release) addImage(p *parts) error {
	sum, err := digest(r.imageFile())
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	const ref = "image"
	p.components[ref] = cdx.Component{
		BOMRef: ref, Type: cdx.ComponentTypeContainer, Name: r.image, Version: r.tag(), Hashes: hashes(sum),
		Properties: &[]cdx.Property{{Name: "file", Value: filepath.Base(r.imageFile())}},
	}
	for other := range p.components {
		if strings.HasPrefix(other, "program:") {
			p.dependencies[ref] = append(p.dependencies[ref], other)
		}
	}
	return nil
}

// document puts the parts in order.
func (r *release) document(p *parts) *cdx.BOM {
	const self = "sluice"
	components := make([]cdx.Component, 0, len(p.components))
	dependencies := []cdx.Dependency{}
	var top []string
	for ref, c := range p.components {
		components = append(components, c)
		needs := slices.Sorted(slices.Values(p.dependencies[ref]))
		dependencies = append(dependencies, cdx.Dependency{Ref: ref, Dependencies: &needs})
		if _, own := p.dependencies[ref]; own {
			top = append(top, ref)
		}
	}
	slices.Sort(top)
	dependencies = append(dependencies, cdx.Dependency{Ref: self, Dependencies: &top})
	slices.SortFunc(components, func(a, b cdx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	slices.SortFunc(dependencies, func(a, b cdx.Dependency) int { return strings.Compare(a.Ref, b.Ref) })
	bom := cdx.NewBOM()
	bom.Components, bom.Dependencies = &components, &dependencies
	bom.Metadata = &cdx.Metadata{
		Timestamp: r.time.Format("2006-01-02T15:04:05Z"),
		Tools:     &cdx.ToolsChoice{Components: &[]cdx.Component{{Type: cdx.ComponentTypeApplication, Name: "cyclonedx-gomod"}, {Type: cdx.ComponentTypeApplication, Name: "build/release"}}},
		Component: &cdx.Component{
			BOMRef: self, Type: cdx.ComponentTypeApplication, Name: self, Version: r.version,
			Licenses: &cdx.Licenses{{Expression: "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)"}},
		},
	}
	return bom
}

func hashes(sum string) *[]cdx.Hash { return &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: sum}} }

func licence(id string) *cdx.Licenses { return &cdx.Licenses{{License: &cdx.License{ID: id}}} }

// withoutPlatform takes the architecture off the name of a module: programs of all architectures share the entry.
func withoutPlatform(url string) string {
	name, query, _ := strings.Cut(url, "?")
	kept := slices.DeleteFunc(strings.Split(query, "&"), func(q string) bool {
		return strings.HasPrefix(q, "goarch=") || strings.HasPrefix(q, "goos=")
	})
	if len(kept) == 0 || query == "" {
		return name
	}
	return name + "?" + strings.Join(kept, "&")
}
