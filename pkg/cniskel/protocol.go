// SPDX-License-Identifier: Apache-2.0

package cniskel

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/cniconf"
	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// CmdArgs is a call as the specification defines it, in the shape that the
// upstream's pkg/skel gives it.
type CmdArgs struct {
	ContainerID   string
	Netns         string
	IfName        string
	Args          string
	Path          string
	NetnsOverride string
	// StdinData is the network configuration. A test leaves it nil for an empty one.
	StdinData []byte
}

// Ref names the attachment of the call on the network of that name.
func (c *CmdArgs) Ref(network string) attachments.ID {
	return attachments.ID{Network: network, ContainerID: c.ContainerID, IfName: c.IfName}
}

// CNIVersion returns the cniVersion of the configuration, or cniconf.DefaultVersion if it has none.
func (c *CmdArgs) CNIVersion() string {
	h, err := c.header()
	if err != nil {
		return cniconf.DefaultVersion
	}
	return h.CNIVersion
}

// stdio is what a call reads and writes: the environment and the three streams.
type stdio struct {
	getenv         func(string) string
	stdin          io.Reader
	stdout, stderr io.Writer
}

// envVar is a variable of the environment. Section 2 of the specification has them.
type envVar struct {
	name     string
	into     *string
	required []string // the commands that cannot do without it
	// invalid says what is wrong with a value for a command, and the details; nil: nothing can be.
	invalid func(command, value string) (why, details string)
}

var (
	allVerbs = []string{"ADD", "CHECK", "DEL", "GC", "STATUS"}
	podVerbs = []string{"ADD", "CHECK", "DEL"}
)

// readCall reads the environment and stdin. The error is about the first variable
// that is malformed, or all that are missing.
func (p stdio) readCall() (command string, c *CmdArgs, _ *types.Error) {
	c = &CmdArgs{}
	command = p.getenv("CNI_COMMAND")
	missing := []string(nil)
	if command == "" {
		missing = append(missing, "CNI_COMMAND")
	}
	for _, v := range []envVar{
		{"CNI_CONTAINERID", &c.ContainerID, podVerbs, invalidContainerID},
		{"CNI_NETNS", &c.Netns, []string{"ADD", "CHECK"}, nil},
		{"CNI_IFNAME", &c.IfName, podVerbs, invalidIfName},
		{"CNI_ARGS", &c.Args, nil, nil},
		{"CNI_PATH", &c.Path, allVerbs, nil},
		{"CNI_NETNS_OVERRIDE", &c.NetnsOverride, nil, nil},
	} {
		*v.into = p.getenv(v.name)
		switch required := slices.Contains(v.required, command); {
		case !required:
		case *v.into == "":
			missing = append(missing, v.name)
		case v.invalid != nil:
			if why, details := v.invalid(command, *v.into); why != "" {
				return "", nil, environment(fmt.Sprintf("invalid %s %q: %s", v.name, *v.into, why), details)
			}
		}
	}
	if len(missing) > 0 {
		return "", nil, environment(fmt.Sprintf("required env variables [%s] missing", strings.Join(missing, ",")), "")
	}
	if command == "VERSION" { // it needs no configuration
		return command, c, nil
	}
	stdin, err := io.ReadAll(p.stdin)
	if err != nil {
		return "", nil, &types.Error{Code: cnierr.CodeIO, Msg: "error reading from stdin: " + err.Error()}
	}
	c.StdinData = stdin
	return command, c, nil
}

func environment(msg, details string) *types.Error {
	return &types.Error{Code: cnierr.CodeEnvironment, Msg: msg, Details: details}
}

func invalidContainerID(_, s string) (why, details string) {
	if !validName(s) {
		return "invalid characters in containerID", s
	}
	return "", ""
}

// validName checks the characters that the specification allows in container
// IDs and names of networks: letters, digits, and behind the first _, . and -.
func validName(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && (c == '_' || c == '.' || c == '-'):
		default:
			return false
		}
	}
	return s != ""
}

// invalidIfName checks a name in upstream's words. An ADD also refuses a name that the kernel
// would change ("eth%d"). CHECK and DEL accept it, because an earlier ADD may have.
func invalidIfName(command, s string) (why, details string) {
	switch cniconf.CheckIfName(s) {
	case cniconf.IfNameTooLong:
		return "interface name is too long", "interface name should be less than 16 characters"
	case cniconf.IfNameDots:
		return "interface name is . or ..", ""
	case cniconf.IfNameSeparator:
		return "interface name contains / or : or whitespace characters", ""
	case cniconf.IfNameTemplate:
		if command == "ADD" {
			return cniconf.BadIfName(s), ""
		}
	case cniconf.IfNameOK:
	}
	return "", ""
}

// header is what the protocol itself needs of a configuration.
type header struct {
	Name       string `json:"name"`
	CNIVersion string `json:"cniVersion"`
	// Closed: the network takes no new pods. DEL goes on, for those that it has. The node agent sets it while the node leaves the network.
	Closed bool `json:"closed"`
}

func (c *CmdArgs) header() (header, error) {
	var h header
	err := cniconf.Load(c.StdinData, &h)
	h.CNIVersion = cniconf.VersionOrDefault(h.CNIVersion)
	return h, err
}

func (h header) validate() *types.Error {
	switch {
	case h.Name == "":
		return &types.Error{Code: cnierr.CodeConfig, Msg: "missing network name"}
	case !validName(h.Name):
		return &types.Error{Code: cnierr.CodeConfig, Msg: "invalid characters found in network name", Details: h.Name}
	}
	return nil
}

// refuse says that a closed network is not for this command.
func (h header) refuse(command string) *types.Error {
	code := map[string]uint{"ADD": cnierr.CodeTryAgain, "STATUS": cnierr.CodeUnavailable}[command]
	if !h.Closed || code == 0 {
		return nil
	}
	return &types.Error{Code: code, Msg: fmt.Sprintf("network %q takes no new pods: it is being removed from this node", h.Name)}
}

// minVersionOf has the version of the specification that each later command came with.
var minVersionOf = map[string]string{"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}

// checkVersion checks that the configuration's version has the command and is one of
// the plugin's.
func checkVersion(command, v string, supported []string) *types.Error {
	if first := minVersionOf[command]; first != "" {
		ok, err := version.GreaterThanOrEqualTo(v, first)
		if err != nil {
			return &types.Error{Code: cnierr.CodeDecode, Msg: err.Error()}
		}
		if !ok {
			return incompatible("config version does not allow "+command, "")
		}
		newer := func(s string) bool { ok, err := version.GreaterThanOrEqualTo(s, v); return ok && err == nil }
		if !slices.ContainsFunc(supported, newer) {
			return incompatible("plugin version does not allow "+command, "")
		}
	}
	if !slices.Contains(supported, v) {
		return incompatible("incompatible CNI versions", fmt.Sprintf("config is %q, plugin supports %q", v, supported))
	}
	return nil
}

func incompatible(msg, details string) *types.Error {
	return &types.Error{Code: cnierr.CodeIncompatibleVersion, Msg: msg, Details: details}
}
