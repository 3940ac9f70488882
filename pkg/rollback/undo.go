// SPDX-License-Identifier: Apache-2.0

// Package rollback is the rollback stack of an ADD: each effect pushes what takes
// it back, and a failed ADD runs the stack in reverse. It owns no state of its
// own and imports none of our packages.
package rollback

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// grace bounds the whole rollback. It does not come from the verb's context:
// a verb that failed because its deadline passed must still be undone.
const grace = 30 * time.Second

// Stack holds undo steps. The zero value is ready; it is not for concurrent use.
type Stack struct {
	steps []step
}

type step struct {
	what string
	f    func(ctx context.Context) error
}

// Push adds the undo of an effect that has just succeeded. what names the
// effect for the error of a failed rollback ("delete veth eth0").
func (s *Stack) Push(what string, f func(ctx context.Context) error) {
	s.steps = append(s.steps, step{what: what, f: f})
}

// Rollback is deferred on a named result: when *err is not nil it runs the
// steps in reverse order, all of them, and joins their failures to *err.
// Values of ctx are kept, its cancellation is not. A panic below is no error
// yet; it is left to unwind and rolled back all the same.
func (s *Stack) Rollback(ctx context.Context, err *error) {
	p := recover()
	if *err == nil && p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	all := []error{*err}
	for i := len(s.steps) - 1; i >= 0; i-- {
		if e := s.steps[i].f(ctx); e != nil {
			all = append(all, fmt.Errorf("undo: %s: %w", s.steps[i].what, e))
		}
	}
	s.steps = nil
	if p != nil {
		panic(p)
	}
	if len(all) > 1 {
		*err = errors.Join(all...)
	}
}
