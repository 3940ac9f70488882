// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/sluice-cni/sluice/loader/internal/hook"
	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/loader/loadapi"
	"github.com/sluice-cni/sluice/pkg/bpfsys"
	"github.com/sluice-cni/sluice/pkg/log"
)

// AlwaysLoaded are the objects that every load verifies, by the names of loadapi.LoadRequest.
func AlwaysLoaded() []string { return append(programsOf(hook.AlwaysLoaded()), loadapi.SockLB) }

func programsOf(hooks []hook.Hook) []string {
	var out []string
	for _, h := range hooks {
		if !slices.Contains(out, h.Program) { // sl_edt has two hooks
			out = append(out, h.Program)
		}
	}
	return out
}

// OnDemand returns the objects of the programs that go onto a device together with h's and that wait for one; nil for those that every load
// verifies. Most nodes never have a device that needs them, and they are nearly half of the verifier's work.
func OnDemand(h hook.Hook) []string {
	for _, group := range [][]string{programsOf(hook.OfL3Uplink()), programsOf(hook.OfPodns()), programsOf(hook.OfParent())} {
		if slices.Contains(group, h.Program) {
			return group
		}
	}
	return nil
}

// needed is what a load verifies: what every load does, and what a device has asked for since the node booted.
// The set in force knows: so an upgrade that the kernel refuses still changes nothing.
func needed(t *pintree.Tree) []string {
	objects := AlwaysLoaded()
	if dir, err := t.CommittedDir(); err == nil {
		for _, h := range hook.All() {
			if pintree.Exists(filepath.Join(dir, h.Program)) {
				objects = append(objects, OnDemand(h)...)
			}
		}
	}
	slices.Sort(objects)
	return slices.Compact(objects)
}

// Program opens the program of h in the set at dir. One that had to wait for its first device is verified and pinned there
// now, by what was drawn for the set. The writers' lock is held.
func Program(t *pintree.Tree, dir string, h hook.Hook) (*bpfsys.Program, error) {
	p, err := pintree.ProgramAt(dir, h.Program)
	group := OnDemand(h)
	if group == nil || !errors.Is(err, pintree.ErrNotLoaded) {
		return p, err
	}
	if err := loadInto(t, dir, group); err != nil {
		return nil, err
	}
	return pintree.ProgramAt(dir, h.Program)
}

// loadInto adds programs to the set at dir. One that is pinned there already, by a load that was killed between two, stays.
func loadInto(t *pintree.Tree, dir string, objects []string) error {
	k, err := ConstantsOf(t)
	if err != nil {
		return err
	}
	if id := filepath.Base(dir)[len(pintree.BuildPrefix):]; id != k.Build() { // or freshPrefix, as long
		return fmt.Errorf("%w: %v are not in the set %s, and this build or configuration is another: the next ADD loads it", pintree.ErrNotLoaded, objects, id)
	}
	consts, err := constsOf(dir)
	if err != nil {
		return err
	}
	objects = slices.DeleteFunc(slices.Clone(objects), func(name string) bool { return pintree.Exists(filepath.Join(dir, name)) })
	// Not broken off with the verb: attaching is not, and this is a part of it.
	if _, err := pin(context.Background(), t, k, consts, dir, objects); errors.Is(err, loadapi.ErrRefused) {
		return fmt.Errorf("%w: %w", pintree.ErrUnavailable, err)
	} else if err != nil {
		return err
	}
	t.Log.Info("programs added", log.String("pins", dir), log.Any("programs", objects))
	return nil
}
