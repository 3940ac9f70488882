// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Result is what became of a test.
type Result string

// The results that a test which ran can have.
const (
	Passed Result = "passed"
	Failed Result = "failed"
)

// Results are those of tests by their names.
type Results map[string]Result

// Count returns how many tests have a result.
func (r Results) Count(of Result) (n int) {
	for _, result := range r {
		if result == of {
			n++
		}
	}
	return n
}

// ReadJUnit reads the reports of a folder. Tests that were left out are not in the results.
func ReadJUnit(dir string) (Results, error) {
	files, err := filepath.Glob(filepath.Join(dir, "junit*.xml"))
	if err != nil {
		return nil, err
	}
	all := Results{}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		if err := all.add(data); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return all, nil
}

func (r Results) add(data []byte) error {
	var report struct {
		Suites []struct {
			Cases []struct {
				Name    string    `xml:"name,attr"`
				Status  string    `xml:"status,attr"`
				Skipped *struct{} `xml:"skipped"`
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(data, &report); err != nil {
		return err
	}
	for _, suite := range report.Suites {
		for _, c := range suite.Cases {
			// What is not a test is the suite's own beginning and end.
			test := strings.HasPrefix(c.Name, "[It] ")
			switch {
			case c.Skipped != nil:
			case c.Failure != nil || c.Error != nil:
				r[strings.TrimPrefix(c.Name, "[It] ")] = Failed
			case test && r[strings.TrimPrefix(c.Name, "[It] ")] != Failed:
				r[strings.TrimPrefix(c.Name, "[It] ")] = Passed
			}
		}
	}
	return nil
}
