// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
)

var (
	validVersion = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z.+-]*$`)
	validImage   = regexp.MustCompile(`^[a-z0-9]+([._:/-]+[a-z0-9]+)*$`)
	described    = regexp.MustCompile(`^v?([0-9][0-9A-Za-z.+~-]*?)(?:-([0-9]+)-g([0-9a-f]+))?(-dirty)?$`)
)

// packageVersion is the version in the form that dpkg and rpm compare: a pre-release (v1.2.0-rc.1) is older than its release, and a
// commit after a tag (v1.2.0-5-gabcdef) is newer than it. A commit without a tag is older than every release. Among those the
// commit's date decides.
func (r *release) packageVersion() string {
	m := described.FindStringSubmatch(r.version)
	if m == nil || !strings.Contains(m[1], ".") {
		return "0~" + r.time.Format("20060102150405") + "." + strings.ReplaceAll(r.version, "-", ".")
	}
	v := strings.ReplaceAll(strings.Replace(m[1], "-", "~", 1), "-", ".")
	if m[2] != "" {
		v += "+" + m[2] + ".g" + m[3]
	}
	if m[4] != "" {
		v += "+dirty"
	}
	return v
}

// tag is the version as an image's tag, which has no plus sign.
func (r *release) tag() string { return strings.ReplaceAll(r.version, "+", "-") }
