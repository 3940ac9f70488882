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

// silent connects from an address and says nothing.
func silent(t *testing.T, from, to string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	c, err := d.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

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

// A host that connects and says nothing keeps a part of the places, for a moment. It does not keep others from being served.
func TestSilentClients(t *testing.T) {
	ours := newAuthority(t)
	dir := t.TempDir()
	ours.issue(dir, x509.ExtKeyUsageServerAuth)
	files := Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), ClientCA: filepath.Join(dir, "ca.crt")}
	write(t, files.ClientCA, "CERTIFICATE", ours.cert.Raw)
	path, _ := program(t, "", "exit 1")
	s := serve(t, Options{Program: path, Address: "127.0.0.1:0", TLS: files})
	address := s.listen[0].Addr().String()
	var held []net.Conn
	for range maxOneHost {
		held = append(held, silent(t, "127.0.0.2", address))
	}
	time.Sleep(100 * time.Millisecond) // until the server has taken them
	began := time.Now()
	for range 2 * maxConns {
		if !closed(t, silent(t, "127.0.0.2", address), time.Second) {
			t.Fatal("a host has more places than its part")
		}
	}
	pool := x509.NewCertPool()
	pool.AddCert(ours.cert)
	c, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: pool, Certificates: []tls.Certificate{ours.issue(t.TempDir(), x509.ExtKeyUsageClientAuth)}, ServerName: ServerName("node-a"), MinVersion: tls.VersionTLS13,
	})))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := grpc_health_v1.NewHealthClient(c).Check(ctx, &grpc_health_v1.HealthCheckRequest{}); err != nil {
		t.Errorf("another client: %v", err)
	}
	for _, c := range held {
		if !closed(t, c, 10*greetTime) {
			t.Errorf("a silent client has its place after %s", time.Since(began))
		}
	}
	eventually(t, func() bool { // the places are free again
		c := silent(t, "127.0.0.2", address)
		defer c.Close()
		return !closed(t, c, 200*time.Millisecond)
	})
}

func TestHostOf(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"192.0.2.7": "192.0.2.7/32", "::ffff:192.0.2.7": "192.0.2.7/32", "2001:db8::7": "2001:db8::/64",
	} {
		if got := hostOf(&net.TCPAddr{IP: net.ParseIP(address), Port: 1}); got.String() != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
	if got := hostOf(&net.TCPAddr{IP: net.ParseIP("fe80::1"), Zone: "eth0"}); got.String() != "fe80::/64" {
		t.Error(got)
	}
	if got := hostOf(&net.UnixAddr{}); got.IsValid() {
		t.Error(got)
	}
}
