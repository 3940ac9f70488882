// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go.uber.org/zap"

	"github.com/sluice-cni/sluice/pkg/cniplugin"
	"github.com/sluice-cni/sluice/pkg/log"
	"github.com/sluice-cni/sluice/pkg/nodeconf"
	hostlocal "github.com/sluice-cni/sluice/plugins/ipam/host-local"
	"github.com/sluice-cni/sluice/plugins/main/bridge"
	"github.com/sluice-cni/sluice/plugins/main/loopback"
	"github.com/sluice-cni/sluice/plugins/meta/firewall"
	"github.com/sluice-cni/sluice/plugins/meta/portmap"
	"github.com/sluice-cni/sluice/plugins/meta/tuning"
)

// plugin returns the plugin of that name with its real dependencies, nil when
// there is none. Nothing is opened before a verb needs it.
func plugin(name string) *cniplugin.Plugin {
	switch name {
	case bridge.Name:
		return newBridge()
	case loopback.Name:
		return loopback.New(loopback.Deps{})
	case portmap.Name:
		return newPortmap()
	case hostlocal.Name:
		return hostlocal.New(hostlocal.Deps{})
	case tuning.Name:
		return newTuning()
	case firewall.Name:
		return newFirewall()
	}
	return nil
}

// newLog logs as the node's configuration says. A mistake in that file is
// reported by the verbs that need it; the log then goes to stderr.
func newLog() *zap.Logger {
	conf, err := nodeconf.Load(nodeconf.DefaultPath)
	if err != nil {
		conf = nodeconf.Default()
	}
	return log.New(log.Options{Level: conf.Log.Level, File: conf.Log.File})
}
