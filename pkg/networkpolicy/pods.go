// SPDX-License-Identifier: Apache-2.0

package networkpolicy

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
)

// podKey is the first eight bytes of the SHA-256 of a UID.
type podKey [8]byte

func keyOf(uid string) podKey {
	sum := sha256.Sum256([]byte(uid))
	return podKey(sum[:8])
}

// PodKey is the number by which the datapath knows a pod: the first eight bytes of the SHA-256 of its UID, big-endian, never 0.
func PodKey(uid string) uint64 { return keyOf(uid).number() }

func (k podKey) number() uint64 { return max(1, binary.BigEndian.Uint64(k[:])) }

// NamespaceKey is the number by which the datapath knows a namespace: the first eight bytes of the SHA-256 of its name, big-endian.
func NamespaceKey(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return binary.BigEndian.Uint64(sum[:])
}

func (k podKey) owner() Owner { return Owner(max(1, binary.BigEndian.Uint32(k[:]))) }

func ownerOf(uid string) Owner { return keyOf(uid).owner() }

// pod is kept small, because a node has one for each pod of the cluster.
type pod struct {
	kind    *kind
	addrs   []addr16
	key     podKey
	created uint32 // in seconds since 1970
	at      uint32 // index in kind.pods
}

// newer decides who has an address that both claim. Two pods of one second are told apart by their keys, so that a restarted engine
// decides in the same way.
func (p *pod) newer(o *pod) bool {
	if p.created != o.created {
		return p.created > o.created
	}
	return slices.Compare(p.key[:], o.key[:]) > 0
}

// addr16 is an address in 16-byte form.
type addr16 [16]byte

func (a addr16) netip() netip.Addr { return netip.AddrFrom16(a) }

// address is who has an address, and what was written about it. It is as small as that, because there is one for each of the cluster's.
type address struct {
	pod   *pod // nil for a node's address
	class Class
	owner Owner
}

// unwritten is the class of an address that is not in the table.
const unwritten = ^Class(0)

// localPod is a pod of this node.
type localPod struct {
	uid     string
	pod     *pod
	written bool
	set     SetID // as written
}

// UpsertPod takes a new or changed pod. A terminal pod, and one on the node's network, is as if it were deleted.
func (e *Engine) UpsertPod(p Pod) {
	if p.HostNetwork || p.Terminal {
		e.DeletePod(p.UID)
		return
	}
	key := keyOf(p.UID)
	k := e.kindOf(&p)
	addrs := wideAddrs(p.Addrs)
	local := e.node != "" && p.Node == e.node
	created := uint32(max(0, p.Created.Unix()))
	old := e.pods[key]
	if old == nil {
		old = &pod{key: key, addrs: addrs, created: created}
		e.pods[key] = old
		e.join(old, k)
		e.claim(old)
		e.dirtyPods[key] = struct{}{}
	} else {
		if old.kind != k {
			e.leave(old)
			e.join(old, k)
			for _, a := range old.addrs {
				e.dirtyAddrs[a] = struct{}{}
			}
			e.dirtyPods[key] = struct{}{}
		}
		if old.created != created || !slices.Equal(old.addrs, addrs) {
			e.disclaim(old)
			old.addrs, old.created = addrs, created
			e.claim(old)
			e.dirtyPods[key] = struct{}{}
		}
	}
	e.setLocal(old, p.UID, local)
}

// DeletePod forgets a pod.
func (e *Engine) DeletePod(uid string) { e.deletePod(keyOf(uid)) }

func (e *Engine) deletePod(key podKey) {
	p := e.pods[key]
	if p == nil {
		return
	}
	e.setLocal(p, "", false)
	e.disclaim(p)
	e.leave(p)
	delete(e.pods, key)
	e.dirtyPods[key] = struct{}{}
}

// wideAddrs returns addresses in 16-byte form, without duplicates.
func wideAddrs(addrs []netip.Addr) []addr16 {
	out := make([]addr16, 0, len(addrs))
	for _, addr := range addrs {
		if a := addr16(addr.As16()); addr.IsValid() && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// kindOf returns the kind of a pod, which may be new.
func (e *Engine) kindOf(p *Pod) *kind {
	key := kindKey{e.namespace(p.Namespace), e.labels.acquire(p.Labels), e.ports.acquire(p.Ports)}
	if k := e.kinds[key]; k != nil {
		e.labels.release(key.labels)
		e.ports.release(key.ports)
		return k
	}
	k := &kind{ns: key.ns, labels: key.labels, ports: key.ports}
	e.kinds[key] = k
	k.ns.kinds[k] = struct{}{}
	for _, n := range k.ports.ports {
		byPort := e.byPort[n.Name]
		if byPort == nil {
			byPort = map[NamedPort]map[*kind]struct{}{}
			e.byPort[n.Name] = byPort
		}
		if byPort[n] == nil {
			byPort[n] = map[*kind]struct{}{}
		}
		byPort[n][k] = struct{}{}
	}
	e.queue(k)
	return k
}

// forgetKind is for a kind without pods.
func (e *Engine) forgetKind(k *kind) {
	e.cells.put(k, nil)
	delete(e.kinds, kindKey{k.ns, k.labels, k.ports})
	delete(k.ns.kinds, k)
	for _, n := range k.ports.ports {
		delete(e.byPort[n.Name][n], k)
		if len(e.byPort[n.Name][n]) == 0 {
			delete(e.byPort[n.Name], n)
		}
		if len(e.byPort[n.Name]) == 0 {
			delete(e.byPort, n.Name)
		}
	}
	e.labels.release(k.labels)
	e.ports.release(k.ports)
	e.forgetNamespace(k.ns)
}

func (e *Engine) join(p *pod, k *kind) {
	p.kind, p.at = k, uint32(len(k.pods))
	k.pods = append(k.pods, p)
	if e.local[p.key] != nil {
		k.local++
		e.stale(k)
	}
	if len(k.pods) == 1 {
		e.portsChanged(k)
	}
}

func (e *Engine) leave(p *pod) {
	k := p.kind
	last := len(k.pods) - 1
	k.pods[p.at] = k.pods[last]
	k.pods[p.at].at = p.at
	k.pods[last] = nil
	k.pods = k.pods[:last]
	if e.local[p.key] != nil {
		k.local--
		e.stale(k)
	}
	if last == 0 {
		e.dirtyKinds[k] = struct{}{}
		e.portsChanged(k)
	}
}

func (e *Engine) setLocal(p *pod, uid string, local bool) {
	l := e.local[p.key]
	if local == (l != nil) {
		return
	}
	if local {
		e.local[p.key] = &localPod{uid: uid, pod: p}
		p.kind.local++
		e.stale(p.kind)
		return
	}
	if l.written {
		e.gone = append(e.gone, l)
	}
	delete(e.local, p.key)
	p.kind.local--
	e.stale(p.kind)
}

// address returns the record of an address, which may be new.
func (e *Engine) address(a addr16) address {
	if rec, ok := e.addrs[a]; ok {
		return rec
	}
	return address{class: unwritten}
}

// claim gives a pod its addresses, unless a newer pod has them.
func (e *Engine) claim(p *pod) {
	for _, a := range p.addrs {
		rec := e.address(a)
		switch {
		case rec.pod == nil:
			rec.pod = p
		case p.newer(rec.pod):
			e.rivals[a] = append(e.rivals[a], rec.pod)
			rec.pod = p
		default:
			e.rivals[a] = append(e.rivals[a], p)
			continue
		}
		e.addrs[a] = rec
		e.dirtyAddrs[a] = struct{}{}
	}
}

// disclaim takes a pod's addresses away. The newest of the others that claim one has it then.
func (e *Engine) disclaim(p *pod) {
	for _, a := range p.addrs {
		rivals := e.rivals[a]
		rec := e.addrs[a]
		if rec.pod != p {
			rivals = slices.DeleteFunc(rivals, func(r *pod) bool { return r == p })
		} else {
			rec.pod = nil
			if i := newest(rivals); i >= 0 {
				rec.pod = rivals[i]
				rivals = slices.Delete(rivals, i, i+1)
			}
			e.addrs[a] = rec
			e.dirtyAddrs[a] = struct{}{}
		}
		if len(rivals) == 0 {
			delete(e.rivals, a)
		} else {
			e.rivals[a] = rivals
		}
	}
}

func newest(pods []*pod) int {
	best := -1
	for i, p := range pods {
		if best < 0 || p.newer(pods[best]) {
			best = i
		}
	}
	return best
}
