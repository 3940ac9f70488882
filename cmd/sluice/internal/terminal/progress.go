// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// patience is how long a command may take before it says that it works.
const patience = time.Second

// Progress is a line on a terminal that says what a long command does, and for how long. It goes when the command prints, or ends.
type Progress struct {
	out  *os.File
	mu   sync.Mutex
	text string
	stop chan struct{}
	done chan struct{}
}

// StartProgress shows text on out from one second on. It does nothing if out is nil, or text is empty. Stop ends it.
func StartProgress(out *os.File, text string) *Progress {
	if out == nil || text == "" {
		return nil
	}
	p := &Progress{out: out, text: text, stop: make(chan struct{}), done: make(chan struct{})}
	go p.run()
	return p
}

func (p *Progress) run() {
	defer close(p.done)
	start := time.Now()
	for wait := time.NewTimer(patience); ; wait.Reset(patience) {
		select {
		case <-p.stop:
			wait.Stop()
			if time.Since(start) >= patience {
				fmt.Fprintf(p.out, "\r%s", eol)
			}
			return
		case <-wait.C:
		}
		columns, _ := Size(p.out)
		line := fmt.Sprintf("%s ... %d s", p.text, int(time.Since(start).Seconds()))
		if columns > 0 {
			line = Cut(line, columns-1)
		}
		fmt.Fprintf(p.out, "\r%s%s", line, eol)
	}
}

// Stop takes the line away. Stopping twice, or nothing, is fine. What is printed after it does not meet the line.
func (p *Progress) Stop() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.stop:
	default:
		close(p.stop)
	}
	<-p.done
}
