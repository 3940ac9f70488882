// SPDX-License-Identifier: Apache-2.0

package e2etest

import (
	"os"
	"os/exec"
	"time"

	"github.com/sluice-cni/sluice/pkg/test/netlab"
)

// dbusConf is a system bus without any policy.
const dbusConf = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>`

// Firewalld starts firewalld, and a system bus for it, inside the node.
func (w *World) Firewalld() {
	w.T.Helper()
	for program, debian := range map[string]string{"firewalld": "firewalld", "firewall-cmd": "firewalld", "dbus-daemon": "dbus-daemon"} {
		if _, err := exec.LookPath(program); err != nil {
			w.T.Fatalf("%v: install the package %s", err, debian)
		}
	}
	if err := w.Node.Do(func() error {
		if err := os.MkdirAll("/run/dbus", 0o755); err != nil {
			return err
		}
		return os.WriteFile("/run/dbus.conf", []byte(dbusConf), 0o644)
	}); err != nil {
		w.T.Fatal(err)
	}
	w.Start("dbus-daemon", "--config-file=/run/dbus.conf", "--nofork", "--nopidfile")
	Eventually(w.T, 10*time.Second, func() error {
		return w.Node.Do(func() error { _, err := os.Stat("/run/dbus/system_bus_socket"); return err })
	})
	w.Start("firewalld", "--nofork", "--nopid", "--log-file=/run/firewalld.log")
	Eventually(w.T, 30*time.Second, func() error {
		return w.Node.Do(func() error { _, err := netlab.Run("firewall-cmd", "--state"); return err })
	})
}
