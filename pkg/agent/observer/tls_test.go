// SPDX-License-Identifier: Apache-2.0

package observer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// authority makes certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.cert, _ = x509.ParseCertificate(der)
	return a
}

// issue writes a certificate and its key, and returns them.
func (a *authority) issue(dir string, usage x509.ExtKeyUsage) tls.Certificate {
	a.t.Helper()
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{ServerName("node-a")}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	write(a.t, filepath.Join(dir, "tls.crt"), "CERTIFICATE", der)
	write(a.t, filepath.Join(dir, "tls.key"), "EC PRIVATE KEY", secret)
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
	if err != nil {
		a.t.Fatal(err)
	}
	return pair
}

func write(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// An address serves clients with a certificate of the authority and TLS 1.3, and no others. Files that change take effect.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := newAuthority(t), newAuthority(t)
	dir := t.TempDir()
	ours.issue(dir, x509.ExtKeyUsageServerAuth)
	files := Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), ClientCA: filepath.Join(dir, "ca.crt")}
	write(t, files.ClientCA, "CERTIFICATE", ours.cert.Raw)
	path, _ := program(t, "", "exit 1")
	s := serve(t, Options{Program: path, Address: "127.0.0.1:0", TLS: files})
	client, foreign, server := ours.issue(t.TempDir(), x509.ExtKeyUsageClientAuth), theirs.issue(t.TempDir(), x509.ExtKeyUsageClientAuth), ours.issue(t.TempDir(), x509.ExtKeyUsageServerAuth)
	ask := func(root *authority, max uint16, certs ...tls.Certificate) error {
		pool := x509.NewCertPool()
		pool.AddCert(root.cert)
		c, err := grpc.NewClient(s.listen[0].Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			RootCAs: pool, Certificates: certs, ServerName: ServerName("node-a"), MinVersion: tls.VersionTLS12, MaxVersion: max,
		})))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = grpc_health_v1.NewHealthClient(c).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
		return err
	}
	if err := ask(ours, 0, client); err != nil {
		t.Errorf("the right client: %v", err)
	}
	for name, err := range map[string]error{
		"no certificate": ask(ours, 0), "another authority": ask(ours, 0, foreign), "a server's certificate": ask(ours, 0, server), "TLS 1.2": ask(ours, tls.VersionTLS12, client),
	} {
		if err == nil {
			t.Errorf("%s: served", name)
		}
	}

	if err := os.WriteFile(files.ClientCA, []byte("half a file"), 0o600); err != nil { // as while it is written
		t.Fatal(err)
	}
	if err := ask(ours, 0, client); err != nil {
		t.Errorf("with half a file: %v", err)
	}
	write(t, files.ClientCA, "CERTIFICATE", theirs.cert.Raw)
	theirs.issue(dir, x509.ExtKeyUsageServerAuth)
	if err := ask(theirs, 0, foreign); err != nil {
		t.Errorf("after the change: %v", err)
	}
	if err := ask(theirs, 0, client); err == nil {
		t.Error("after the change the former client is served")
	}
	for key, f := range map[string]Files{"observe.tls.cert": {"/nonexistent", files.Key, files.ClientCA}, "observe.tls.clientCA": {files.Cert, files.Key, "/nonexistent"}} {
		if _, err := New(Options{Address: "127.0.0.1:0", TLS: f}); err == nil || len(err.Error()) < len(key) || err.Error()[:len(key)] != key {
			t.Errorf("%s: %v", key, err)
		}
	}
}
