// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"net/netip"
	"strings"
)

// EtcdArgs are those of an etcd that serves one API server on loopback. Its files need not survive the machine.
func EtcdArgs(dir string) []string {
	return []string{
		"--data-dir", dir, "--unsafe-no-fsync", "--quota-backend-bytes", "1000000000", "--log-level", "warn",
		"--listen-client-urls", etcdURL, "--advertise-client-urls", etcdURL, "--listen-peer-urls", "http://127.0.0.1:2380",
	}
}

const etcdURL = "http://127.0.0.1:2379"

// Port is where the API server listens.
const Port = "6443"

// APIServerArgs are those of an API server beside that etcd. advertise is the address of the Service "kubernetes"; an API server at a
// loopback address has no such endpoint.
func APIServerArgs(p *PKI, advertise netip.Addr, services []netip.Prefix) []string {
	var cidrs []string
	for _, s := range services {
		cidrs = append(cidrs, s.String())
	}
	args := []string{
		"--etcd-servers", etcdURL, "--secure-port", Port, "--bind-address", "::", "--advertise-address", advertise.String(),
		"--tls-cert-file", p.File("server.crt"), "--tls-private-key-file", p.File("server.key"), "--client-ca-file", p.File("ca.crt"),
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", p.File("sa.pub"),
		"--service-account-signing-key-file", p.File("sa.key"), "--service-cluster-ip-range", strings.Join(cidrs, ","),
		"--authorization-mode", "Node,RBAC", "--allow-privileged=true",
	}
	if advertise.IsLoopback() {
		args = append(args, "--endpoint-reconciler-type", "none")
	}
	return args
}
