// SPDX-License-Identifier: Apache-2.0

package tool

import (
	"errors"
	"io/fs"

	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// localnetKey is the sysctl that lets 127.0.0.0/8 pass a device.
func localnetKey(ifname string) string { return "net/ipv4/conf/" + ifname + "/route_localnet" }

// SetLocalnet lets 127.0.0.0/8 pass the device. Every host behind the device then
// reaches what listens on 127.0.0.1 of the node (CVE-2020-8558), unless a rule
// guards it. No packet from there has a good reason for such a destination:
// replies go to the node's own address, until netfilter translates them back.
func SetLocalnet(ifname string) error { return sysctl.Set(localnetKey(ifname), "1") }

// ResetLocalnet takes SetLocalnet back. A device that is gone is no error.
func ResetLocalnet(ifname string) error {
	if err := sysctl.Set(localnetKey(ifname), "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
