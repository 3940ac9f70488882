// SPDX-License-Identifier: Apache-2.0

package subject

import (
	"fmt"
	"os/exec"

	"golang.org/x/sys/unix"
)

// observer is `sluice observe` with the limits that the node agent gives it. It runs only while its own world is measured: the others would
// pay for it too.
type observer struct{ cmd *exec.Cmd }

// observe starts an observer of everything on the node, if the suite has one.
func (w *World) observe() error {
	if w.Suite.Observer == "" {
		return nil
	}
	cmd := exec.Command(w.Suite.Observer, "observe", "-o", "json", "--follow", "--sample", "1", "--max-rate", "1000")
	if err := w.lab.Node.Start(cmd); err != nil {
		return fmt.Errorf("observer: %w", err)
	}
	w.observer = &observer{cmd}
	return w.observer.send(unix.SIGSTOP)
}

// observed runs f with the observer, if there is one.
func (w *World) observed(f func() error) error {
	if w.observer == nil {
		return f()
	}
	if err := w.observer.send(unix.SIGCONT); err != nil {
		return err
	}
	err := f()
	if serr := w.observer.send(unix.SIGSTOP); err == nil {
		err = serr
	}
	return err
}

func (o *observer) send(sig unix.Signal) error {
	if err := o.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("the observer has ended: %w", err)
	}
	return nil
}

// Close ends it.
func (o *observer) Close() error {
	_ = o.cmd.Process.Kill()
	_ = o.cmd.Wait() // killed
	return nil
}
