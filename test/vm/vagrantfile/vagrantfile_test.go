// SPDX-License-Identifier: Apache-2.0

package vagrantfile

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestVagrantfile needs ruby and vagrant, no provider and no network.
func TestVagrantfile(t *testing.T) {
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir = "../../.."
		cmd.Env = append(os.Environ(), "VAGRANT_HOME="+t.TempDir(), "VAGRANT_DOTFILE_PATH="+t.TempDir(), "VAGRANT_CHECKPOINT_DISABLE=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s (make test-interop installs what is missing): %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	run("ruby", "-c", "Vagrantfile")
	out := run("vagrant", "validate", "--ignore-provider")
	var got []string
	for _, m := range regexp.MustCompile(`(?m)^==> (\S+): Ignoring`).FindAllStringSubmatch(out, -1) {
		got = append(got, m[1])
	}
	var want []string
	for _, line := range []string{"debian11", "debian12", "debian13", "ubuntu2204", "ubuntu2404", "rocky9", "fedora"} {
		want = append(want, line, line+"-peer")
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("machines (-want +got):\n%s", d)
	}
	run("bash", "-n", "test/vm/provision.sh")
}
