// SPDX-License-Identifier: Apache-2.0

package flannel

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// subnets is what flanneld says of this node.
type subnets struct {
	// networks are the cluster's, IPv4 first.
	networks []netip.Prefix
	// own are this node's subnets of them, at most one of each family, IPv4 first.
	own    []netip.Prefix
	mtu    int
	ipMasq bool
}

// readSubnets reads flanneld's file. The error names the file and what is
// missing or wrong in it.
func readSubnets(path string) (*subnets, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, cnierr.New(cnierr.CodeTryAgain, fmt.Sprintf("subnetFile %q: there is no such file: flanneld writes it, is its pod running on this node?", path), "")
	}
	if err != nil {
		return nil, cnierr.Wrap(cnierr.CodeIO, err, "read subnetFile %q", path)
	}
	s, err := parseSubnets(string(b))
	if err != nil {
		return nil, cnierr.Config("subnetFile", path, err.Error())
	}
	return s, nil
}

// The MTUs that the interface plugins take.
const (
	minMTU = 68
	maxMTU = 65535
)

// parseSubnets reads the lines KEY=VALUE of the file. Unknown keys, empty lines
// and comments are ignored; a value may be quoted, as a shell would read it.
func parseSubnets(text string) (*subnets, error) {
	values := map[string]string{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(key, "#") {
			values[strings.TrimSpace(key)] = strings.Trim(strings.TrimSpace(value), `"'`)
		}
	}
	if missing := missingKeys(values); len(missing) > 0 {
		return nil, fmt.Errorf("it lacks %s", strings.Join(missing, ", "))
	}
	s := &subnets{ipMasq: values["FLANNEL_IPMASQ"] == "true"}
	var err error
	if s.mtu, err = strconv.Atoi(values["FLANNEL_MTU"]); err != nil || s.mtu != 0 && (s.mtu < minMTU || s.mtu > maxMTU) {
		return nil, fmt.Errorf("FLANNEL_MTU=%s is no MTU: want 0 or %d to %d", values["FLANNEL_MTU"], minMTU, maxMTU)
	}
	for _, key := range []string{"FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"} {
		if s.networks, err = appendPrefixes(s.networks, key, values[key]); err != nil {
			return nil, err
		}
	}
	for _, key := range []string{"FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"} {
		if s.own, err = appendPrefixes(s.own, key, values[key]); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// missingKeys names what no delegate can be configured without.
func missingKeys(values map[string]string) []string {
	var missing []string
	for _, either := range [][]string{
		{"FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK"}, {"FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET"}, {"FLANNEL_MTU"}, {"FLANNEL_IPMASQ"},
	} {
		if !slices.ContainsFunc(either, func(k string) bool { return values[k] != "" }) {
			missing = append(missing, strings.Join(either, " or "))
		}
	}
	return missing
}

// appendPrefixes adds the prefixes of a comma list, masked, each once. The
// family in the key's name is what the prefixes must have.
func appendPrefixes(to []netip.Prefix, key, list string) ([]netip.Prefix, error) {
	if list == "" {
		return to, nil
	}
	for f := range strings.SplitSeq(list, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(f))
		if err != nil || p.Addr().Is4() == strings.Contains(key, "IPV6") {
			return nil, fmt.Errorf("%s=%s: %q is not a prefix of its family", key, list, f)
		}
		if p = p.Masked(); !slices.Contains(to, p) {
			to = append(to, p)
		}
	}
	return to, nil
}
