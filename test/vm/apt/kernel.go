// SPDX-License-Identifier: Apache-2.0

package apt

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Newest as a series means the highest there is.
const Newest = "newest"

// Kernel is a kernel of Debian's cloud flavour: small, and with every module a
// CNI plugin could ask for.
type Kernel struct {
	// Release is what uname -r says in it.
	Release string
	// Packages hold image and modules.
	Packages []string
}

// kernelName matches the package that holds vmlinuz. From 6.19 on linux-image-X
// is empty, linux-binary-X holds it and linux-modules-X the modules.
var kernelName = regexp.MustCompile(`^linux-(image|binary)-((\d+\.\d+)\.\d[^~_]*-cloud-amd64)$`)

// PickKernel returns the newest kernel of a series ("6.12"), or of the highest
// one, among package names.
func PickKernel(names []string, series string) (Kernel, error) {
	var best string
	split := map[string]bool{}
	for _, name := range names {
		m := kernelName.FindStringSubmatch(name)
		if m == nil || series != Newest && series != m[3] {
			continue
		}
		if m[1] == "binary" {
			split[m[2]] = true
		}
		if best == "" || slices.Compare(numbers(m[2]), numbers(best)) > 0 {
			best = m[2]
		}
	}
	if best == "" {
		return Kernel{}, fmt.Errorf("no suite carries a package linux-image-%s.*-cloud-amd64", series)
	}
	k := Kernel{Release: best, Packages: []string{"linux-image-" + best}}
	if split[best] {
		k.Packages = []string{"linux-binary-" + best, "linux-modules-" + best, "linux-base-" + best}
	}
	return k, nil
}

// numbers returns all numbers of a release in order: what makes one newer.
func numbers(release string) []int {
	fields := strings.FieldsFunc(strings.TrimSuffix(release, "amd64"), func(r rune) bool { return r < '0' || r > '9' })
	var out []int
	for _, f := range fields {
		n, err := strconv.Atoi(f)
		if err != nil {
			break // longer than any version
		}
		out = append(out, n)
	}
	return out
}
