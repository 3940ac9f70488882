// SPDX-License-Identifier: Apache-2.0

package pintree

import (
	"os"
	"path/filepath"

	"github.com/sluice-cni/sluice/pkg/file"
)

// WriteFile replaces a file of the run directory in one step. The caller has the writers' lock.
func WriteFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return file.Write(path, content, file.Options{Mode: 0o644})
}
