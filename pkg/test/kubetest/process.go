// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"os"
	"os/exec"
	"path/filepath"
)

// process is one program of the server. It ends with the process of the test.
type process struct {
	name  string
	cmd   *exec.Cmd
	out   string
	ended chan struct{}
}

func (s *Server) run(name string, args []string) *process {
	s.t.Helper()
	p := &process{name: name, cmd: exec.Command(filepath.Join(s.bin, name), args...), out: filepath.Join(s.Dir, name+".log"), ended: make(chan struct{})}
	log, err := os.OpenFile(p.out, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = s.Dir, log, log
	if err := s.NS.Start(p.cmd); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ends is in its log, and its end is often this package's doing
		close(p.ended)
	}()
	return p
}

func (p *process) exited() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// kill returns when the process has ended, also when it had before.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// logTail is how much of a log a failed test prints.
const logTail = 4000

func (p *process) log() string {
	data, err := os.ReadFile(p.out)
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-logTail):])
}
