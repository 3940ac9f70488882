// SPDX-License-Identifier: Apache-2.0

package choice

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/netfilter"
	"github.com/sluice-cni/sluice/pkg/rtnl"
)

// Admit lets packets with the node's mark pass the FORWARD chains of iptables whose
// policy is to drop, and gives the mark to their answers. from is the device by which
// the packets of such pods come in, with "+" at its end all that begin so, and empty
// the devices of earlier calls. It returns what is left for the administrator: the chains of nftables are a third party's. It is
// for verbs: nothing is started where no chain's policy is to drop, and elsewhere at
// most once in lookEvery for a device, for all callers. An administrator's CNI-ADMIN
// is called from then on.
func (n *Node) Admit(ctx context.Context, from string) []string {
	n.callDefaultAdmin(ctx)
	if n.env.Mark == 0 || !n.mayDrop() || !n.due(lookFile+from, lookEvery) {
		return nil
	}
	devices := n.lookedFor()
	chains, err := n.forwards(ctx)
	changed := false
	for _, c := range chains {
		t, ok := n.tool(c.Tool)
		if !ok {
			continue
		}
		if failed := t.AdmitMarked(ctx, c, devices, n.env.Mark); failed != nil {
			n.env.Log.Warn("cannot let admitted pods pass FORWARD", log.String("chain", c.String()), log.Error(failed))
			err = errors.Join(err, failed)
			continue
		}
		changed = changed || !c.Accepts || !c.Answers
	}
	if errors.Is(err, netfilter.ErrBusy) {
		n.forget(lookFile + from) // the next verb may have more luck
		return nil
	}
	if changed {
		chains, _ = n.forwards(ctx)
	}
	if !slices.ContainsFunc(chains, func(c netfilter.ForwardChain) bool { return !c.Accepts }) || !n.due("forward-advice", adviceEvery) {
		return nil
	}
	var out []string
	for _, c := range chains {
		if !c.Accepts {
			out = append(out, fmt.Sprintf("%s drops what is forwarded, also from and to pods that the firewall plugin admits; to let those pass: %s", c, c.Accept(n.env.Mark)))
		}
	}
	return out
}

// forwards is Forwards for a verb, which goes on without what cannot be seen.
func (n *Node) forwards(ctx context.Context) ([]netfilter.ForwardChain, error) {
	chains, err := n.Forwards(ctx, n.env.Mark)
	if err != nil {
		n.env.Log.Debug("cannot see every FORWARD chain", log.Error(err))
	}
	for i := range chains {
		chains[i].Answers = chains[i].Answers || n.firewall == netfilter.NameNFTables // its own table marks them, behind the translation
	}
	return chains, err
}

// lookedFor lists the devices that Admit was called with since the boot. The file
// of each says so.
func (n *Node) lookedFor() []string {
	pattern, err := fileOfNamespace(n.env.RunDir, lookFile+"?*")
	if err != nil {
		return nil
	}
	files, _ := filepath.Glob(pattern) // the only error is a bad pattern
	var out []string
	for _, f := range files {
		name := strings.TrimPrefix(filepath.Base(f), lookFile)
		out = append(out, name[:strings.LastIndex(name, "-")])
	}
	return out
}

// lookFile begins the names of the files that say when Admit looked, each with a
// device. A colon cannot be in a device's name.
const lookFile = "forward-look:"

const (
	// lookEvery is how often a verb looks at chains whose policy is to drop.
	lookEvery = time.Minute
	// adviceEvery is how often the log says what an administrator should do.
	adviceEvery = 10 * time.Minute
)

// due reports whether the last time of something was long ago, and notes that it is
// now. A clock that went back is long ago.
func (n *Node) due(what string, every time.Duration) bool {
	path, err := fileOfNamespace(n.env.RunDir, what)
	if err != nil {
		return false
	}
	if st, err := os.Stat(path); err == nil {
		if age := time.Since(st.ModTime()); age >= 0 && age < every {
			return false
		}
	}
	now := time.Now()
	if os.Chtimes(path, now, now) == nil {
		return true
	}
	return os.MkdirAll(n.env.RunDir, 0o755) == nil && os.WriteFile(path, nil, 0o644) == nil
}

// forget makes something due again. It stays known: the file is there.
func (n *Node) forget(what string) {
	if path, err := fileOfNamespace(n.env.RunDir, what); err == nil {
		long := time.Unix(0, 0)
		_ = os.Chtimes(path, long, long) // else it is due later
	}
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
	for i, c := range out {
		if c.Answers {
			continue
		}
		// Whichever tool gives the mark to answers, they have it in every chain.
		marked := slices.ContainsFunc(n.tools(), func(t Tool) bool {
			ok, err := t.MarksAnswers(ctx, c.V6, mark)
			errs = append(errs, err)
			return ok
		})
		out[i].Answers = marked
	}
	return out, errors.Join(errs...)
}
