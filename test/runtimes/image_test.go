// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"io"

	"github.com/sluice-cni/sluice/pkg/test/ociimage"
)

// imageName is the one image: what sandboxes wait in, and what containers run. No registry is asked for it.
const imageName = "sluice.test/workload:1"

// writeImage writes the image as an OCI archive. It has one program.
func writeImage(w io.Writer) error {
	return ociimage.Image{Name: imageName, Files: map[string]string{"/workload": workload}, Cmd: []string{"/workload", "pause"}}.Write(w)
}
