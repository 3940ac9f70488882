// SPDX-License-Identifier: Apache-2.0

// Command sluice-cni is all CNI plugins in one binary. The name it is started
// under (argv[0]) picks the plugin; "sluice install" lays it under all of them.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-cni/sluice/cmd/sluice-cni/internal/early"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/version"
	"github.com/sluice-cni/sluice/plugins/ipam/dhcp"
)

// multicall is the binary's own name, which is no plugin's.
const multicall = "sluice-cni"

// defaultPath is where an init system would have us look for iptables, nft and modprobe. Some runtimes pass no PATH on.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func main() {
	ensurePath()
	os.Exit(run(filepath.Base(os.Args[0])))
}

func ensurePath() {
	if os.Getenv("PATH") == "" {
		_ = os.Setenv("PATH", defaultPath) // it fails for malformed names only
	}
}

// run is the process under the given name; it returns the exit status.
func run(name string) int {
	if os.Getenv("CNI_COMMAND") == "VERSION" {
		// Usually answered before main; not where /proc is missing.
		if a := early.Answer(name); a != "" {
			_, err := io.WriteString(os.Stdout, a)
			return status(err == nil)
		}
	}
	if name == dhcp.Name && len(os.Args) > 1 && os.Args[1] == daemonCommand {
		return dhcpDaemon(os.Args[2:])
	}
	p := plugin(name)
	switch {
	case p != nil:
		return p.Main(cniplugin.Options{Log: newLog})
	case name == multicall && os.Getenv("CNI_COMMAND") == "":
		usage(os.Stderr)
		return 0
	}
	cniplugin.PrintError(os.Stdout, cnierr.From(cnierr.New(cnierr.CodeEnvironment,
		fmt.Sprintf("%q is no plugin of Sluice; started as one of %s it is", name, strings.Join(install.Plugins(), ", ")), "")), "")
	return 1
}

func status(ok bool) int {
	if ok {
		return 0
	}
	return 1
}

func usage(w io.Writer) {
	fmt.Fprintf(w, `Sluice CNI plugins %s

This binary is called by a container runtime under the name of a plugin:
  %s
"sluice install DIR" puts it there under all of them. CNI versions served:
  %s
`, version.String(), strings.Join(install.Plugins(), " "), strings.Join(version.CNI(), " "))
}
