// SPDX-License-Identifier: Apache-2.0

// Package fuzztest has what fuzz targets share: configurations of real clusters as seeds, odd variants of them, and
// the properties that hold for every parser. Only tests import it. It runs no plugin and touches no kernel state.
package fuzztest

import (
	"embed"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

//go:embed testdata
var lists embed.FS

// jsonBlock is an example in a page.
var jsonBlock = regexp.MustCompile("(?ms)^```json\n(.*?)^```$")

type object = map[string]json.RawMessage

// Configurations returns the configurations of one plugin as a runtime hands them over: with the name and the version
// of their list. They come from the lists in testdata, which distributions and runtimes install, and from the
// examples in the pages of the plugins. An IPAM plugin gets the configurations that name it in ipam.type.
func Configurations(tb testing.TB, plugin string) []string {
	tb.Helper()
	var found []string
	for _, text := range documents(tb) {
		var list struct {
			Name       json.RawMessage
			CNIVersion json.RawMessage
			Plugins    []object
		}
		if err := json.Unmarshal(text, &list); err != nil {
			continue // an example that is a part of a configuration
		}
		if list.Plugins == nil {
			var one object
			_ = json.Unmarshal(text, &one) // the text is an object, as decoded above
			list.Plugins = []object{one}
		}
		for _, conf := range list.Plugins {
			if !concerns(conf, plugin) {
				continue
			}
			for key, value := range (object{"name": list.Name, "cniVersion": list.CNIVersion}) {
				if len(value) > 0 {
					conf[key] = value
				}
			}
			stdin, err := json.Marshal(conf)
			if err != nil {
				tb.Fatal(err)
			}
			found = append(found, string(stdin))
		}
	}
	if len(found) == 0 {
		tb.Fatalf("no configuration of %s", plugin)
	}
	return found
}

// concerns reports that a configuration is one of the plugin, or of a plugin that calls it for addresses.
func concerns(conf object, plugin string) bool {
	var kind string
	var ipam struct{ Type string }
	_ = json.Unmarshal(conf["type"], &kind) // absent: empty
	_ = json.Unmarshal(conf["ipam"], &ipam)
	return kind == plugin || ipam.Type == plugin
}

func documents(tb testing.TB) (all [][]byte) {
	tb.Helper()
	entries, err := lists.ReadDir("testdata")
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range entries {
		text, err := lists.ReadFile("testdata/" + e.Name())
		if err != nil {
			tb.Fatal(err)
		}
		if !json.Valid(text) {
			tb.Fatalf("%s is not JSON", e.Name())
		}
		all = append(all, text)
	}
	pages, err := filepath.Glob(filepath.Join(root(tb), "plugins/*/*/README.md"))
	if err != nil || len(pages) == 0 {
		tb.Fatalf("%d pages of plugins: %v", len(pages), err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			tb.Fatal(err)
		}
		for _, m := range jsonBlock.FindAllSubmatch(text, -1) {
			all = append(all, m[1])
		}
	}
	return all
}

// root is the directory of go.mod.
func root(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if filepath.Dir(dir) == dir {
			tb.Fatal("no go.mod above the test")
		}
		dir = filepath.Dir(dir)
	}
}
