// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"bufio"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// readResolvConf reads a file in the format of resolv.conf(5). Lines without a
// value and keywords that a CNI result has no place for are skipped.
func readResolvConf(path string) (types.DNS, error) {
	var dns types.DNS
	f, err := os.Open(path)
	if err != nil {
		return dns, cnierr.Wrap(cnierr.CodeIO, err, "read ipam.resolvConf %q", path)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, words[1])
		case "domain":
			dns.Domain = words[1]
		case "search":
			dns.Search = append(dns.Search, words[1:]...)
		case "options":
			dns.Options = append(dns.Options, words[1:]...)
		}
	}
	return dns, cnierr.Wrap(cnierr.CodeIO, lines.Err(), "read ipam.resolvConf %q", path)
}
