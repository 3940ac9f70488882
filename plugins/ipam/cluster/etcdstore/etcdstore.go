// SPDX-License-Identifier: Apache-2.0

// Package etcdstore keeps pools in etcd, for nodes without Kubernetes. A change is a transaction that compares every key
// that it changes.
//
// Keys are /sluice/ipam/v1/pools/NAME, which has the range, and /sluice/ipam/v1/allocations/NAME/OFFSET, which has one
// entry. sluice-ipam-store uses it. It must not decide which address is taken.
package etcdstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/conf"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

const (
	prefix         = "/sluice/ipam/v1/"
	poolPrefix     = prefix + "pools/"
	entryPrefix    = prefix + "allocations/"
	requestTimeout = 5 * time.Second
)

// Store is an etcd.
type Store struct {
	client *clientv3.Client
	// Calls counts the requests.
	Calls int
}

// Open prepares a client. With a user name it asks for a token, otherwise it makes no request.
func Open(ctx context.Context, c *conf.EtcdConfig) (*Store, error) {
	cfg := clientv3.Config{
		Endpoints: c.Endpoints, Username: c.Username, Password: c.Password, DialTimeout: requestTimeout,
		Context: context.WithoutCancel(ctx), Logger: zap.NewNop(),
	}
	if c.CAFile != "" || c.CertFile != "" {
		t, err := tlsConfig(c)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", claims.ErrDenied, err)
		}
		cfg.TLS = t
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, kindOf(err)
	}
	return &Store{client: client}, nil
}

func tlsConfig(c *conf.EtcdConfig) (*tls.Config, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, err
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate", c.CAFile)
		}
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, err
		}
		t.Certificates = []tls.Certificate{pair}
	}
	return t, nil
}

// Close ends the client.
func (s *Store) Close() error { return s.client.Close() }

// Place names this kind of store.
func (s *Store) Place() string { return conf.Etcd }

func entryKey(name string, off uint64) string { return entryPrefix + name + "/" + pool.Key(off) }

// Get returns a pool, of one revision.
func (s *Store) Get(ctx context.Context, name string) (*pool.Object, error) {
	res, err := s.commit(ctx, nil, clientv3.OpGet(poolPrefix+name), clientv3.OpGet(entryPrefix+name+"/", clientv3.WithPrefix()))
	if err != nil {
		return nil, err
	}
	head, entries := res.Responses[0].GetResponseRange(), res.Responses[1].GetResponseRange()
	if len(head.Kvs) == 0 {
		return nil, nil // no pool is an answer
	}
	o := &pool.Object{Name: name, UID: strconv.FormatInt(head.Kvs[0].CreateRevision, 10), Range: string(head.Kvs[0].Value), Allocations: map[string]pool.Entry{}}
	for _, kv := range entries.Kvs {
		if err := add(o, string(kv.Key), kv.Value); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// List returns all pools, of one revision.
func (s *Store) List(ctx context.Context) ([]pool.Object, error) {
	res, err := s.commit(ctx, nil, clientv3.OpGet(poolPrefix, clientv3.WithPrefix()), clientv3.OpGet(entryPrefix, clientv3.WithPrefix()))
	if err != nil {
		return nil, err
	}
	var out []pool.Object
	at := map[string]int{}
	for _, kv := range res.Responses[0].GetResponseRange().Kvs {
		name := strings.TrimPrefix(string(kv.Key), poolPrefix)
		at[name] = len(out)
		out = append(out, pool.Object{Name: name, UID: strconv.FormatInt(kv.CreateRevision, 10), Range: string(kv.Value), Allocations: map[string]pool.Entry{}})
	}
	for _, kv := range res.Responses[1].GetResponseRange().Kvs {
		name, _, _ := strings.Cut(strings.TrimPrefix(string(kv.Key), entryPrefix), "/")
		if i, ok := at[name]; ok {
			if err := add(&out[i], string(kv.Key), kv.Value); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

func add(o *pool.Object, key string, value []byte) error {
	var e pool.Entry
	if err := json.Unmarshal(value, &e); err != nil {
		return fmt.Errorf("etcd key %s: %w; correct it", key, err)
	}
	o.Allocations[strings.TrimPrefix(key, entryPrefix+o.Name+"/")] = e
	return nil
}

// Create makes an empty pool.
func (s *Store) Create(ctx context.Context, name, cidr string) error {
	key := poolPrefix + name
	_, err := s.commit(ctx, []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)}, clientv3.OpPut(key, cidr))
	return err
}

// step is one key of a change.
type step struct {
	condition clientv3.Cmp
	op        clientv3.Op
}

// Change changes a pool. A server takes 128 operations by default, so a change of more than conf.MaxEtcdBlock entries is
// several transactions. A claim is one. The others, of a reboot or of a release, may stop between two: they are repeated
// by what the pool has then.
func (s *Store) Change(ctx context.Context, name string, c pool.Change) (*pool.Object, error) {
	steps, err := plan(name, c)
	if err != nil {
		return nil, err
	}
	exists := clientv3.Compare(clientv3.CreateRevision(poolPrefix+name), ">", 0)
	if c.Range != "" {
		exists = clientv3.Compare(clientv3.Value(poolPrefix+name), "=", c.Range)
	}
	for len(steps) > 0 {
		now := steps[:min(len(steps), conf.MaxEtcdBlock)]
		steps = steps[len(now):]
		conditions, ops := []clientv3.Cmp{exists}, []clientv3.Op(nil)
		for _, st := range now {
			conditions, ops = append(conditions, st.condition), append(ops, st.op)
		}
		res, err := s.commit(ctx, conditions, ops...)
		if err == nil && !res.Succeeded {
			err = claims.ErrConflict
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, nil // a transaction does not say what other keys have
}

// commit carries out one transaction.
func (s *Store) commit(ctx context.Context, conditions []clientv3.Cmp, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s.Calls++
	res, err := s.client.Txn(ctx).If(conditions...).Then(ops...).Commit()
	return res, kindOf(err)
}

// plan compares values, not revisions: every claim has another ID, so an equal value is the same one.
func plan(name string, c pool.Change) (steps []step, err error) {
	text := func(e pool.Entry) string {
		b, merr := json.Marshal(e)
		err = errors.Join(err, merr)
		return string(b)
	}
	is := func(off uint64, e pool.Entry) clientv3.Cmp {
		return clientv3.Compare(clientv3.Value(entryKey(name, off)), "=", text(e))
	}
	for off, e := range c.Add {
		key := entryKey(name, off)
		steps = append(steps, step{clientv3.Compare(clientv3.CreateRevision(key), "=", 0), clientv3.OpPut(key, text(e))})
	}
	for off, e := range c.Remove {
		steps = append(steps, step{is(off, e), clientv3.OpDelete(entryKey(name, off))})
	}
	for off, e := range c.Replace {
		steps = append(steps, step{is(off, e[0]), clientv3.OpPut(entryKey(name, off), text(e[1]))})
	}
	return steps, err
}

// Slice is Kubernetes' business.
func (s *Store) Slice(context.Context, string, string) (string, error) {
	return "", errors.New("etcd has no slices of nodes")
}

// NodeName knows no nodes: etcd has no list of them.
func (s *Store) NodeName(context.Context, blocks.Node) (string, error) { return "", nil }

// Dead knows of no node that it is gone.
func (s *Store) Dead(context.Context, []pool.NodeID) (map[pool.NodeID]bool, error) {
	return map[pool.NodeID]bool{}, nil
}

// SliceNodes returns nothing: there are no slices.
func (s *Store) SliceNodes(context.Context) (map[string]bool, error) { return map[string]bool{}, nil }

// Gone is never known: etcd has no owners.
func (s *Store) Gone(context.Context, pool.Hold) (bool, error) { return false, nil }

// Reservations returns none: whereabouts keeps no pools in etcd any more.
func (s *Store) Reservations(context.Context) (map[string]string, error) {
	return map[string]string{}, nil
}

// Reserve makes none.
func (s *Store) Reserve(context.Context, string, string, string) error { return nil }

// Unreserve has nothing to remove.
func (s *Store) Unreserve(context.Context, map[string]string) error { return nil }

// kindOf gives an error of the client one of the kinds of claims.
func kindOf(err error) error {
	if err == nil {
		return nil
	}
	for _, denied := range []error{
		rpctypes.ErrPermissionDenied, rpctypes.ErrAuthFailed, rpctypes.ErrUserEmpty, rpctypes.ErrUserNotFound, rpctypes.ErrInvalidAuthToken,
	} {
		if errors.Is(err, denied) {
			return fmt.Errorf("%w: %w", claims.ErrDenied, err)
		}
	}
	return fmt.Errorf("%w: %w", claims.ErrUnavailable, err)
}
