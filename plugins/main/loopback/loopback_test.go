// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/cniskel"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/pkg/sysctl"
	"github.com/sluice-cni/sluice/pkg/test/netlab"
	"github.com/sluice-cni/sluice/pkg/version"
)

func mustPod(t *testing.T) (*netlab.Node, *netlab.Pod) {
	t.Helper()
	node, err := netlab.NewNode()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := node.Close(); err != nil {
			t.Error(err)
		}
	})
	return node, node.PodT(t, "p1")
}

func args(version, netns, rest string) *cniskel.Args {
	return &cniskel.Args{
		CmdArgs: cniskel.CmdArgs{ContainerID: "c1", IfName: "ignored", Netns: netns,
			StdinData: []byte(fmt.Sprintf(`{"cniVersion":%q,"name":"lo","type":"loopback"%s}`, version, rest))},
		Log: log.NewNop(),
	}
}

// lo runs f with the pod's loopback interface.
func lo(t *testing.T, p *netlab.Pod, f func(h *rtnl.Handle, l rtnl.Link) error) {
	t.Helper()
	if err := p.Do(func() error {
		h, err := rtnl.New()
		if err != nil {
			return err
		}
		defer h.Close()
		l, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return f(h, l)
	}); err != nil {
		t.Fatal(err)
	}
}

func isUp(t *testing.T, p *netlab.Pod) (up bool) {
	t.Helper()
	lo(t, p, func(_ *rtnl.Handle, l rtnl.Link) error { up = l.Up; return nil })
	return up
}

func in(t *testing.T, n *netlab.Node, f func() error) error {
	t.Helper()
	var err error
	if derr := n.Do(func() error { err = f(); return nil }); derr != nil {
		t.Fatal(derr)
	}
	return err
}

func wantCode(t *testing.T, err error, code uint, text string) {
	t.Helper()
	obj := cnierr.From(err)
	if obj == nil || obj.Code != code || !strings.Contains(obj.Error(), text) {
		t.Errorf("error %v, want code %d and %q", err, code, text)
	}
}

func TestPrivilegedLife(t *testing.T) {
	for _, v := range version.CNI() {
		t.Run(v, func(t *testing.T) {
			node, pod := mustPod(t)
			p := New(Deps{})
			ctx := context.Background()
			var res types.Result
			if err := in(t, node, func() (err error) { res, err = p.Add(ctx, args(v, pod.Path, "")); return err }); err != nil {
				t.Fatal(err)
			}
			if !isUp(t, pod) {
				t.Fatal("lo is down after ADD")
			}
			raw, err := json.Marshal(res)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []string{"127.0.0.1/8", "::1/128"} {
				if !strings.Contains(string(raw), s) {
					t.Errorf("no %s in %s", s, raw)
				}
			}
			if v == "1.1.0" {
				want := fmt.Sprintf(`{"cniVersion":"1.1.0","interfaces":[{"name":"lo","mac":"00:00:00:00:00:00","mtu":65536,"sandbox":%q}],`+
					`"ips":[{"interface":0,"address":"127.0.0.1/8"},{"interface":0,"address":"::1/128"}],"dns":{}}`, pod.Path)
				if diff := cmp.Diff(canonical(t, want), canonical(t, string(raw))); diff != "" {
					t.Errorf("result (-want +got):\n%s", diff)
				}
			}
			prev := args(v, pod.Path, `,"prevResult":`+string(raw))
			if err := in(t, node, func() error { return p.Check(ctx, prev) }); err != nil {
				t.Errorf("CHECK: %v", err)
			}
			for range 2 {
				if err := in(t, node, func() error { return p.Del(ctx, args(v, pod.Path, "")) }); err != nil {
					t.Errorf("DEL: %v", err)
				}
			}
			if isUp(t, pod) {
				t.Error("lo is up after DEL")
			}
			wantCode(t, in(t, node, func() error { return p.Check(ctx, prev) }), cnierr.CodeCheck, "down")
		})
	}
}

func canonical(t *testing.T, s string) (v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatal(err)
	}
	m := v.(map[string]any)
	if d, ok := m["dns"].(map[string]any); ok && len(d) == 0 {
		delete(m, "dns")
	}
	return m
}

func TestPrivilegedPrevResultPasses(t *testing.T) {
	node, pod := mustPod(t)
	const prev = `{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/x"}],"ips":[{"interface":0,"address":"10.1.0.2/16"}]}`
	var res types.Result
	err := in(t, node, func() (err error) {
		res, err = New(Deps{}).Add(context.Background(), args("1.0.0", pod.Path, `,"prevResult":`+prev))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := json.Marshal(res)
	if diff := cmp.Diff(canonical(t, prev), canonical(t, string(raw))); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	if !isUp(t, pod) {
		t.Error("lo is down")
	}
}

func TestPrivilegedForeignAddress(t *testing.T) {
	node, pod := mustPod(t)
	lo(t, pod, func(h *rtnl.Handle, l rtnl.Link) error {
		return h.AddAddr(rtnl.Addr{LinkIndex: l.Index, Prefix: netip.MustParsePrefix("192.0.2.1/32")})
	})
	err := in(t, node, func() error { _, err := New(Deps{}).Add(context.Background(), args("1.1.0", pod.Path, "")); return err })
	wantCode(t, err, cnierr.CodeConflict, "192.0.2.1/32")
	if isUp(t, pod) {
		t.Error("a failed ADD left lo up")
	}
}

func TestPrivilegedCheckAddress(t *testing.T) {
	node, pod := mustPod(t)
	lo(t, pod, func(h *rtnl.Handle, l rtnl.Link) error {
		if err := h.SetUp(l.Index); err != nil {
			return err
		}
		return h.DelAddr(rtnl.Addr{LinkIndex: l.Index, Prefix: netip.MustParsePrefix("127.0.0.1/8")})
	})
	prev := `,"prevResult":{"cniVersion":"1.1.0","interfaces":[{"name":"lo","sandbox":"/x"}],"ips":[{"interface":0,"address":"127.0.0.1/8"}]}`
	wantCode(t, in(t, node, func() error { return New(Deps{}).Check(context.Background(), args("1.1.0", pod.Path, prev)) }), cnierr.CodeCheck, "127.0.0.1/8")
}

// A later plugin or the runtime may switch IPv6 off, which takes ::1 away: the
// pod is as healthy as it was asked to be.
func TestPrivilegedCheckWithoutIPv6(t *testing.T) {
	node, pod := mustPod(t)
	p, ctx := New(Deps{}), context.Background()
	var res types.Result
	if err := in(t, node, func() (err error) { res, err = p.Add(ctx, args("1.1.0", pod.Path, "")); return err }); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(res)
	if err != nil {
		t.Fatal(err)
	}
	prev := args("1.1.0", pod.Path, `,"prevResult":`+string(raw))
	if err := pod.Do(func() error { return sysctl.Set("net/ipv6/conf/all/disable_ipv6", "1") }); err != nil {
		t.Fatal(err)
	}
	if err := in(t, node, func() error { return p.Check(ctx, prev) }); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	lo(t, pod, func(h *rtnl.Handle, l rtnl.Link) error {
		return h.DelAddr(rtnl.Addr{LinkIndex: l.Index, Prefix: netip.MustParsePrefix("127.0.0.1/8")})
	})
	wantCode(t, in(t, node, func() error { return p.Check(ctx, prev) }), cnierr.CodeCheck, "127.0.0.1/8")
}

func TestBadNamespace(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p, ctx := New(Deps{}), context.Background()
	for _, path := range []string{"", "/run/netns/gone-for-sure", plain} {
		_, err := p.Add(ctx, args("1.1.0", path, ""))
		wantCode(t, err, cnierr.CodeNetNS, "CNI_NETNS")
		wantCode(t, p.Check(ctx, args("1.1.0", path, "")), cnierr.CodeNetNS, "CNI_NETNS")
		if err := p.Del(ctx, args("1.1.0", path, "")); err != nil {
			t.Errorf("DEL with %q: %v", path, err)
		}
	}
}

func TestGCAndStatus(t *testing.T) {
	p, ctx := New(Deps{}), context.Background()
	wantCode(t, p.GC(ctx, args("1.1.0", "", "")), cnierr.CodeConfig, "valid-attachments")
	if err := p.GC(ctx, args("1.1.0", "", `,"cni.dev/valid-attachments":[]`)); err != nil {
		t.Error(err)
	}
	if err := p.Status(ctx, args("1.1.0", "", "")); err != nil {
		t.Error(err)
	}
	wantCode(t, p.Status(ctx, args("1.1.0", "", `,"prevResult":5`)), cnierr.CodeDecode, "prevResult")
}
