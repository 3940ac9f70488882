// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfgen"
	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
)

// LoadFresh verifies the programs and pins them as a set in fresh, beside the one in force. It returns the report with what
// the load has found out.
func LoadFresh(ctx context.Context, t *pintree.Tree, k Constants, report probes, fresh string) (probes, error) {
	consts := randomConsts()
	consts.fibSrc, consts.coarse, consts.skNetns = report.yes(ProbeFIBSrc), report.yes(ProbeCoarse), report.yes(ProbeSkNetns)
	consts.netkit = report.yes(ProbeNetkit)
	var err error
	if consts.netns, err = netnsCookie(ctx, t); err != nil {
		t.Log.Warn("name the network namespace for programs", log.Error(err))
	}
	done, err := loadPrograms(ctx, t, k, consts, fresh)
	if err != nil {
		return nil, Refuse(t, k, report, err)
	}
	p := Probe{Name: ProbeTranslations, Answer: AnswerYes}
	if done.NoTranslations != "" {
		p.Answer, p.Reason, p.Consequence = AnswerNo, done.NoTranslations, "connections to Services stay on the slow path"
	}
	return append(report, p), nil
}

// NoteDecision writes down that the set of k is loaded.
func NoteDecision(t *pintree.Tree, k Constants, report probes) error {
	if err := WriteDecision(t, &Decision{
		Backend: backendEBPF, Reason: report.Reason(), Build: k.Build(), Attach: modes(t, report), Probes: report, Config: k.status(),
	}); err != nil {
		return fmt.Errorf("write decision: %w", err)
	}
	if fq, ok := report.find(ProbeFQ); ok && fq.Answer == AnswerNo {
		noteFQ(t, fq.Reason)
	}
	return nil
}

// loadPrograms verifies the programs and pins the set in fresh, beside the one in force.
func loadPrograms(ctx context.Context, t *pintree.Tree, k Constants, consts loadConsts, fresh string) (done loadapi.LoadResult, err error) {
	if err := os.RemoveAll(fresh); err != nil {
		return done, fmt.Errorf("remove programs of an interrupted load: %w", err)
	}
	if err := os.Mkdir(fresh, 0o700); err != nil {
		return done, fmt.Errorf("make directory of programs: %w", err)
	}
	if err := os.Symlink(consts.String(), filepath.Join(fresh, pintree.LoadConstsName)); err != nil {
		return done, fmt.Errorf("note constants: %w", err)
	}
	done, err = pin(ctx, t, k, consts, fresh, needed(t))
	if err == nil && done.NoSockLB != "" {
		t.Log.Warn("the node's own processes will not reach host ports", log.String("error", done.NoSockLB))
		err = markNoSockLB(fresh)
	}
	return done, err
}

// pin has objects verified and pinned in dir, and what maps they lack made. The writers' lock is held.
func pin(ctx context.Context, t *pintree.Tree, k Constants, consts loadConsts, dir string, objects []string) (loadapi.LoadResult, error) {
	sizes, err := mapSizes(t.Config.MapSizes)
	if err != nil {
		return loadapi.LoadResult{}, err
	}
	return t.Loader.Pin(ctx, loadapi.LoadRequest{
		Build: bpfgen.Build, Objects: objects, Dir: dir, Maps: t.Paths.Maps(), Sizes: sizes, Constants: k.compiled(consts), Lock: t.LockFile(),
	})
}

// markNoSockLB replaces what there is of the programs for sockets in dir by a mark.
func markNoSockLB(dir string) error {
	for _, h := range hook.Sockets() {
		if err := file.Remove(filepath.Join(dir, h.Program)); err != nil {
			return err
		}
	}
	return os.Mkdir(filepath.Join(dir, pintree.NoSockLBDir), 0o700)
}

// Refuse turns the kernel's refusal to load into the decision that eBPF cannot run here, with the reason.
func Refuse(t *pintree.Tree, k Constants, report probes, cause error) error {
	if !errors.Is(cause, loadapi.ErrRefused) {
		return cause
	}
	report = append(report, Probe{Name: probeLoad, Answer: AnswerNo, Reason: cause.Error(), Consequence: noDatapath, Required: true})
	werr := WriteDecision(t, &Decision{Backend: BackendNone, Reason: cause.Error(), Asked: ProbeKey(t, k), Probes: report})
	return errors.Join(fmt.Errorf("%w: %w", pintree.ErrUnavailable, cause), werr)
}

// DropOtherBuilds removes the programs that nothing uses any more.
func DropOtherBuilds(t *pintree.Tree, id string) error {
	entries, err := pintree.Names(t.Paths.Progs())
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e != pintree.BuildPrefix+id {
			errs = append(errs, os.RemoveAll(t.Paths.Progs()+"/"+e))
		}
	}
	return errors.Join(errs...)
}

// ProgramIDs returns the kernel's ids of the committed programs, by name.
func ProgramIDs(t *pintree.Tree) (map[string]uint32, error) {
	dir, err := t.CommittedDir()
	if err != nil {
		return nil, err
	}
	ids := make(map[string]uint32, 4)
	for _, h := range hook.All() {
		id, err := ID(dir, h.Program)
		if errors.Is(err, pintree.ErrNotLoaded) && OnDemand(h) != nil {
			continue // no device has needed it yet
		}
		if err != nil {
			return nil, err
		}
		ids[h.Program] = id
	}
	return ids, nil
}

// Run is how often a program ran and for how long, on all CPUs, since it was loaded. Both are 0 unless the kernel counts
// (kernel.bpf_stats_enabled).
type Run struct {
	Program string        `json:"program"`
	Runs    uint64        `json:"runs"`
	Time    time.Duration `json:"time"`
}

// Runs returns what the kernel has counted of each loaded program, by name.
func Runs(t *pintree.Tree) ([]Run, error) {
	ids, err := ProgramIDs(t)
	if err != nil {
		return nil, err
	}
	dir, err := t.CommittedDir()
	if err != nil {
		return nil, err
	}
	var out []Run
	for _, name := range slices.Sorted(maps.Keys(ids)) {
		p, err := pintree.ProgramAt(dir, name)
		if err != nil {
			return nil, err
		}
		r := Run{Program: name}
		r.Runs, r.Time, err = p.Runs()
		p.Close()
		if err != nil {
			return nil, fmt.Errorf("program %s: %w", name, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// ID returns the kernel's id of a pinned program.
func ID(dir, name string) (uint32, error) {
	p, err := pintree.ProgramAt(dir, name)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return 0, fmt.Errorf("program %s: %w", name, err)
	}
	return info.ID, nil
}
