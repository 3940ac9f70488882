// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

// unpacked returns the files of the deb.
func unpacked(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := command("dpkg-deb", "--extract", deb(t, newer), dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Neither of two formatters has a warning about a man page of the package.
func TestManPages(t *testing.T) {
	require.Asked(t, *whole, target)
	pages, err := filepath.Glob(unpacked(t) + "/usr/share/man/man8/*.8.gz")
	if err != nil || len(pages) < 30 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	for _, page := range pages {
		// "mandoc -T lint" says something of style, too: lines of more than 80 bytes, which the commands' texts have.
		if out, err := exec.Command("mandoc", "-T", "lint", "-W", "warning", page).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", page, err, out)
		}
		cmd := exec.Command("man", "--warnings", "--encoding=UTF-8", "--local-file", page)
		cmd.Env = append(os.Environ(), "MANWIDTH=80", "LC_ALL=C.UTF-8", "MANPAGER=cat")
		var errs strings.Builder
		cmd.Stderr = &errs
		if out, err := cmd.Output(); err != nil || errs.Len() > 0 || !strings.Contains(string(out), "SYNOPSIS") {
			t.Errorf("%s: %v\n%s", page, err, errs.String())
		}
	}
}

// Each shell takes its completion, and bash completes a verb, a flag and a plugin with it.
func TestCompletion(t *testing.T) {
	require.Asked(t, *whole, target)
	dir := unpacked(t)
	for shell, file := range map[string]string{
		"bash": "/usr/share/bash-completion/completions/sluice", "zsh": "/usr/share/zsh/vendor-completions/_sluice",
		"fish": "/usr/share/fish/vendor_completions.d/sluice.fish",
	} {
		if _, err := command(shell, "-n", dir+file); err != nil {
			t.Error(err)
		}
	}
	// What bash-completion gives a completion: the words up to the cursor.
	const ask = `
_get_comp_words_by_ref() { cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}; words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; }
__ltrim_colon_completions() { :; }
compopt() { :; }
PATH=$1/usr/lib/sluice:$PATH
. "$1/usr/share/bash-completion/completions/sluice"
COMP_WORDS=(sluice "${@:2}"); COMP_CWORD=$(($# - 1)); COMP_LINE="${COMP_WORDS[*]}"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
__start_sluice
printf '%s\n' "${COMPREPLY[@]}"`
	for want, words := range map[string][]string{
		"status": {"stat"}, "relearn": {"conntrack", "rele"}, "--output": {"status", "--outp"}, "host-local": {"install", "/opt/cni/bin", "host-l"},
	} {
		out, err := command("bash", append([]string{"-c", ask, "bash", dir}, words...)...)
		if err != nil || !strings.HasPrefix(strings.TrimSpace(out), want) {
			t.Errorf("bash completes %q to %q, %v", words, out, err)
		}
	}
}
