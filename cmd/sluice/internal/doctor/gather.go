// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/sluice-cni/sluice/cmd/sluice/internal/orphans"
	"github.com/sluice-cni/sluice/loader"
	"github.com/sluice-cni/sluice/loader/ebpfload"
	"github.com/sluice-cni/sluice/pkg/attachments"
	"github.com/sluice-cni/sluice/pkg/netfilter/choice"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
)

// Gather looks at the node of the calling thread. It changes nothing. What it
// cannot look at is in Blind; only a configuration that cannot be read is an
// error, since nothing would be looked at as the plugins do.
func Gather(ctx context.Context) (*Facts, error) {
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	if err != nil {
		return nil, err
	}
	f := &Facts{Config: conf, Links: make(map[int]string), Sysctls: make(map[string]string)}
	f.datapath(ctx)
	f.tables(ctx)
	f.conflicts()
	f.sysctls()
	f.devices()
	return f, nil
}

// note keeps what went wrong in looking at something.
func (f *Facts) note(what string, err error) {
	if err != nil {
		f.Blind = append(f.Blind, fmt.Errorf("%s: %w", what, err))
	}
}

// Options are the loader's for this tool, which has the compiled objects itself and needs no program beside it.
func Options(conf *nodeconf.Config) loader.Options {
	return loader.Options{Config: conf, Loader: ebpfload.InProcess{}}
}

func (f *Facts) datapath(ctx context.Context) {
	o := Options(f.Config)
	var err error
	f.Probes, f.Cgroup, err = loader.Survey(ctx, o)
	f.note("the kernel's features", err)
	if f.Owners = loader.CheckOwners(o); !errors.Is(f.Owners, loader.ErrForeign) {
		f.note("the owners of the pins", f.Owners)
		f.Owners = nil
	}
	if f.Decision, err = loader.Decision(ctx, o); !errors.Is(err, loader.ErrNotLoaded) {
		f.note("the decision of the last load", err)
	}
	f.Places, err = loader.Places(o)
	f.note("the mount namespaces of other processes", err)
	tables := Tables(f.Config)
	dir := attachments.Open(attachments.DefaultDir)
	var known loader.Interface
	dp, err := Open(ctx, f.Config)
	switch {
	case err == nil:
		defer dp.Close()
		known = dp
		f.Status, err = dp.Status(ctx)
		f.note("the datapath", err)
		f.note("programs of others", f.hooks(dp))
	case !errors.Is(err, loader.ErrNotLoaded):
		f.note("the datapath", err)
	}
	inventory, left, err := orphans.Search(func() (*orphans.Inventory, error) {
		return orphans.Scan(ctx, known, tables, dir, orphans.DefaultPlaces())
	})
	f.note("what is left of pods", err)
	f.Records, f.Leftovers, f.RuleSets = inventory.Records, left, inventory.Traces
	f.rulesAgain(ctx, tables, dir)
	for _, l := range inventory.Links {
		f.Links[l.Index] = l.Name
	}
}

// rulesAgain looks once more if rules seem to be missing. An ADD may have ended between the look at the rules and the one at its record,
// and a DEL may have begun.
func (f *Facts) rulesAgain(ctx context.Context, tables *choice.Node, dir *attachments.Dir) {
	if len(checkRules(f)) == 0 {
		return
	}
	sets, err := tables.RuleSets(ctx)
	f.note("the rules of pods", err)
	now, err := dir.List("")
	f.note("the attachment records", err)
	f.RuleSets = sets
	f.Records = slices.DeleteFunc(f.Records, func(r *attachments.Record) bool {
		return !slices.ContainsFunc(now, func(n *attachments.Record) bool { return n.ID == r.ID })
	})
}

// Open is loader.OpenExisting, except that pins which this process may not look at are not taken for none.
func Open(ctx context.Context, conf *nodeconf.Config) (*loader.Datapath, error) {
	dp, err := loader.OpenExisting(ctx, Options(conf))
	if !errors.Is(err, loader.ErrNotLoaded) {
		return dp, err
	}
	if _, derr := os.ReadDir(filepath.Join(conf.BPFFS, "sluice", "v"+strconv.Itoa(loader.PinVersion))); errors.Is(derr, fs.ErrPermission) {
		return nil, fmt.Errorf("what is loaded cannot be seen, run this as root: %w", derr)
	}
	return nil, err
}

// Tables are the netfilter tables as the plugins see them.
func Tables(c *nodeconf.Config) *choice.Node {
	return choice.New(choice.Options{Default: string(c.Backend), Firewall: string(c.Firewall), AdmitMark: c.AdmitMark, Variant: string(c.IPTables)})
}

func (f *Facts) tables(ctx context.Context) {
	var err error
	f.Choices, err = choice.Made("")
	f.note("the choice of netfilter tables", err)
	n := Tables(f.Config)
	f.Usage, err = n.Usage(ctx)
	f.note("who uses netfilter", err)
	f.Firewalld, err = choice.AskFirewalld(ctx)
	f.note("whether firewalld runs", err)
	if f.Config.AdmitMark != 0 {
		f.Forwards, err = n.Forwards(ctx, f.Config.AdmitMark)
		f.note("the FORWARD policy", err)
	}
}

func (f *Facts) sysctls() {
	keys := []string{
		"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/rp_filter",
		"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables",
		"net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max",
	}
	if f.Status != nil {
		for _, d := range f.Status.Devices {
			keys = append(keys, "net/ipv4/conf/"+d.Name+"/rp_filter")
		}
		for _, name := range f.routing() {
			keys = append(keys, "net/ipv4/conf/"+name+"/forwarding")
		}
	}
	for _, key := range keys {
		value, err := sysctl.Get(key)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			f.note("sysctl "+key, err)
			continue
		}
		if err == nil {
			f.Sysctls[key] = value
		}
	}
}

// hooks reads what hangs on the devices that have programs of ours.
func (f *Facts) hooks(dp *loader.Datapath) (err error) {
	if f.Status == nil {
		return nil
	}
	var indices []int
	for _, d := range f.Status.Devices {
		indices = append(indices, d.Ifindex)
	}
	f.Hooks, err = dp.Hooks(indices)
	return err
}

func (f *Facts) devices() {
	if f.Status != nil {
		f.note("the queues of pods", f.queues())
	}
	if noFQ(f) || f.Config.Bandwidth == nodeconf.BandwidthTBF {
		f.TBF = askTBF()
	}
}

// queues reads which qdisc each host veth of a pod has.
func (f *Facts) queues() error {
	h, err := rtnl.New()
	if err != nil {
		return err
	}
	defer h.Close()
	f.Queues, err = h.RootQdiscs()
	return err
}

// askTBF asks for what limits rates without fq.
func askTBF() error {
	h, err := rtnl.New()
	if err != nil {
		return err
	}
	defer h.Close()
	err = rtnl.ProbeQdisc(rtnl.Qdisc{Kind: rtnl.QdiscTBF, Parent: rtnl.ParentRoot, TBF: &rtnl.TBF{Rate: 1 << 20, Limit: 1 << 16, Buffer: 1 << 16}})
	if errors.Is(err, rtnl.ErrNotProbed) {
		err = nil // not known to be missing
	}
	return errors.Join(err, h.Supports("ifb"))
}
