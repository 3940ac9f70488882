// SPDX-License-Identifier: Apache-2.0

package routes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/sluice-cni/sluice/pkg/file"
)

// shortestRotation leaves the agents time to learn the keys of each other.
const shortestRotation = 10 * time.Minute

// keyFile is where a node's private keys are, below the state directory.
const keyFile = "wireguard/keys.json"

// A node has two keys, each with a device and a port: one lane is active, and the other one gets its next key.
const lanes = 2

// ownKey is a private key, in the file too.
type ownKey struct {
	Private string
	Made    time.Time
	key     wgtypes.Key
	public  wgtypes.Key
}

type keyPair struct {
	Keys [lanes]ownKey
}

// activeLane is the one that nodes prefer. It follows from the time, so that all nodes agree without a word.
func activeLane(now time.Time, rotation time.Duration) int {
	return int(periodOf(now, rotation) % lanes)
}

func periodOf(now time.Time, rotation time.Duration) int64 { return now.UnixNano() / int64(rotation) }

func periodStart(now time.Time, rotation time.Duration) time.Time {
	return time.Unix(0, periodOf(now, rotation)*int64(rotation))
}

// staleKey says that the idle lane's key has had its time: it was active in the period before, and half of this one has gone. So
// all nodes have moved to the other lane, and have half a period to learn the new key.
func (k *keyPair) staleKey(now time.Time, rotation time.Duration) bool {
	start := periodStart(now, rotation)
	return now.Sub(start) >= rotation/2 && k.Keys[1-activeLane(now, rotation)].Made.Before(start)
}

// nextStep is the time until a key is stale or the active lane changes.
func nextStep(now time.Time, rotation time.Duration) time.Duration {
	gone := now.Sub(periodStart(now, rotation))
	if gone < rotation/2 {
		return rotation/2 - gone
	}
	return rotation - gone
}

func newKey(now time.Time) (ownKey, error) {
	k, err := wgtypes.GeneratePrivateKey()
	return ownKey{k.String(), now, k, k.PublicKey()}, err
}

// loadKeys reads the node's keys, and makes them if there are none. A file that others could have written or read is an error.
func loadKeys(stateDir string, now time.Time) (*keyPair, error) {
	path := filepath.Join(stateDir, keyFile)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		k := &keyPair{}
		for i := range k.Keys {
			if k.Keys[i], err = newKey(now); err != nil {
				return nil, err
			}
		}
		return k, k.save(stateDir)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if sys := st.Sys().(*syscall.Stat_t); !st.Mode().IsRegular() || st.Mode().Perm()&0o077 != 0 || int(sys.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("%s: mode %s of user %d: others may know the keys; remove the file, and the node gets new ones", path, st.Mode(), sys.Uid)
	}
	b, err := io.ReadAll(io.LimitReader(f, 1<<16))
	if err != nil {
		return nil, err
	}
	k := &keyPair{}
	if err := json.Unmarshal(b, k); err != nil {
		return nil, fmt.Errorf("%s: no keys: %w; remove the file, and the node gets new ones", path, err)
	}
	for i := range k.Keys {
		if k.Keys[i].key, err = wgtypes.ParseKey(k.Keys[i].Private); err != nil || k.Keys[i].key == (wgtypes.Key{}) {
			return nil, fmt.Errorf("%s: key %d cannot be read; remove the file, and the node gets new ones", path, i) // not the error: it may hold a part of the key
		}
		k.Keys[i].public = k.Keys[i].key.PublicKey()
	}
	return k, nil
}

// save replaces the file. It has the keys, or those of before, also after a crash.
func (k *keyPair) save(stateDir string) error {
	path := filepath.Join(stateDir, keyFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.Chmod(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	b, err := json.Marshal(k)
	if err != nil {
		return err
	}
	_, err = file.Update(path, b, 0o600)
	return err
}

// removeKeys removes the node's private keys.
func removeKeys(stateDir string) error {
	path := filepath.Join(stateDir, keyFile)
	if err := file.Discard(path); err != nil {
		return err
	}
	_ = os.Remove(filepath.Dir(path)) // a third party's file in it stays
	return nil
}

// publicKeys is the value of the annotation: the keys of both lanes, and the port of the first one.
type publicKeys struct {
	Keys []string `json:"keys"`
	Port int      `json:"port"`
}

func (k *keyPair) annotation(port int) (string, error) {
	p := publicKeys{Port: port}
	for _, own := range k.Keys {
		p.Keys = append(p.Keys, own.public.String())
	}
	b, err := json.Marshal(p)
	return string(b), err
}

// peerKeys are what another node says of its keys.
type peerKeys struct {
	keys [lanes]wgtypes.Key
	port int
}

func readKeys(n Node) (peerKeys, error) {
	value, ok := n.Annotations[AnnotationWireGuard]
	if !ok || value == "" {
		return peerKeys{}, &NodeError{n.Name, fmt.Sprintf("annotation %s: missing; the node's agent has not started in wireguard mode yet", AnnotationWireGuard)}
	}
	bad := &NodeError{n.Name, fmt.Sprintf(`annotation %s: %.64q: not {"keys":[two public keys],"port":...}`, AnnotationWireGuard, value)}
	var p publicKeys
	if len(value) > longestData || json.Unmarshal([]byte(value), &p) != nil || len(p.Keys) != lanes || p.Port < 1 || p.Port > 65534 {
		return peerKeys{}, bad
	}
	out := peerKeys{port: p.Port}
	for i, s := range p.Keys {
		k, err := wgtypes.ParseKey(s)
		if err != nil || k == (wgtypes.Key{}) {
			return peerKeys{}, bad
		}
		out.keys[i] = k
	}
	return out, nil
}
