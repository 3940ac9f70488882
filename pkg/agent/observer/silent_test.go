// SPDX-License-Identifier: Apache-2.0

package observer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// closed reports whether the server has closed a connection that says nothing, after at most d.
func closed(t *testing.T, c net.Conn, d time.Duration) bool {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(d)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, c)
	var late net.Error
	return !errors.As(err, &late) || !late.Timeout()
}

// Clients that connect and say nothing keep a place for a moment, and keep no client with a certificate from being served. Such a
// client keeps its place.
func TestSilentClients(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) { silentClients(t, address) })
	}
}

func silentClients(t *testing.T, address string) {
	ours := newAuthority(t)
	dir := t.TempDir()
	ours.issue(dir, x509.ExtKeyUsageServerAuth)
	files := Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), ClientCA: filepath.Join(dir, "ca.crt")}
	write(t, files.ClientCA, "CERTIFICATE", ours.cert.Raw)
	path, _ := program(t, "", "exit 1")
	s := serve(t, Options{Program: path, Address: address, TLS: files})
	address = s.listen[0].Addr().String()
	pool := x509.NewCertPool()
	pool.AddCert(ours.cert)
	dials := 0
	client := func() (healthy func()) {
		c, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			RootCAs: pool, Certificates: []tls.Certificate{ours.issue(t.TempDir(), x509.ExtKeyUsageClientAuth)}, ServerName: ServerName("node-a"), MinVersion: tls.VersionTLS13,
		})), grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			dials++ // one at a time: the client waits for its answer
			return (&net.Dialer{}).DialContext(ctx, "tcp", to)
		}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return func() {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), greetTime/2)
			defer cancel()
			if _, err := grpc_health_v1.NewHealthClient(c).Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
				t.Errorf("a client with a certificate: %v", err)
			}
		}
	}
	early := client()
	early()
	held := make([]net.Conn, 4*maxGreeted)
	for i := range held {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		held[i] = c
	}
	client()()
	early()
	if dials != 2 {
		t.Errorf("%d connections of two clients: a known one was closed", dials)
	}
	began := time.Now()
	for _, c := range held {
		if !closed(t, c, 10*greetTime) {
			t.Fatalf("a silent client has its place after %s", time.Since(began))
		}
	}
}
