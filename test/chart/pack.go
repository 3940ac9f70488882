// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"sigs.k8s.io/yaml"
)

var (
	// released is a version of a tag, with a "v" or without, as Semantic Versioning has them.
	released  = regexp.MustCompile(`^v?((0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-[0-9A-Za-z.-]+)?)$`)
	noVersion = regexp.MustCompile(`[^0-9A-Za-z.-]+`)
	// A part of digits alone must have no zero in front. "g" is what git describe puts before a commit.
	digitFirst = regexp.MustCompile(`(^|[.])([0-9])`)
)

// Versions returns the versions of the chart for a version of the build. A build without a tag has one that is before every release.
func Versions(build string) (version, appVersion string) {
	if m := released.FindStringSubmatch(build); m != nil {
		return m[1], build
	}
	text := strings.Trim(noVersion.ReplaceAllString(build, "-"), ".-")
	return "0.0.0-" + digitFirst.ReplaceAllString(text, "${1}g${2}"), build
}

// Pack writes the chart as sluice-VERSION.tgz into dir and returns its path. The bytes depend on the chart and the version alone.
func Pack(dir, build string) (string, error) {
	ch, err := loader.LoadDir(Dir)
	if err != nil {
		return "", err
	}
	ch.Metadata.Version, ch.Metadata.AppVersion = Versions(build)
	if err := ch.Validate(); err != nil {
		return "", err
	}
	files := slices.Clone(ch.Raw)
	for i, f := range files {
		if f.Name == chartutil.ChartfileName {
			text, err := yaml.Marshal(ch.Metadata)
			if err != nil {
				return "", err
			}
			files[i] = &chart.File{Name: f.Name, Data: append([]byte(licence), text...)}
		}
	}
	slices.SortFunc(files, func(a, b *chart.File) int { return strings.Compare(a.Name, b.Name) })
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	t := tar.NewWriter(z)
	for _, f := range files {
		h := &tar.Header{Name: ch.Name() + "/" + f.Name, Mode: 0o644, Size: int64(len(f.Data)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := t.WriteHeader(h); err != nil {
			return "", err
		}
		if _, err := t.Write(f.Data); err != nil {
			return "", err
		}
	}
	if err := t.Close(); err != nil {
		return "", err
	}
	if err := z.Close(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	file := filepath.Join(dir, fmt.Sprintf("%s-%s.tgz", ch.Name(), ch.Metadata.Version))
	return file, os.WriteFile(file, out.Bytes(), 0o644)
}
