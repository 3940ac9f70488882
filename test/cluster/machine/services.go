// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Service is a program that a machine runs. What it prints goes to NAME.log in the folder log of the machine.
type Service struct {
	Name string
	Args []string // as the machine sees the paths
	Env  []string // beside the machine's own
}

// request is what is asked over the control socket: one line, one answer, and the end of the connection.
type request struct {
	Do      string // "start", "stop" or "list"
	Service Service
	Signal  syscall.Signal
	Wait    time.Duration
}

type answer struct {
	Error    string
	Services map[string]State
}

// State is what has become of a service.
type State struct {
	PID     int // as the machine counts
	Running bool
	Exit    string
}

// server is the first process's view of what runs. It reaps every process of the machine, so no other one waits for them.
type server struct {
	socket *net.UnixListener
	logs   string

	mu    sync.Mutex
	runs  map[string]*run
	byPID map[int]*run
}

type run struct {
	pid   int
	exit  string
	ended chan struct{}
}

// listen opens the socket where the real machine sees it.
func (m *Machine) listen() (*server, error) {
	path := filepath.Join(m.Dir, socketFile)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	return &server{socket: l, logs: Shared + "/log", runs: map[string]*run{}, byPID: map[int]*run{}}, nil
}

func (s *server) serve() error {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	go func() {
		for range children {
			s.reap()
		}
	}()
	for {
		c, err := s.socket.Accept()
		if err != nil {
			return err
		}
		go s.answer(c)
	}
}

func (s *server) reap() {
	s.mu.Lock() // a process that is being started is known before its end is
	defer s.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		r := s.byPID[pid]
		if r == nil {
			continue // its parent has ended before
		}
		delete(s.byPID, pid)
		r.exit = fmt.Sprintf("exit status %d", status.ExitStatus())
		if status.Signaled() {
			r.exit = status.Signal().String()
		}
		close(r.ended)
	}
}

func (s *server) answer(c net.Conn) {
	defer c.Close()
	var q request
	a := answer{Services: map[string]State{}}
	err := json.NewDecoder(c).Decode(&q)
	if err == nil {
		switch q.Do {
		case "start":
			err = s.start(q.Service)
		case "stop":
			err = s.stop(q.Service.Name, q.Signal, q.Wait)
		case "list":
			s.list(a.Services)
		default:
			err = fmt.Errorf("unknown request %q", q.Do)
		}
	}
	if err != nil {
		a.Error = err.Error()
	}
	_ = json.NewEncoder(c).Encode(a)
}

func (s *server) start(what Service) error {
	log, err := os.OpenFile(filepath.Join(s.logs, what.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[what.Name]; r != nil && !closed(r.ended) {
		return fmt.Errorf("%s runs already, as %d", what.Name, r.pid)
	}
	pid, err := syscall.ForkExec(what.Args[0], what.Args, &syscall.ProcAttr{
		Dir: "/", Env: append(os.Environ(), what.Env...), Files: []uintptr{0, log.Fd(), log.Fd()}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what.Args[0], err)
	}
	r := &run{pid: pid, ended: make(chan struct{})}
	s.runs[what.Name], s.byPID[pid] = r, r
	return nil
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *server) stop(name string, sig syscall.Signal, wait time.Duration) error {
	s.mu.Lock()
	r := s.runs[name]
	// Under the lock the process is not reaped, so the pid is its own.
	alive := r != nil && !closed(r.ended)
	if alive {
		_ = syscall.Kill(r.pid, sig)
	}
	s.mu.Unlock()
	if r == nil {
		return fmt.Errorf("%s was never started", name)
	}
	select {
	case <-r.ended:
		return nil
	case <-time.After(wait):
		return fmt.Errorf("%s does not end within %s", name, wait)
	}
}

func (s *server) list(to map[string]State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, r := range s.runs {
		to[name] = State{PID: r.pid, Running: !closed(r.ended), Exit: r.exit}
	}
}

func (m *Machine) ask(q request) (answer, error) {
	var a answer
	c, err := net.DialTimeout("unix", filepath.Join(m.Dir, socketFile), 5*time.Second)
	if err != nil {
		return a, fmt.Errorf("machine %s: %w", m.Name, err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(q.Wait + 30*time.Second)); err != nil {
		return a, err
	}
	if err := json.NewEncoder(c).Encode(q); err != nil {
		return a, err
	}
	if err := json.NewDecoder(c).Decode(&a); err != nil {
		return a, fmt.Errorf("machine %s: %w", m.Name, err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("machine %s: %s", m.Name, a.Error)
	}
	return a, nil
}

// StartService starts a program in the machine.
func (m *Machine) StartService(s Service) error {
	_, err := m.ask(request{Do: "start", Service: s})
	return err
}

// StopService sends a signal to a service and returns when it has ended. What it has started goes on.
func (m *Machine) StopService(name string, sig syscall.Signal) error {
	_, err := m.ask(request{Do: "stop", Service: Service{Name: name}, Signal: sig, Wait: 30 * time.Second})
	return err
}

// Services says what has become of each service that was started.
func (m *Machine) Services() (map[string]State, error) {
	a, err := m.ask(request{Do: "list"})
	return a.Services, err
}

// Log is the path of a service's log.
func (m *Machine) Log(service string) string { return filepath.Join(m.Dir, "log", service+".log") }
