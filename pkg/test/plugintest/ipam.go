// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/sluice-cni/sluice/pkg/cniskel"
)

// IPAM hands out the answer it was given and remembers who holds it.
type IPAM struct {
	mu      sync.Mutex
	Answer  func(n int) *types100.Result // n counts the ADDs from 1
	AddErr  error
	DelErr  error
	VerbErr error // of CHECK, GC and STATUS
	Held    map[string]bool
	// Before runs before each ADD, Calls are the verbs.
	Before func(a *cniskel.Args)
	Calls  []string
	// Stdin is that of the last DEL.
	Stdin []byte
	Adds  int
}

// Add hands out the next answer.
func (f *IPAM) Add(_ context.Context, a *cniskel.Args, kind string) (*types100.Result, error) {
	if f.Before != nil {
		f.Before(a)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Calls = append(f.Calls, "ADD "+kind)
	f.Held[a.ContainerID+"/"+a.IfName] = true // also on failure: the caller must DEL
	f.Adds++
	if f.AddErr != nil {
		return nil, f.AddErr
	}
	return f.Answer(f.Adds), nil
}

// Del takes it back.
func (f *IPAM) Del(_ context.Context, a *cniskel.Args, kind string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Calls = append(f.Calls, "DEL "+kind)
	delete(f.Held, a.ContainerID+"/"+a.IfName)
	f.Stdin = a.StdinData
	return f.DelErr
}

func (f *IPAM) verb(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Calls = append(f.Calls, name)
	return f.VerbErr
}

// Check answers CHECK.
func (f *IPAM) Check(_ context.Context, _ *cniskel.Args, kind string) error {
	return f.verb("CHECK " + kind)
}

// GC answers GC.
func (f *IPAM) GC(_ context.Context, _ *cniskel.Args, kind string) error {
	return f.verb("GC " + kind)
}

// Status answers STATUS.
func (f *IPAM) Status(_ context.Context, _ *cniskel.Args, kind string) error {
	return f.verb("STATUS " + kind)
}
