// SPDX-License-Identifier: Apache-2.0

// Package kubestore keeps pools in objects of Kubernetes, the custom resources of whereabouts. A change is one JSON
// patch with a test for each of its conditions; the API server applies it whole or not at all.
//
// sluice-ipam-store uses it. It must not decide which address is taken.
package kubestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-cni/sluice/plugins/ipam/cluster/blocks"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/claims"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/conf"
	"github.com/sluice-cni/sluice/plugins/ipam/cluster/pool"
)

const (
	group = "/apis/" + pool.APIVersion + "/namespaces/"
	pools = "ippools"
	// defaultNamespace is where whereabouts has its objects if the kubeconfig names no namespace.
	defaultNamespace = "kube-system"
	requestTimeout   = 8 * time.Second
)

// Store is the objects of one namespace.
type Store struct {
	client    rest.Interface
	namespace string
	// Calls counts the requests.
	Calls int
}

// Open reads the kubeconfig. It makes no request.
func Open(kubeconfig string) (*Store, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
	raw, err := loader.RawConfig()
	if err != nil {
		return nil, err
	}
	c, err := loader.ClientConfig()
	if err != nil {
		return nil, err
	}
	namespace := defaultNamespace
	if kc := raw.Contexts[raw.CurrentContext]; kc != nil && kc.Namespace != "" {
		namespace = kc.Namespace
	}
	return New(c, namespace)
}

// New uses a configuration that the caller has.
func New(c *rest.Config, namespace string) (*Store, error) {
	c = rest.CopyConfig(c)
	c.QPS = -1 // a process makes few requests, and the API server has its own limits
	if c.Timeout == 0 {
		c.Timeout = requestTimeout
	}
	c.UserAgent = "sluice-ipam"
	c.AcceptContentTypes, c.ContentType = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(c)
	if err != nil {
		return nil, err
	}
	return &Store{client: client, namespace: namespace}, nil
}

// Place names this kind of store.
func (s *Store) Place() string { return conf.Kubernetes }

// Namespace is where the objects are.
func (s *Store) Namespace() string { return s.namespace }

func (s *Store) path(resource, name string) string {
	p := group + s.namespace + "/" + resource
	if name != "" {
		p += "/" + name
	}
	return p
}

// Get returns a pool.
func (s *Store) Get(ctx context.Context, name string) (*pool.Object, error) {
	var o pool.IPPool
	err := s.read(ctx, s.path(pools, name), &o)
	if apierrors.IsNotFound(err) {
		return nil, resourceMissing(err) // no pool is an answer
	}
	return o.Object(), err
}

// List returns all pools.
func (s *Store) List(ctx context.Context) ([]pool.Object, error) {
	items, err := list[pool.IPPool](ctx, s, s.path(pools, ""))
	var out []pool.Object
	for i := range items {
		out = append(out, *items[i].Object())
	}
	return out, err
}

// Create makes an empty pool.
func (s *Store) Create(ctx context.Context, name, cidr string) error {
	err := s.create(ctx, pools, pool.NewIPPool(s.namespace, name, cidr))
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// operation is one of a JSON patch (RFC 6902).
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value"`
}

// Change patches a pool.
func (s *Store) Change(ctx context.Context, name string, c pool.Change) (*pool.Object, error) {
	body, err := json.Marshal(append(patch(c), untracked))
	if err != nil {
		return nil, err
	}
	text, err := s.do(ctx, s.client.Patch(types.JSONPatchType).AbsPath(s.path(pools, name)).Body(body))
	// The API server answers 422 if a test fails, and 409 if it lost against other writers a few times.
	if apierrors.IsInvalid(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("%w: %w", claims.ErrConflict, err)
	}
	if err != nil {
		return nil, err
	}
	var o pool.IPPool
	if err := json.Unmarshal(text, &o); err != nil { // it was changed, and the caller reads it
		return nil, nil //nolint:nilerr // no pool is an answer
	}
	return o.Object(), nil
}

// untracked takes the managed fields away. They have a line for each field of each allocation, by which server-side apply
// tells owners apart, and no program applies a pool. The API server then tracks no field of it until one does:
// https://kubernetes.io/docs/reference/using-api/server-side-apply/#clearing-managedfields.
var untracked = operation{"add", "/metadata/managedFields", []struct{}{{}}}

// patch has first all tests, then all changes. "add" would overwrite an entry, so its path is tested to be absent.
func patch(c pool.Change) []operation {
	var tests, changes []operation
	if c.Range != "" {
		tests = append(tests, operation{"test", pool.RangePath, c.Range})
	}
	at := func(off uint64) string { return pool.AllocationsPath + pool.Key(off) }
	is := func(off uint64, e pool.Entry) {
		tests = append(tests, operation{"test", at(off) + "/id", e.ID}, operation{"test", at(off) + "/podref", e.PodRef})
		if e.IfName != "" {
			tests = append(tests, operation{"test", at(off) + "/ifname", e.IfName})
		}
	}
	for off, e := range c.Add {
		tests = append(tests, operation{"test", at(off), nil})
		changes = append(changes, operation{"add", at(off), e})
	}
	for off, e := range c.Remove {
		is(off, e)
		changes = append(changes, operation{"remove", at(off), nil})
	}
	for off, e := range c.Replace {
		is(off, e[0])
		changes = append(changes, operation{"replace", at(off), e[1]})
	}
	return append(tests, changes...)
}

// Slice returns the range that a node has of a NodeSlicePool.
func (s *Store) Slice(ctx context.Context, name, node string) (string, error) {
	var o pool.NodeSlicePool
	if err := s.read(ctx, s.path("nodeslicepools", name), &o); err != nil {
		return "", err
	}
	for _, a := range o.Status.Allocations {
		if a.NodeName == node {
			return a.SliceRange, nil
		}
	}
	return "", fmt.Errorf("NodeSlicePool %s/%s has no slice for node %s", s.namespace, name, node)
}

// SliceNodes returns the nodes of the cluster, and those that a NodeSlicePool names. A slice of a node that is gone has its
// pool still.
func (s *Store) SliceNodes(ctx context.Context) (map[string]bool, error) {
	nodes, err := list[nodeObject](ctx, s, nodePath)
	if err != nil && !apierrors.IsForbidden(err) {
		return nil, err
	}
	slices, err := list[pool.NodeSlicePool](ctx, s, s.path("nodeslicepools", ""))
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	out := map[string]bool{}
	for i := range nodes {
		out[nodes[i].Metadata.Name] = true
	}
	for i := range slices {
		for _, a := range slices[i].Status.Allocations {
			out[a.NodeName] = true
		}
	}
	return out, nil
}

// nodeObject is what is read of a Node.
type nodeObject struct {
	Metadata pool.Meta `json:"metadata"`
	Spec     struct {
		Taints []struct {
			Key string `json:"key"`
		} `json:"taints"`
	} `json:"spec"`
	Status struct {
		NodeInfo struct {
			BootID string `json:"bootID"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

const nodePath = "/api/v1/nodes"

// NodeName returns the name of the Node whose kubelet reports this boot. The name that the node gives itself is only
// where the search begins: a short host name may be another node's.
func (s *Store) NodeName(ctx context.Context, n blocks.Node) (string, error) {
	if n.BootID == "" {
		return "", nil
	}
	var o nodeObject
	err := s.read(ctx, nodePath+"/"+n.Name, &o)
	switch {
	case err == nil && o.Status.NodeInfo.BootID == n.BootID:
		return o.Metadata.Name, nil
	case apierrors.IsForbidden(err): // nothing is known of nodes then
		return "", nil
	case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsBadRequest(err):
		return "", err
	}
	nodes, err := list[nodeObject](ctx, s, nodePath)
	if apierrors.IsForbidden(err) {
		return "", nil
	}
	for i := range nodes {
		if nodes[i].Status.NodeInfo.BootID == n.BootID {
			return nodes[i].Metadata.Name, nil
		}
	}
	return "", err
}

// outOfService is the taint by which an administrator says that a node is shut down.
const outOfService = "node.kubernetes.io/out-of-service"

// fewNodes is up to how many nodes are read one by one.
const fewNodes = 2

// Dead returns the boots that are over: the Node is gone, is out of service, or reports another boot. When the claim was
// made, the Node reported its boot, so another one is a later one.
func (s *Store) Dead(ctx context.Context, ids []pool.NodeID) (map[pool.NodeID]bool, error) {
	dead := map[pool.NodeID]bool{}
	if len(ids) <= fewNodes {
		for _, id := range ids {
			var o nodeObject
			switch err := s.read(ctx, nodePath+"/"+id.Node, &o); {
			case apierrors.IsNotFound(err):
				dead[id] = true
			case apierrors.IsForbidden(err):
			case err != nil:
				return nil, err
			default:
				dead[id] = o.over(id)
			}
		}
		return dead, nil
	}
	items, err := list[nodeObject](ctx, s, nodePath)
	if apierrors.IsForbidden(err) {
		return dead, nil
	}
	if err != nil {
		return nil, err
	}
	nodes := map[string]*nodeObject{}
	for i := range items {
		nodes[items[i].Metadata.Name] = &items[i]
	}
	for _, id := range ids {
		o := nodes[id.Node]
		dead[id] = o == nil || o.over(id)
	}
	return dead, nil
}

// over reports whether the Node says that a boot is over.
func (o *nodeObject) over(id pool.NodeID) bool {
	for _, t := range o.Spec.Taints {
		if t.Key == outOfService {
			return true
		}
	}
	boot := o.Status.NodeInfo.BootID
	return boot != "" && blocks.HashBoot(boot) != id.Boot
}

// do makes a request. An error has the status that the API server sent, and one of the kinds of claims where there is one.
func (s *Store) do(ctx context.Context, q *rest.Request) ([]byte, error) {
	s.Calls++
	res := q.Do(ctx)
	if err := res.Error(); err != nil {
		return nil, kindOf(err)
	}
	return res.Raw()
}

// create makes an object.
func (s *Store) create(ctx context.Context, resource string, o any) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = s.do(ctx, s.client.Post().AbsPath(s.path(resource, "")).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body))
	return err
}

func (s *Store) read(ctx context.Context, path string, into any) error {
	text, err := s.do(ctx, s.client.Get().AbsPath(path))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("%w: %s: %w", claims.ErrUnavailable, path, err)
	}
	return nil
}

// list reads all objects below a path.
func list[T any](ctx context.Context, s *Store, path string) ([]T, error) {
	var l struct {
		Items []T `json:"items"`
	}
	err := s.read(ctx, path, &l)
	return l.Items, err
}

// resourceMissing tells an API server without the custom resources from one without that pool.
func resourceMissing(err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) && (status.Status().Details == nil || status.Status().Details.Kind == "") {
		return fmt.Errorf("the API server has no resource ippools.whereabouts.cni.cncf.io; install its definition (deploy/ipam): %w", claims.ErrDenied)
	}
	return nil
}

// kindOf gives an error of the client one of the kinds of claims.
func kindOf(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w: %w", claims.ErrDenied, err)
	case apierrors.IsUnauthorized(err): // the agent of the node writes a new token as soon as it can
		return fmt.Errorf("%w: the credentials of the kubeconfig are not valid, or not any more: %w", claims.ErrUnavailable, err)
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		code := status.Status().Code
		if code == 429 || code >= 500 || apierrors.IsTimeout(err) {
			return fmt.Errorf("%w: %w", claims.ErrUnavailable, err)
		}
		return err
	}
	if strings.Contains(err.Error(), "x509:") { // retrying does not help
		return fmt.Errorf("%w: %w", claims.ErrDenied, err)
	}
	return fmt.Errorf("%w: %w", claims.ErrUnavailable, err)
}
