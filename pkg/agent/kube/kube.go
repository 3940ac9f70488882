// SPDX-License-Identifier: Apache-2.0

// Package kube has the agent's requests to the API server: Nodes, their annotations, Events, which pods a node has, tokens, and what
// NetworkPolicies are about.
//
// It has REST clients for core/v1 and networking.k8s.io/v1 alone. client-go's clientset would register each API group in a process that
// needs a few kinds.
// It decides nothing, and keeps nothing.
package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-cni/sluice/pkg/version"
)

// requestTime bounds each request but a watch. A request that hangs must not hold up the rest for long.
const requestTime = 20 * time.Second

// requestRate is how many requests a second there may be for long. client-go's 5 would make 20 s of a list of 10,000 pods, for which new
// pods of a node that has just started wait. The API server has fair queues of its own.
const requestRate = 50

// pageSize bounds the memory of a list: a Node has 10 to 30 kB before it is trimmed, most of it the names of images. A page is in memory two to
// three times while it is read.
const pageSize = 25

// onlyMetadata asks for a list without what the objects say.
const onlyMetadata = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// Client talks with one API server.
type Client struct {
	rest       *rest.RESTClient // core/v1
	networking *rest.RESTClient // networking.k8s.io/v1
	params     runtime.ParameterCodec
}

// Config reads a kubeconfig. Without a path it is that of the pod in which the agent runs.
func Config(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		c, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			return nil, errors.New("this process is not in a pod: --kubeconfig must name a file")
		}
		return c, err
	}
	c, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return c, nil
}

// New returns a client. It does not connect yet. The configuration is not changed.
func New(c *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	for _, add := range []func(*runtime.Scheme) error{metav1.AddMetaToScheme, authenticationv1.AddToScheme /* tokens */, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	c = rest.CopyConfig(c)
	c.APIPath = "/api"
	c.GroupVersion = &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	// Protobuf takes a third of JSON's time and memory.
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	c.UserAgent = "sluice-agent/" + version.String()
	if c.QPS == 0 {
		c.QPS, c.Burst = requestRate, 2*requestRate
	}
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, err
	}
	c = rest.CopyConfig(c)
	c.APIPath, c.GroupVersion = "/apis", &networkingv1.SchemeGroupVersion
	networking, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, err
	}
	return &Client{client, networking, runtime.NewParameterCodec(scheme)}, nil
}

// ListNodes returns all nodes as trim leaves them, and the version of the list. It asks for pages, and trims each before the next
// comes: a list of 1,000 whole Nodes is more than the agent may have of memory.
func (c *Client) ListNodes(ctx context.Context, trim func(*corev1.Node)) (*corev1.NodeList, error) {
	all := &corev1.NodeList{}
	o := metav1.ListOptions{Limit: pageSize}
	for {
		page := &corev1.NodeList{}
		rctx, cancel := context.WithTimeout(ctx, requestTime)
		err := c.rest.Get().Resource("nodes").VersionedParams(&o, c.params).Do(rctx).Into(page)
		cancel()
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			trim(&page.Items[i])
		}
		if left := page.RemainingItemCount; left != nil { // growing by half each time would leave as much garbage as nodes
			all.Items = slices.Grow(all.Items, len(page.Items)+int(*left))
		}
		all.Items = append(all.Items, page.Items...)
		all.ListMeta = page.ListMeta
		if page.Continue == "" {
			return all, nil
		}
		o.Continue = page.Continue
	}
}

// WatchNodes follows the nodes from a version on.
func (c *Client) WatchNodes(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	var limit time.Duration
	if o.TimeoutSeconds != nil {
		limit = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	return c.rest.Get().Resource("nodes").VersionedParams(&o, c.params).Timeout(limit).Watch(ctx)
}

// Token returns a new token of a ServiceAccount, and when it ends. The token names the node, and ends with the Node object too.
// It needs Kubernetes 1.32.
func (c *Client) Token(ctx context.Context, namespace, name, node string, lifetime time.Duration) (string, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	seconds := int64(lifetime.Seconds())
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds, BoundObjectRef: &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Node", Name: node},
	}}
	answer := &authenticationv1.TokenRequest{}
	err := c.rest.Post().Namespace(namespace).Resource("serviceaccounts").Name(name).SubResource("token").Body(request).Do(ctx).Into(answer)
	if err != nil {
		return "", time.Time{}, err
	}
	return answer.Status.Token, answer.Status.ExpirationTimestamp.Time, nil
}

// Annotate sets annotations of a node. An empty value removes one.
func (c *Client) Annotate(ctx context.Context, node string, annotations map[string]string) error {
	values := map[string]any{}
	for k, v := range annotations {
		values[k] = v
		if v == "" {
			values[k] = nil
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": values}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	// The answer is the Node, or its metadata alone.
	return c.rest.Patch(types.MergePatchType).Resource("nodes").Name(node).
		SetHeader("Accept", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/vnd.kubernetes.protobuf").
		Body(patch).Do(ctx).Error()
}

// Annotations returns those of a node, none if there is no such node. The agent may list nodes, not get one.
func (c *Client) Annotations(ctx context.Context, node string) (map[string]string, error) {
	o := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", node).String()}
	list := &metav1.PartialObjectMetadataList{}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	err := c.rest.Get().Resource("nodes").VersionedParams(&o, c.params).
		SetHeader("Accept", onlyMetadata).Do(ctx).Into(list)
	if err != nil || len(list.Items) == 0 {
		return nil, err
	}
	return list.Items[0].Annotations, nil
}

// EventNamespace is where Events about nodes are.
const EventNamespace = metav1.NamespaceDefault

// CreateEvent writes an Event about a node.
func (c *Client) CreateEvent(ctx context.Context, e *corev1.Event) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	return c.rest.Post().Namespace(EventNamespace).Resource("events").Body(e).Do(ctx).Error()
}

// Pods returns the pods that the API server knows for a node: their UIDs, and "namespace/name". Only their metadata crosses the wire.
func (c *Client) Pods(ctx context.Context, node string) (map[string]bool, error) {
	known := map[string]bool{}
	o := metav1.ListOptions{Limit: pageSize, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()}
	for {
		page := &metav1.PartialObjectMetadataList{}
		rctx, cancel := context.WithTimeout(ctx, requestTime)
		err := c.rest.Get().Resource("pods").VersionedParams(&o, c.params).
			SetHeader("Accept", onlyMetadata).Do(rctx).Into(page)
		cancel()
		if err != nil {
			return nil, err
		}
		for i := range page.Items {
			known[string(page.Items[i].UID)] = true
			known[page.Items[i].Namespace+"/"+page.Items[i].Name] = true
		}
		if page.Continue == "" {
			return known, nil
		}
		o.Continue = page.Continue
	}
}

// Resource is a kind of objects, as it is in a URL.
type Resource string

// The resources that the agent reads as a whole.
const (
	Pods            Resource = "pods"
	Services        Resource = "services"
	Namespaces      Resource = "namespaces"
	NetworkPolicies Resource = "networkpolicies"
)

func (c *Client) get(r Resource) *rest.Request {
	if r == NetworkPolicies {
		return c.networking.Get().Resource(string(r))
	}
	return c.rest.Get().Resource(string(r))
}

// listPage bounds the memory of a list that List reads.
const listPage = 100

// List calls note for each object, and returns the version of the list. It keeps none: memory is that of a page.
func (c *Client) List(ctx context.Context, r Resource, note func(runtime.Object)) (version string, err error) {
	o := metav1.ListOptions{Limit: listPage}
	for {
		rctx, cancel := context.WithTimeout(ctx, requestTime)
		result := c.get(r).VersionedParams(&o, c.params).Do(rctx)
		cancel()
		list, err := result.Get()
		if err != nil {
			return "", err
		}
		at, err := meta.ListAccessor(list)
		if err != nil {
			return "", err
		}
		if err := meta.EachListItem(list, func(obj runtime.Object) error { note(obj); return nil }); err != nil {
			return "", err
		}
		if o.Continue = at.GetContinue(); o.Continue == "" {
			return at.GetResourceVersion(), nil
		}
	}
}

// Watch follows all objects from a version on. Bookmarks come with newer versions.
func (c *Client) Watch(ctx context.Context, r Resource, version string) (watch.Interface, error) {
	o := metav1.ListOptions{ResourceVersion: version, Watch: true, AllowWatchBookmarks: true}
	return c.get(r).VersionedParams(&o, c.params).Watch(ctx)
}

// Any reports whether there is an object.
func (c *Client) Any(ctx context.Context, r Resource) (bool, error) {
	list := &metav1.PartialObjectMetadataList{}
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	err := c.get(r).VersionedParams(&metav1.ListOptions{Limit: 1}, c.params).SetHeader("Accept", onlyMetadata).Do(ctx).Into(list)
	return len(list.Items) > 0, err
}

// Follow lists all objects of a kind, calls note for each as one that was added, then listed, and goes on with what happens until the
// watch ends.
func (c *Client) Follow(ctx context.Context, r Resource, listed func(), note func(watch.Event)) error {
	version, err := c.List(ctx, r, func(obj runtime.Object) { note(watch.Event{Type: watch.Added, Object: obj}) })
	if err != nil {
		return err
	}
	listed()
	events, err := c.Watch(ctx, r, version)
	if err != nil {
		return err
	}
	defer events.Stop()
	for e := range events.ResultChan() {
		switch e.Type {
		case watch.Error:
			return apierrors.FromObject(e.Object)
		case watch.Bookmark:
		default:
			note(e)
		}
	}
	return ctx.Err()
}
