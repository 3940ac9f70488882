// SPDX-License-Identifier: Apache-2.0

package ebpfload

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
)

// bhLock is the option of a real-time kernel that has packets wait for each other on a CPU, as they do on every other kernel.
const bhLock = "CONFIG_PREEMPT_RT_NEEDS_BH_LOCK=y"

// askSerial asks whether a packet's programs run to their end before another packet's begin on that CPU: the programs keep a packet in
// memory of the CPU. A kernel with PREEMPT_RT preempts them from Linux 6.18 on, unless it was built with bhLock.
func askSerial() error {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return err
	}
	if !bpfsys.KernelAtLeast(6, 18) {
		return nil // local_bh_disable() takes a lock there
	}
	return serial(unix.ByteSliceToString(u.Version[:]), func() (io.ReadCloser, error) {
		return kernelConfig("/proc/config.gz", "/boot/config-"+bpfsys.KernelRelease())
	})
}

// serial is askSerial on a kernel of 6.18 or later, by what uname says of its build. config opens its configuration.
func serial(version string, config func() (io.ReadCloser, error)) error {
	if !strings.Contains(version, "PREEMPT_RT") {
		return nil
	}
	const why = "the kernel is built with PREEMPT_RT, which from Linux 6.18 on lets a packet interrupt another one on its CPU"
	f, err := config()
	if err != nil {
		return loadapi.No("%s, and does not show whether CONFIG_PREEMPT_RT_NEEDS_BH_LOCK is set: %v", why, err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if lines.Text() == bhLock {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return loadapi.No("%s, and its configuration cannot be read: %v", why, err)
	}
	return loadapi.No("%s: it needs CONFIG_PREEMPT_RT_NEEDS_BH_LOCK", why)
}

// kernelConfig opens the running kernel's configuration: what the kernel itself shows, else the file of the distribution.
func kernelConfig(compressed, plain string) (io.ReadCloser, error) {
	f, err := os.Open(compressed)
	if errors.Is(err, os.ErrNotExist) {
		return os.Open(plain)
	}
	if err != nil {
		return nil, err
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", compressed, err), f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{z, f}, nil
}
