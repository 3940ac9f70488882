// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/sluice-cni/sluice/pkg/test/require"
)

// strangerDeb is a deb of another project that owns plugins, as kubernetes-cni does. Its plugins are upstream's, with the version
// behind their end.
func strangerDeb(t *testing.T, version string, plugins ...string) string {
	t.Helper()
	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	control := "Package: kubernetes-cni\nVersion: " + version + "\nArchitecture: all\nMaintainer: other <other@example.org>\nDescription: plugins of others\n"
	files := map[string]string{"DEBIAN/control": control}
	for _, name := range plugins {
		files[pluginDir[1:]+"/"+name] = upstream(t, name) + version
	}
	for name, content := range files {
		file := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "kubernetes-cni_"+version+".deb")
	if _, err := command("dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// others are the plugins of the other package.
var others = []string{"bridge", "host-local", "loopback"}

// installed wants the plugins to be Sluice's, and those of the other package aside.
func (h *host) installed(version, other, when string) {
	h.t.Helper()
	h.wantVersion(version, when)
	for _, name := range []string{"bridge", "portmap", "dhcp", "flannel", "host-local"} {
		h.wantPlugin(name, when)
	}
	for _, name := range others {
		want := "absent"
		if other != "" {
			want = upstream(h.t, name) + other
		}
		h.wantFile(pluginDir+"/"+name+".sluice-diverted", want, when)
	}
}

// The deb comes, is upgraded, downgraded, removed and purged, beside another package with plugins that does the same. Connections of
// pods live, no call of a plugin fails at any moment, and each file of others is where it belongs.
func TestPrivilegedDeb(t *testing.T) {
	require.Asked(t, *whole, target)
	before, after := deb(t, older), deb(t, newer)
	other1, other2 := strangerDeb(t, "1.1", others...), strangerDeb(t, "1.2", others...)
	h := newHost(t)
	h.run("dpkg", "--install", other1)
	h.write(pluginDir+"/flannel", "copied by an installer")

	plain := h.network("plain", "10.80.0.0/24", "", "")
	first := h.connect(plain, "first", "10.80.0.2:80", h.Node.NS, 0) // by upstream's plugins
	stop := h.churn(h.network("churn", "10.81.0.0/24", "", ""))

	h.run("dpkg", "--install", before)
	h.installed(older, "1.1", "after the installation")
	h.wantFile(pluginDir+"/flannel.sluice-diverted", "copied by an installer", "after the installation")
	if out := h.run("dpkg", "--verify", "kubernetes-cni"); out != "" {
		t.Errorf("the other package's files are not as it brought them: %s", out)
	}
	first.lives("after the installation")
	published := h.network("published", "10.82.0.0/24", `"ipMasq": true,`, `, {"type": "portmap", "capabilities": {"portMappings": true}}`)
	second := h.connect(published, "second", "192.0.2.1:8080", h.Client().NS, 8080)

	h.run("dpkg", "--install", other2)
	h.installed(older, "1.2", "after the other package's upgrade")
	h.run("dpkg", "--install", after)
	h.installed(newer, "1.2", "after the upgrade")
	second.lives("after the upgrade")
	h.run("dpkg", "--install", before)
	h.installed(older, "1.2", "after the downgrade")
	second.lives("after the downgrade")

	h.run("dpkg", "--remove", "kubernetes-cni")
	h.installed(older, "", "after the other package's removal")
	h.run("dpkg", "--install", other2)
	h.installed(older, "1.2", "after the other package's return")

	h.run("dpkg", "--remove", "sluice")
	h.removed("after the removal")
	if out := h.run("dpkg", "--verify", "kubernetes-cni"); out != "" {
		t.Errorf("the other package's files are not as it brought them: %s", out)
	}
	h.run("dpkg", "--purge", "sluice")
	h.wantFile("/etc/default/sluice", "absent", "after the purge")
	h.wantFile("/var/lib/sluice/plugins", "absent", "after the purge")
	first.lives("after the purge")
	second.lives("after the purge")
	if pods := stop(); pods < 5 {
		t.Errorf("%d pods came and went meanwhile", pods)
	} else {
		t.Logf("%d pods came and went meanwhile", pods)
	}
}

// removed wants the files of others back, and none of Sluice's.
func (h *host) removed(when string) {
	h.t.Helper()
	for _, name := range others {
		h.wantFile(pluginDir+"/"+name, upstream(h.t, name)+"1.2", when)
	}
	h.wantFile(pluginDir+"/flannel", "copied by an installer", when)
	if got, want := strings.Join(h.list(pluginDir), " "), "bridge flannel host-local loopback"; got != want {
		h.t.Errorf("%s: %s has %q, want %q", when, pluginDir, got, want)
	}
	if out := h.run("dpkg-divert", "--list", "*sluice*"); out != "" {
		h.t.Errorf("%s: diversions stay: %s", when, out)
	}
}

// list returns the names in a folder of the host.
func (h *host) list(dir string) (names []string) {
	h.t.Helper()
	h.do(func() error {
		entries, err := os.ReadDir(dir)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return err
	})
	return names
}

// checkUnits wants systemd to have no word on the units, their programs and man pages, and none of them to be enabled.
func (h *host) checkUnits() {
	h.t.Helper()
	units := strings.Fields(h.run("sh", "-c", "ls /usr/lib/systemd/system/sluice-*"))
	if len(units) < 3 {
		h.t.Errorf("units %v", units)
	}
	if out := h.run("systemd-analyze", append([]string{"verify"}, units...)...); out != "" {
		h.t.Errorf("systemd says: %s", out)
	}
	if out := h.run("find", "/etc/systemd", "-name", "sluice*"); out != "" {
		h.t.Errorf("the package enables %s", out)
	}
}

// What CI runs: the image for this machine has its size and contents. The deb comes, attaches a pod and goes; the pod's connection lives.
func TestPrivilegedPackageQuick(t *testing.T) {
	require.Asked(t, *quick, "make package-quick")
	dir := t.TempDir()
	if err := release(root, dir, newer, runtime.GOARCH, "image", "packages"); err != nil {
		t.Fatal(err)
	}
	checkImage(t, filepath.Join(dir, "sluice-"+newer+"-image.tar"), runtime.GOARCH)
	h := newHost(t)
	h.run("dpkg", "--install", filepath.Join(dir, fmt.Sprintf("sluice_%s_%s.deb", strings.TrimPrefix(newer, "v"), runtime.GOARCH)))
	h.installed(newer, "", "after the installation")
	rt := h.network("published", "10.82.0.0/24", `"ipMasq": true,`, `, {"type": "portmap", "capabilities": {"portMappings": true}}`)
	pod := h.connect(rt, "pod", "192.0.2.1:8080", h.Client().NS, 8080)
	h.run("dpkg", "--purge", "sluice")
	pod.lives("after the purge")
	for _, gone := range []string{pluginDir, "/usr/lib/sluice/sluice", "/usr/bin/sluice", "/etc/default/sluice", "/var/lib/sluice/plugins"} {
		h.wantFile(gone, "absent", "after the purge")
	}
}

// On a node without other plugins nothing is left. The plugin directory comes back after another package wiped it. The settings name
// more directories.
func TestPrivilegedDebAlone(t *testing.T) {
	require.Asked(t, *whole, target)
	before, after := deb(t, older), deb(t, newer)
	wiper := strangerDeb(t, "2.0", "loopback")
	h := newHost(t)
	h.run("dpkg", "--install", before)
	h.installed(older, "", "alone")
	h.checkUnits()
	h.do(func() error { return os.RemoveAll(pluginDir) })
	h.run("dpkg", "--install", wiper)
	h.wantPlugin("bridge", "after another package wiped the directory")
	h.run("dpkg", "--purge", "kubernetes-cni")

	// An installer that knows nothing of dpkg writes in place, and the next upgrade says so.
	h.write(pluginDir+"/ptp", "foreign")
	h.write("/etc/default/sluice", "CNI_BIN_DIRS=\"/opt/cni/bin /usr/lib/cni\"\n")
	h.write("/usr/lib/cni/tuning", "distribution's")
	h.run("dpkg", "--install", "--force-confold", after)
	h.wantPlugin("ptp", "after the upgrade")
	h.wantFile(pluginDir+"/ptp.sluice-diverted", "foreign", "after the upgrade")
	h.wantFile("/usr/lib/cni/tuning.sluice-diverted", "distribution's", "with a second directory")
	if got := h.read("/usr/lib/cni/bridge"); !strings.HasPrefix(got, "#!/usr/lib/cni/sluice-cni") {
		t.Errorf("with a second directory: bridge is %.40q", got)
	}
	h.write("/etc/default/sluice", "CNI_BIN_DIRS=/opt/cni/bin\n")
	h.run("/usr/lib/sluice/plugin-files", "install")
	h.wantFile("/usr/lib/cni/tuning", "distribution's", "without the second directory")
	h.wantFile("/usr/lib/cni/sluice-cni", "absent", "without the second directory")

	// A wrong setting is an error before anything changes.
	for _, wrong := range []string{"opt/cni", "/" + strings.Repeat("x", 200)} {
		h.write("/etc/default/sluice", "CNI_BIN_DIRS=\""+wrong+"\"\n")
		if out, err := h.try("/usr/lib/sluice/plugin-files", "install"); err == nil || !strings.Contains(err.Error(), "CNI_BIN_DIRS: "+wrong) {
			t.Errorf("CNI_BIN_DIRS %s: %v, %s", wrong, err, out)
		}
	}
	h.write("/etc/default/sluice", "CNI_BIN_DIRS=/opt/cni/bin\n")
	h.installed(newer, "", "after wrong settings")

	h.run("dpkg", "--purge", "sluice")
	h.wantFile(pluginDir+"/ptp", "foreign", "after the purge")
	if got := strings.Join(h.list(pluginDir), " "); got != "ptp" {
		t.Errorf("after the purge %s has %q", pluginDir, got)
	}
	for _, gone := range []string{"/usr/lib/sluice/sluice", "/usr/bin/sluice", "/etc/default/sluice", "/var/lib/sluice/plugins"} {
		h.wantFile(gone, "absent", "after the purge")
	}
}
