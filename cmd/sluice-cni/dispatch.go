// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/cmd/internal/fastversion"
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/helperproc"
	"github.com/sluice-cni/sluice/pkg/install"
	"github.com/sluice-cni/sluice/pkg/verbtimes"
	"github.com/sluice-cni/sluice/pkg/version"
)

// defaultPath is where an init system would have us look for iptables, nft and modprobe. Some runtimes pass no PATH on.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// ensurePath sets PATH where the environment has none.
func ensurePath() {
	if os.Getenv("PATH") == "" {
		_ = os.Setenv("PATH", defaultPath) // it fails for malformed names only
	}
}

// run is the process under the given name; it returns the exit status. restart is told of errors of verbs.
func run(name string, restart func(err error, config []byte)) int {
	if os.Getenv("CNI_COMMAND") == "VERSION" {
		// Usually answered before main; not where /proc is missing.
		if a := fastversion.Answer(name); a != "" {
			_, err := io.WriteString(os.Stdout, a)
			return status(err == nil)
		}
	}
	p := plugin(name)
	switch {
	case p != nil:
		return p.Main(cniskel.Options{Log: newLog, Observe: verbtimes.Of(name), Restart: restart})
	case name == install.Multicall && os.Getenv("CNI_COMMAND") == "":
		usage(os.Stderr)
		return 0
	}
	cniskel.PrintError(os.Stdout, cnierr.From(execSibling(name)), "")
	return 1
}

// execSibling executes the program beside this one that provides the plugin, such as dhcp: a packager may have linked all
// names to sluice-cni. It returns only if that fails.
func execSibling(name string) error {
	for _, other := range install.Programs() {
		if !slices.Contains(other.Plugins, name) {
			continue
		}
		path, err := helperproc.SiblingPath(other.Name)
		if err == nil {
			err = unix.Exec(path, os.Args, os.Environ())
		}
		return cnierr.New(cnierr.CodeEnvironment,
			fmt.Sprintf("%s is a name of the program %s, not of %s: \"sluice install\" lays each where it belongs", name, other.Name, install.Multicall), err.Error())
	}
	return cnierr.New(cnierr.CodeEnvironment,
		fmt.Sprintf("%q is no plugin of Sluice; started as one of %s it is", name, strings.Join(install.Plugins(), ", ")), "")
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
`, version.String(), strings.Join(names(), " "), strings.Join(version.CNI(), " "))
}

// names are the plugins that this program is.
func names() []string {
	for _, p := range install.Programs() {
		if p.Name == install.Multicall {
			return p.Plugins
		}
	}
	return nil
}
