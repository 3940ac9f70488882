// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	pciDevices = "sys/bus/pci/devices"
	auxDevices = "sys/bus/auxiliary/devices"
	classNet   = "sys/class/net"
)

// userspaceDrivers are those that hand a PCI device to a process: the kernel
// has no network device for it then. The list is upstream's plugin's.
var userspaceDrivers = map[string]bool{"vfio-pci": true, "uio_pci_generic": true, "igb_uio": true}

// sysfs is the tree below root. What it shows of network devices is that of the
// network namespace it was mounted in.
type sysfs struct{ root string }

// has reports whether a bus has a device of that id.
func (s sysfs) has(bus, id string) bool {
	_, err := os.Stat(filepath.Join(s.root, bus, id))
	return err == nil
}

// pciNet returns the name of a PCI device's network device: the first of its
// own, else of the virtio devices below it.
func (s sysfs) pciNet(id string) (string, error) {
	dir := filepath.Join(s.root, pciDevices, id)
	if name, err := first(filepath.Join(dir, "net")); name != "" || !errors.Is(err, fs.ErrNotExist) {
		return name, err
	}
	virtio, err := filepath.Glob(filepath.Join(dir, "virtio*", "net")) // the only error is of the pattern
	if err != nil || len(virtio) == 0 {
		return "", fmt.Errorf("PCI device %s: %w", id, errNoNet)
	}
	return first(virtio[0])
}

// auxNet is pciNet for a device of the auxiliary bus (a sub-function).
func (s sysfs) auxNet(id string) (string, error) {
	return first(filepath.Join(s.root, auxDevices, id, "net"))
}

// pathNet returns the name of the network device of the device at path, which
// begins with /sys/devices/.
func (s sysfs) pathNet(path string) (string, error) {
	return first(filepath.Join(s.root, path, "net"))
}

var errNoNet = errors.New("it has no network device here; is its driver loaded, or has a pod got it?")

// first returns the first name in a directory of network devices.
func first(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s: %w: %w", filepath.Dir(dir), errNoNet, err)
	}
	if err != nil {
		return "", err
	}
	if len(entries) == 0 {
		return "", fmt.Errorf("%s: %w", filepath.Dir(dir), errNoNet)
	}
	return entries[0].Name(), nil
}

// inUserspace reports that the driver of a PCI device is one of those that hand
// it to a process. A device without a driver is not.
func (s sysfs) inUserspace(id string) (bool, error) {
	driver, err := os.Readlink(filepath.Join(s.root, pciDevices, id, "driver"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return userspaceDrivers[filepath.Base(driver)], err
}

// pciOf returns the PCI address behind a network device, also of a virtio device
// on that bus, "" when there is none.
func (s sysfs) pciOf(ifname string) string {
	dev, err := filepath.EvalSymlinks(filepath.Join(s.root, classNet, ifname, "device"))
	if err != nil {
		return ""
	}
	if strings.HasPrefix(filepath.Base(dev), "virtio") {
		dev = filepath.Dir(dev)
	}
	bus, err := os.Readlink(filepath.Join(dev, "subsystem"))
	if err != nil || filepath.Base(bus) != "pci" {
		return ""
	}
	return filepath.Base(dev)
}

// badID says why s cannot name a device in a bus directory.
func badID(s string) string {
	if s == "." || s == ".." || strings.ContainsAny(s, "/\x00") {
		return "not the id of a device"
	}
	return ""
}
