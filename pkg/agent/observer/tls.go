// SPDX-License-Identifier: Apache-2.0

package observer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sluice-cni/sluice/pkg/log"
)

// Files are those of mutual TLS: the server's certificate and key, and the authority whose certificates clients must have.
type Files struct {
	Cert, Key, ClientCA string
}

// ServerName is the name that the certificate of a node must have: that of Hubble on Cilium's nodes, so that certificates are made the same
// way. Dots of a node's name are dashes in it: a wildcard is for one label.
func ServerName(node string) string {
	return strings.ReplaceAll(node, ".", "-") + "." + cluster + ".hubble-grpc.cilium.io"
}

// server returns the configuration, which reads the files again when they change. While what is in them cannot be used, the former holds.
func (f Files) server(l *log.Logger) (*tls.Config, error) {
	r := &reloader{files: f, log: l}
	if err := r.load(); err != nil {
		return nil, err
	}
	c := r.current.Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.get(), nil }
	return c, nil
}

// reloader has the configuration of the files as they were read last.
type reloader struct {
	files Files
	log   *log.Logger

	mu      sync.Mutex
	stamp   [3]fileStamp
	current *tls.Config
}

// fileStamp tells the states of a file apart.
type fileStamp struct {
	at   time.Time
	size int64
}

func (r *reloader) get() *tls.Config {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stamps() != r.stamp {
		if err := r.load(); err != nil {
			r.log.Warn("observe.tls: the former files hold", log.Error(err))
		}
	}
	return r.current
}

func (r *reloader) stamps() (out [3]fileStamp) {
	for i, path := range []string{r.files.Cert, r.files.Key, r.files.ClientCA} {
		if info, err := os.Stat(path); err == nil {
			out[i] = fileStamp{info.ModTime(), info.Size()}
		}
	}
	return out
}

func (r *reloader) load() error {
	r.stamp = r.stamps() // before they are read: a change in between is read again
	pair, err := tls.LoadX509KeyPair(r.files.Cert, r.files.Key)
	if err != nil {
		return fmt.Errorf("observe.tls.cert %s and observe.tls.key %s: %w", r.files.Cert, r.files.Key, err)
	}
	text, err := os.ReadFile(r.files.ClientCA)
	if err != nil {
		return fmt.Errorf("observe.tls.clientCA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return fmt.Errorf("observe.tls.clientCA %s: %w", r.files.ClientCA, errors.New("has no certificate"))
	}
	r.current = &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		NextProtos: []string{"h2"}, SessionTicketsDisabled: true, // a ticket would outlive the authority that is taken away
	}
	return nil
}
