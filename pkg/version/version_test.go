// SPDX-License-Identifier: Apache-2.0

package version

import (
	"testing"

	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp"
)

func TestSince(t *testing.T) {
	t.Parallel()
	if diff := cmp.Diff(version.All.SupportedVersions(), All().SupportedVersions()); diff != "" {
		t.Errorf("our list differs from the library's (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"0.4.0", "1.0.0", "1.1.0"}, Since("0.4.0").SupportedVersions()); diff != "" {
		t.Errorf("Since (-want +got):\n%s", diff)
	}
	defer func() {
		if recover() == nil {
			t.Error("an unknown version did not panic")
		}
	}()
	Since("9.9.9")
}
