// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

// strangerRPM is an rpm of another project that owns plugins.
func strangerRPM(t *testing.T, version string, plugins ...string) string {
	t.Helper()
	dir := t.TempDir()
	var install, files strings.Builder
	for _, name := range plugins {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(upstream(t, name)+version), 0o755); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&install, "install -D -m 755 %s/%s %%{buildroot}%s/%s\n", dir, name, pluginDir, name)
		fmt.Fprintf(&files, "%s/%s\n", pluginDir, name)
	}
	spec := filepath.Join(dir, "other.spec")
	text := fmt.Sprintf(`Name: kubernetes-cni
Version: %s
Release: 1
Summary: plugins of others
License: Apache-2.0
BuildArch: noarch
AutoReqProv: no
%%global __os_install_post %%{nil}
%%global _binaries_in_noarch_packages_terminate_build 0
%%global _binary_payload w0.gzdio
%%description
Plugins of others.
%%install
%s
%%files
%s
`, version, install.String(), files.String())
	if err := os.WriteFile(spec, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := command("rpmbuild", "-bb", "--quiet", "--define", "_topdir "+dir, "--define", "_rpmdir "+dir,
		"--define", "_rpmfilename other.rpm", "--define", "_dbpath "+dir+"/db", spec); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "other.rpm")
}

// rpm runs the packager of the host, with a database of its own.
func (h *host) rpm(args ...string) string {
	h.t.Helper()
	return h.run("rpm", append([]string{"--dbpath", "/var/lib/rpm-under-test", "--force-debian", "--nodeps"}, args...)...)
}

// The rpm does the same as the deb. rpm has no diversions, so another package's upgrade has the name for the time of its transaction.
// Its removal takes the name away for that time, and the triggers bring Sluice's plugins back.
func TestPrivilegedRPM(t *testing.T) {
	require.Asked(t, *whole, target)
	before, after := rpm(t, older), rpm(t, newer)
	other1, other2 := strangerRPM(t, "1.1", others...), strangerRPM(t, "1.2", others...)
	h := newHost(t)
	h.rpm("--install", other1)
	h.write(pluginDir+"/flannel", "copied by an installer")
	plain := h.network("plain", "10.80.0.0/24", "", "")
	first := h.connect(plain, "first", "10.80.0.2:80", h.Node.NS, 0) // by upstream's plugins
	stop := h.churn(h.network("churn", "10.81.0.0/24", "", ""))

	h.rpm("--install", before)
	h.installed(older, "1.1", "after the installation")
	h.wantFile(pluginDir+"/flannel.sluice-diverted", "copied by an installer", "after the installation")
	first.lives("after the installation")
	published := h.network("published", "10.82.0.0/24", `"ipMasq": true,`, `, {"type": "portmap", "capabilities": {"portMappings": true}}`)
	second := h.connect(published, "second", "192.0.2.1:8080", h.Client().NS, 8080)

	h.rpm("--upgrade", other2)
	h.installed(older, "1.2", "after the other package's upgrade")
	h.rpm("--upgrade", after)
	h.installed(newer, "1.2", "after the upgrade")
	second.lives("after the upgrade")
	h.rpm("--upgrade", "--oldpackage", before)
	h.installed(older, "1.2", "after the downgrade")
	second.lives("after the downgrade")
	if pods := stop(); pods < 5 {
		t.Errorf("%d pods came and went meanwhile", pods)
	}

	h.rpm("--erase", "kubernetes-cni")
	h.installed(older, "", "after the other package's removal")
	h.rpm("--install", other2)
	h.installed(older, "1.2", "after the other package's return")

	stop = h.churn(h.network("churn2", "10.83.0.0/24", "", ""))
	h.rpm("--erase", "sluice")
	for _, name := range others {
		h.wantFile(pluginDir+"/"+name, upstream(t, name)+"1.2", "after the removal")
	}
	h.wantFile(pluginDir+"/flannel", "copied by an installer", "after the removal")
	if got, want := strings.Join(h.list(pluginDir), " "), "bridge flannel host-local loopback"; got != want {
		t.Errorf("after the removal %s has %q, want %q", pluginDir, got, want)
	}
	if out := h.rpm("--verify", "kubernetes-cni"); out != "" {
		t.Errorf("the other package's files are not as it brought them: %s", out)
	}
	for _, gone := range []string{"/usr/lib/sluice/sluice", "/usr/bin/sluice", "/etc/default/sluice", "/var/lib/sluice/plugins"} {
		h.wantFile(gone, "absent", "after the removal")
	}
	stop()
	first.lives("after the removal")
	second.lives("after the removal")
}
