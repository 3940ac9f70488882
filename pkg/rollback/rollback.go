// SPDX-License-Identifier: Apache-2.0

// Package rollback is the rollback stack of an ADD. Each effect pushes what takes
// it back, and a failed ADD runs the stack in reverse. Plugins and the loader use
// it. It owns no state of its own and imports no package of Sluice.
package rollback

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// grace bounds the whole rollback. It does not come from the verb's context: a
// verb that failed because its deadline passed must still be rolled back.
const grace = 30 * time.Second

// Stack holds undo steps. The zero value is ready; it is not for concurrent use.
type Stack struct {
	steps []step
}

type step struct {
	what string
	f    func(ctx context.Context) error
}

// Push adds what takes an effect back. Push comes before an effect that can fail
// halfway, or whose failure does not tell whether it happened: a table of rules,
// the datapath, another plugin. f must take a missing effect for success.
//
// Push comes right after an effect of one atomic step: a netlink message that
// makes one object, or the attachment record. When such a step fails nothing was
// made, and f could take away what another process made.
//
// what names the effect for the error of a failed rollback ("veth eth0").
func (s *Stack) Push(what string, f func(ctx context.Context) error) {
	s.steps = append(s.steps, step{what: what, f: f})
}

// Rollback is deferred on a named result. When *err is not nil it runs all steps
// in reverse order and joins their failures to *err. It keeps the values of ctx
// and drops its cancellation. It also runs the steps when the ADD panics, and then
// panics again.
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
