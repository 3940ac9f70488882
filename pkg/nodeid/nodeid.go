// SPDX-License-Identifier: Apache-2.0

// Package nodeid identifies the running system: by its boot, and by the machine. Files that outlive a reboot have these ids, so that
// their readers know what they may still believe. It imports only pkg/file.
package nodeid

import (
	"sync"

	"github.com/sluice-cni/sluice/pkg/file"
)

// BootID is the kernel's name of this boot; empty where it cannot be read.
var BootID = sync.OnceValue(func() string { return file.ReadLine("/proc/sys/kernel/random/boot_id") })

// MachineID is the name of the machine in machine-id(5), which stays over reboots. It is empty where there is none, as in the image of
// a system before its first boot.
func MachineID() string {
	id := file.ReadLine("/etc/machine-id")
	if id == "uninitialized" {
		return ""
	}
	return id
}
