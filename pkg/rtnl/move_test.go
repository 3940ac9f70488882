// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// One message moves a link to another namespace, renames it and sets its alias;
// a name that is taken there leaves it where it was or moves it unrenamed.
func TestPrivilegedMove(t *testing.T) {
	host, pod := mustNS(t), mustNS(t)
	h, p := mustHandle(t, host), mustHandle(t, pod)
	ok(t, h.AddVeth(VethSpec{HostName: "nic0", HostMAC: mac, HostUp: true, PeerName: "wire0"}))
	l := must[Link](t)(h.LinkByName("nic0"))
	fd, alias := pod.Fd(), "nic0"
	w := must[*Watch](t)(SubscribeIn(pod, GroupLink))
	defer w.Close()
	ok(t, h.SetLink(l.Index, LinkChange{NetNS: &fd, Name: ptr("eth0"), Alias: &alias}))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	ok(t, w.Wait(ctx, 0, func() (bool, error) { // any link
		_, err := p.LinkByName("eth0")
		return err == nil, nil
	}))
	got := must[Link](t)(p.LinkByName("eth0"))
	if got.Alias != alias || got.Up || got.MAC.String() != mac.String() {
		t.Errorf("the moved link is %+v", got)
	}
	if _, err := h.LinkByName("nic0"); !errors.Is(err, ErrNotFound) {
		t.Errorf("nic0 on the host: %v", err)
	}

	ok(t, h.AddVeth(VethSpec{HostName: "nic0", PeerName: "eth0"})) // both names are taken now
	home := host.Fd()
	if err := p.SetLink(got.Index, LinkChange{NetNS: &home, Name: ptr("nic0")}); !errors.Is(err, ErrExist) {
		t.Errorf("move to a taken name: %v, want ErrExist", err)
	}
	ok(t, p.SetLink(got.Index, LinkChange{NetNS: &home, Name: ptr("dev%d")}))
	for _, l := range must[[]Link](t)(h.Links()) {
		if l.Alias == alias && strings.HasPrefix(l.Name, "dev") {
			return
		}
	}
	t.Error("the link did not come back under a free name")
}
