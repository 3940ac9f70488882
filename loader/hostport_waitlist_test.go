// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-cni/sluice/loader/internal/pintree"
	"github.com/sluice-cni/sluice/pkg/maps/hostport"
)

// A run directory that is full stops who takes a port over, but not those that give theirs up: they are what makes room.
func TestPrivilegedComesBackFullDisk(t *testing.T) {
	e := newEnv(t)
	e.ok(os.MkdirAll(e.o.RunDir, 0o755))
	e.ok(unix.Mount("tmpfs", e.o.RunDir, "tmpfs", 0, "size=64k,mode=755"))
	t.Cleanup(func() { _ = unix.Unmount(e.o.RunDir, unix.MNT_DETACH) })
	d := e.open()
	const first, second, third, fourth = 0, 1, 2, 3
	addr := func(i int) string { return fmt.Sprintf("10.1.0.%d", i+2) }
	var owners []uint64
	for i := range fourth + 1 { // before the file system is full: a look at the node that fails makes room there
		ep := e.pod(fmt.Sprint("pod", i), addr(i)+"/16")
		e.ok(d.Enable(e.ctx, ep, FeaturePublish))
		owners = append(owners, ep.Ref.Owner())
	}
	publish := func(i int) error {
		return d.SetHostPorts(e.ctx, owners[i], nil, []hostport.Mapping{port(8080, addr(i), 80)})
	}
	for i := range fourth {
		e.ok(publish(i))
	}
	fill := filepath.Join(e.o.RunDir, "fill")
	if err := os.WriteFile(fill, []byte(strings.Repeat("x", 1<<17)), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the file system: %v", err)
	}
	if err := publish(fourth); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a takeover in a full file system: %v", err)
	}
	for _, step := range []struct{ gives, has int }{{third, second}, {second, first}} {
		if err := d.RemoveHostPorts(e.ctx, owners[step.gives], nil); err != nil {
			t.Errorf("DEL of %d: %v", step.gives, err)
		}
		if got := e.published(d)[8080].Owner; got != owners[step.has] {
			t.Errorf("held by %x, want %x", got, owners[step.has])
		}
	}
	e.ok(d.RemoveHostPorts(e.ctx, owners[first], nil))
	if left := e.published(d); len(left) != 0 || pintree.Exists(d.tree.Paths.Waiting) {
		t.Errorf("left: %+v, and who waits: %t", left, pintree.Exists(d.tree.Paths.Waiting))
	}
}

func these(owners ...uint64) func() []uint64 { return func() []uint64 { return owners } }

// Attachments of one pod have a port in the order of their ADDs, whatever kind they are. Another pod's ADD takes it from all of them,
// and gives it back to the same one.
func TestPrivilegedWaitsBehindItsPod(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	var owners []uint64
	ports := func(i int) []hostport.Mapping {
		return []hostport.Mapping{port(8080, fmt.Sprintf("10.1.0.%d", i+2), 80)}
	}
	publish := func(i int, behind ...uint64) {
		t.Helper()
		ep := e.pod(fmt.Sprint("pod", i), fmt.Sprintf("10.1.0.%d/16", i+2))
		e.ok(d.Enable(e.ctx, ep, FeaturePublish))
		owners = append(owners, ep.Ref.Owner())
		e.ok(d.SetHostPorts(e.ctx, ep.Ref.Owner(), nil, ports(i), these(behind...)))
	}
	holder := func(want uint64) {
		t.Helper()
		if got := e.published(d)[8080].Owner; got != want {
			t.Fatalf("held by %x, want %x of %x", got, want, owners)
		}
	}
	const first, second, third, other = 0, 1, 2, 3
	const rules = uint64(7) // an attachment whose ports are netfilter's
	publish(first)
	publish(second, owners[first])
	publish(third, owners[first], owners[second])
	e.ok(d.ClaimHostPorts(e.ctx, rules, []hostport.Key{ports(first)[0].Key}, these(owners[first], owners[second], owners[third])))
	holder(owners[first])
	e.ok(d.CheckHostPorts(e.ctx, owners[second], ports(second), these(owners[first], owners[third], rules)))
	if err := d.CheckHostPorts(e.ctx, owners[second], ports(third), these(owners[first])); !errors.Is(err, ErrDiffers) {
		t.Errorf("CHECK of another port than the one that waits: %v", err)
	}
	if err := d.CheckHostPorts(e.ctx, owners[second], ports(second)); !errors.Is(err, ErrDiffers) {
		t.Errorf("CHECK where another pod has the port: %v", err)
	}
	publish(other)
	holder(owners[other])
	e.ok(d.RemoveHostPorts(e.ctx, owners[other], nil))
	for _, i := range []int{first, second, third} {
		holder(owners[i])
		e.ok(d.RemoveHostPorts(e.ctx, owners[i], nil))
	}
	holder(rules)
	e.ok(d.ReleaseHostPorts(e.ctx, rules, nil))
	if left := e.published(d); len(left) != 0 || pintree.Exists(d.tree.Paths.Waiting) {
		t.Errorf("left: %+v, and who waits: %t", left, pintree.Exists(d.tree.Paths.Waiting))
	}
}

// A port whose holder lost its device goes to the pod's next attachment at once.
func TestPrivilegedNothingWaitsBehindTheDead(t *testing.T) {
	e := newEnv(t)
	d := e.open()
	dead, next := e.pod("dead", "10.1.0.2/16"), e.pod("next", "10.1.0.3/16")
	e.ok(d.Enable(e.ctx, dead, FeaturePublish))
	e.ok(d.SetHostPorts(e.ctx, dead.Ref.Owner(), nil, []hostport.Mapping{port(8080, "10.1.0.2", 80)}))
	e.ip("link", "del", "dead")
	e.ok(d.Enable(e.ctx, next, FeaturePublish))
	e.ok(d.SetHostPorts(e.ctx, next.Ref.Owner(), nil, []hostport.Mapping{port(8080, "10.1.0.3", 80)}, these(dead.Ref.Owner())))
	if got := e.published(d)[8080].Owner; got != next.Ref.Owner() {
		t.Errorf("held by %x, want %x", got, next.Ref.Owner())
	}
}
