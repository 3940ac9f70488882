// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

// PKI is the certificate authority of one cluster. It is a folder, which keeps the keys.
type PKI struct {
	Dir string
	ca  *x509.Certificate
	key crypto.Signer
}

// validity is longer than any cluster of tests lives.
const validity = 30 * 24 * time.Hour

// NewPKI fills dir: ca.crt and ca.key, server.crt and server.key for the API server at these names and addresses, kubelet-client.crt and
// kubelet-client.key for what it asks of kubelets, sa.pub and sa.key for the tokens of service accounts.
func NewPKI(dir string, names []string, addrs []netip.Addr) (*PKI, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	p := &PKI{Dir: dir}
	if err := p.authority(); err != nil {
		return nil, err
	}
	server := &x509.Certificate{
		Subject: pkix.Name{CommonName: "kube-apiserver"}, DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, addr := range addrs {
		server.IPAddresses = append(server.IPAddresses, net.IP(addr.AsSlice()))
	}
	if err := p.issue("server", server); err != nil {
		return nil, err
	}
	if err := p.client("kubelet-client", "kube-apiserver-kubelet-client", []string{Masters}); err != nil {
		return nil, err
	}
	tokens, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	pub, err := x509.MarshalPKIXPublicKey(tokens.Public())
	if err != nil {
		return nil, err
	}
	return p, errors.Join(p.writeKey("sa", tokens), p.write("sa.pub", "PUBLIC KEY", pub))
}

// File is the path of one of the files.
func (p *PKI) File(name string) string { return filepath.Join(p.Dir, name) }

func (p *PKI) authority() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	p.key = key
	p.ca = &x509.Certificate{
		Subject: pkix.Name{CommonName: "test-ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := p.sign(p.ca, key.Public())
	if err != nil {
		return err
	}
	if p.ca, err = x509.ParseCertificate(der); err != nil {
		return err
	}
	return errors.Join(p.write("ca.crt", "CERTIFICATE", der), p.writeKey("ca", key))
}

func (p *PKI) sign(c *x509.Certificate, pub crypto.PublicKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	c.SerialNumber = serial
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(validity)
	return x509.CreateCertificate(rand.Reader, c, p.ca, pub, p.key)
}

func (p *PKI) issue(name string, c *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	c.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := p.sign(c, key.Public())
	if err != nil {
		return fmt.Errorf("certificate of %s: %w", name, err)
	}
	return errors.Join(p.write(name+".crt", "CERTIFICATE", der), p.writeKey(name, key))
}

func (p *PKI) client(name, user string, groups []string) error {
	return p.issue(name, &x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// Mutual writes NAME.crt and NAME.key, for a server of these names and for a client of others.
func (p *PKI) Mutual(name string, names ...string) error {
	return p.issue(name, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
}

func (p *PKI) writeKey(name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return p.write(name+".key", "EC PRIVATE KEY", der)
}

func (p *PKI) write(name, kind string, der []byte) error {
	return os.WriteFile(p.File(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// Masters is the group that may do everything.
const Masters = "system:masters"

// Kubeconfig writes NAME.kubeconfig for a user of these groups at a server, such as "https://127.0.0.1:6443", and returns its path. The
// file needs no other one beside it.
func (p *PKI) Kubeconfig(name, server, user string, groups ...string) (string, error) {
	if err := p.client("user-"+name, user, groups); err != nil {
		return "", err
	}
	var data [3][]byte
	for i, file := range []string{"ca.crt", "user-" + name + ".crt", "user-" + name + ".key"} {
		var err error
		if data[i], err = os.ReadFile(p.File(file)); err != nil {
			return "", err
		}
	}
	c := api.NewConfig()
	c.Clusters["test"] = &api.Cluster{Server: server, CertificateAuthorityData: data[0]}
	c.AuthInfos[name] = &api.AuthInfo{ClientCertificateData: data[1], ClientKeyData: data[2]}
	c.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: name}
	c.CurrentContext = "test"
	path := p.File(name + ".kubeconfig")
	return path, clientcmd.WriteToFile(*c, path)
}
