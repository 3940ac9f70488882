// SPDX-License-Identifier: Apache-2.0

package storeproc

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-cni/sluice/pkg/file"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
)

// One process of a node stays for all its pools, in claims.Keep. A file for each pool says that it is to be kept, and with which
// configuration: the process reads them when it starts, and looks for new ones. So a process that was killed comes back for all pools.

const (
	keepDir    = "keep"    // below the node's directory
	keepLock   = ".lock"   // for as long as the files are read or written
	keeperLock = ".keeper" // of the process that stays
	keepScan   = 2 * time.Second
)

func keepFile(j *Job) string { return j.Config.Backend + "." + j.Request.Pool + ".json" }

// Kept reports whether a process stays for a pool.
func Kept(ctx context.Context, j *Job) bool {
	dir := filepath.Join(j.Config.DataDir, keepDir)
	lock, err := file.AcquireLock(ctx, filepath.Join(dir, keepLock))
	if err != nil {
		return false
	}
	defer lock.Close()
	if _, err := os.Stat(filepath.Join(dir, keepFile(j))); err != nil {
		return false
	}
	keeper := file.TryLock(filepath.Join(dir, keeperLock))
	if keeper == nil {
		return true
	}
	_ = keeper.Close()
	return false
}

// Claimer opens the store of a job. The caller calls end after its last use.
type Claimer func(ctx context.Context, j *Job) (c *claims.Claimer, end func(), err error)

// keeper is the process that stays.
type keeper struct {
	dir     string
	claimer Claimer
	log     *log.Logger
	running map[string]*keptPool // by the name of its file
}

type keptPool struct {
	text []byte // of the file
	stop context.CancelFunc
	done chan struct{}
}

// Stay has a process stay for the pool of a request: this one, if none stays for the node. It returns when no pool needs it any more.
func Stay(ctx context.Context, j *Job, claimer Claimer, logger *log.Logger) error {
	k := &keeper{dir: filepath.Join(j.Config.DataDir, keepDir), claimer: claimer, log: logger, running: map[string]*keptPool{}}
	only, err := k.begin(ctx, j)
	if only == nil || err != nil {
		return err
	}
	defer only.Close()
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		for _, p := range k.running {
			<-p.done
		}
	}()
	for {
		if done, err := k.scan(ctx, only); done || err != nil {
			return err
		}
		select {
		case <-time.After(keepScan):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// begin writes the file of the pool, and returns the lock of the process that stays, or nil if there is one.
func (k *keeper) begin(ctx context.Context, j *Job) (*os.File, error) {
	pooled := Job{Config: j.Config, Node: j.Node, Request: j.Request} // of no attachment
	pooled.Request.Wanted, pooled.Request.Hold = netip.Addr{}, ""
	text, err := json.Marshal(&pooled)
	if err != nil {
		return nil, err
	}
	lock, err := file.AcquireLock(ctx, filepath.Join(k.dir, keepLock))
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	path := filepath.Join(k.dir, keepFile(j))
	if had, err := os.ReadFile(path); err != nil || !bytes.Equal(had, text) {
		if err := file.Write(path, text, file.Options{}); err != nil {
			return nil, err
		}
	}
	return file.TryLock(filepath.Join(k.dir, keeperLock)), nil
}

// scan begins to stay for pools that are new or have another configuration. It reports true, and gives the lock up, if there is none.
func (k *keeper) scan(ctx context.Context, only io.Closer) (bool, error) {
	lock, err := file.AcquireLock(ctx, filepath.Join(k.dir, keepLock))
	if err != nil {
		return false, err
	}
	defer lock.Close()
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return false, err
	}
	files := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		files++
		text, err := os.ReadFile(filepath.Join(k.dir, e.Name()))
		if err != nil {
			return false, err
		}
		p := k.running[e.Name()]
		switch {
		case p == nil || p.ended():
			k.start(ctx, e.Name(), text)
		case !bytes.Equal(p.text, text):
			p.stop() // the next scan begins again
		}
	}
	if files > 0 {
		return false, nil
	}
	return true, only.Close()
}

func (p *keptPool) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (k *keeper) start(ctx context.Context, name string, text []byte) {
	p := &keptPool{text: text, done: make(chan struct{})}
	ctx, p.stop = context.WithCancel(ctx)
	k.running[name] = p
	go func() {
		defer close(p.done)
		defer p.stop()
		if err := k.stay(ctx, name, text); err != nil && ctx.Err() == nil {
			k.log.Warn("no process stays for a pool any more", log.String("file", name), log.Error(err))
			_ = os.Remove(filepath.Join(k.dir, name)) // the next ADD that asks the store writes it again
		}
	}()
}

// stay stays for a pool until it needs nobody.
func (k *keeper) stay(ctx context.Context, name string, text []byte) error {
	var j Job
	if err := json.Unmarshal(text, &j); err != nil {
		return err
	}
	c, end, err := k.claimer(ctx, &j)
	if err != nil {
		return err
	}
	defer end()
	for {
		if err := c.Keep(ctx, &j.Request); err != nil {
			return err
		}
		if gone, err := k.drop(ctx, c, &j, name); gone || err != nil {
			return err
		}
		select { // a process of an older build stays for the pool
		case <-time.After(keepScan):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// drop removes the file of a pool that needs nobody, and reports whether it does not. Kept sees either the file or what the pool needs.
func (k *keeper) drop(ctx context.Context, c *claims.Claimer, j *Job, name string) (bool, error) {
	lock, err := file.AcquireLock(ctx, filepath.Join(k.dir, keepLock))
	if err != nil {
		return false, err
	}
	defer lock.Close()
	if more, err := c.ToKeep(ctx, &j.Request); more || err != nil {
		return false, err
	}
	return true, os.Remove(filepath.Join(k.dir, name))
}
