// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"github.com/sluice-cni/sluice/pkg/cnierr"
	"github.com/sluice-cni/sluice/pkg/netns"
	"github.com/sluice-cni/sluice/pkg/rtnl"
	"github.com/sluice-cni/sluice/plugins/main/internal/cniops"
)

// ends are the two namespaces a device moves between, with a handle in each.
// The pod's may be nil where it is gone.
type ends struct {
	hostNS, podNS *netns.NS
	host, pod     *rtnl.Handle
	site          *cniops.Namespaces // owns what it holds; nil: the others are our own
}

// open opens both sides.
func open(path string) (_ *ends, err error) {
	e := &ends{}
	if e.hostNS, err = netns.Current(); err != nil {
		return nil, cnierr.Wrap(cnierr.CodeKernel, err, "open the host's network namespace")
	}
	if e.site, err = cniops.Open(path); err != nil {
		e.hostNS.Close()
		return nil, err
	}
	e.podNS, e.host, e.pod = e.site.NS, e.site.Host, e.site.Pod
	return e, nil
}

// openHost opens the host's side only.
func openHost() (_ *ends, err error) {
	e := &ends{}
	if e.hostNS, err = netns.Current(); err != nil {
		return nil, cnierr.Wrap(cnierr.CodeKernel, err, "open the host's network namespace")
	}
	if e.host, err = rtnl.New(); err != nil {
		e.hostNS.Close()
		return nil, cnierr.Wrap(cnierr.CodeKernel, err, "open the host's network namespace")
	}
	return e, nil
}

func (e *ends) close() {
	e.hostNS.Close()
	if e.site != nil {
		e.site.Close()
		return
	}
	e.host.Close()
	if e.pod != nil {
		e.pod.Close()
	}
	if e.podNS != nil {
		e.podNS.Close()
	}
}
