// SPDX-License-Identifier: Apache-2.0

package choice

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Advice says which chains drop what the node admits, each with what to do. It
// is for verbs: nothing is started where no chain's policy is to drop, and
// elsewhere at most once in adviceEvery, for all callers.
func (n *Node) Advice(ctx context.Context) []string {
	if n.env.Mark == 0 || !n.mayDrop() || !n.adviceDue() {
		return nil
	}
	chains, err := n.Forwards(ctx, n.env.Mark)
	if err != nil {
		n.env.Log.Debug("cannot see every FORWARD chain", log.Error(err))
	}
	var out []string
	for _, c := range chains {
		c.Answers = c.Answers || n.firewall == netfilter.NameNFTables // its own table marks them, behind the translation
		if !c.Accepts {
			out = append(out, fmt.Sprintf("%s drops what is forwarded, also from and to pods that the firewall plugin admits; to let those pass: %s", c, c.Accept(n.env.Mark)))
		}
	}
	return out
}

// adviceEvery is how often the log says what an administrator should do.
const adviceEvery = 10 * time.Minute

// adviceDue reports whether the last look was long ago, and notes that there is
// one now. A clock that went back is long ago.
func (n *Node) adviceDue() bool {
	path, err := fileOfNamespace(n.env.RunDir, "forward-advice")
	if err != nil {
		return false
	}
	if st, err := os.Stat(path); err == nil {
		if age := time.Since(st.ModTime()); age >= 0 && age < adviceEvery {
			return false
		}
	}
	now := time.Now()
	if os.Chtimes(path, now, now) == nil {
		return true
	}
	return os.MkdirAll(n.env.RunDir, 0o755) == nil && os.WriteFile(path, nil, 0o644) == nil
}

// mayDrop reports whether a chain of the FORWARD hook may have the policy to
// drop. Of legacy tables only a tool can tell.
func (n *Node) mayDrop() bool {
	chains, err := n.env.NFTChains()
	if err != nil || slices.ContainsFunc(chains, dropsForwarded) {
		return true
	}
	for _, v6 := range []bool{false, true} {
		if names, err := n.env.LegacyTables(v6); err != nil || slices.Contains(names, "filter") {
			return true
		}
	}
	return false
}

func dropsForwarded(c rtnl.NFTChain) bool {
	ip := c.Family == unix.NFPROTO_IPV4 || c.Family == unix.NFPROTO_IPV6 || c.Family == unix.NFPROTO_INET
	return ip && c.Base && c.Drops && c.Hook == nfInetForward
}

// nfInetForward is NF_INET_FORWARD of the kernel's header netfilter.h.
const nfInetForward = 2

// Forwards lists the chains of the FORWARD hook whose policy is to drop, and
// whether they accept packets with the mark (all of these bits). Tables whose
// tool is missing are not looked at. The error names them and the list holds the
// others.
func (n *Node) Forwards(ctx context.Context, mark uint32) ([]netfilter.ForwardChain, error) {
	var out []netfilter.ForwardChain
	var errs []error
	for _, t := range n.tools() {
		chains, err := t.Forwards(ctx, mark)
		out, errs = append(out, chains...), append(errs, err)
	}
	return out, errors.Join(errs...)
}
