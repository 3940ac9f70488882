// SPDX-License-Identifier: Apache-2.0

package conf

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-cni/sluice/pkg/cnierr"
)

// flatFiles are where whereabouts looks for defaults, in this order, behind configuration_path. Variable for tests.
var flatFiles = []string{
	"/etc/kubernetes/cni/net.d/whereabouts.d/whereabouts.conf",
	"/etc/cni/net.d/whereabouts.d/whereabouts.conf",
	"/host/etc/cni/net.d/whereabouts.d/whereabouts.conf",
}

// fillFromFile fills in what the configuration leaves out from the first flat file that exists. Without one nothing
// is filled in: whereabouts would refuse the configuration.
func (i *ipamConf) fillFromFile() error {
	files := flatFiles
	if i.ConfigurationPath != "" {
		files = append([]string{i.ConfigurationPath, filepath.Join(i.ConfigurationPath, "whereabouts.conf")}, files...)
	}
	for _, path := range files {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && info.IsDir() {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return cnierr.Wrap(cnierr.CodeIO, err, "read the defaults of cluster-wide addresses")
		}
		var file ipamConf
		if err := cnierr.Decode(path, text, &file); err != nil {
			return err
		}
		i.fill(&file)
		return nil
	}
	return nil
}

func (i *ipamConf) fill(d *ipamConf) {
	for _, f := range []struct{ into, from *string }{
		{&i.Range, &d.Range}, {&i.RangeStart, &d.RangeStart}, {&i.RangeEnd, &d.RangeEnd}, {&i.Gateway, &d.Gateway},
		{&i.NetworkName, &d.NetworkName}, {&i.NodeSliceSize, &d.NodeSliceSize}, {&i.Datastore, &d.Datastore},
		{&i.Kubernetes.Kubeconfig, &d.Kubernetes.Kubeconfig},
		{&i.EtcdHost, &d.EtcdHost}, {&i.EtcdUsername, &d.EtcdUsername}, {&i.EtcdPassword, &d.EtcdPassword},
		{&i.EtcdKeyFile, &d.EtcdKeyFile}, {&i.EtcdCertFile, &d.EtcdCertFile}, {&i.EtcdCAFile, &d.EtcdCAFile},
		{&i.ConfigurationPath, &d.ConfigurationPath}, {&i.LogFile, &d.LogFile}, {&i.LogLevel, &d.LogLevel},
		{&i.DataDir, &d.DataDir}, {&i.DNS.Domain, &d.DNS.Domain},
	} {
		if *f.into == "" {
			*f.into = *f.from
		}
	}
	for _, f := range []struct{ into, from *[]string }{
		{&i.Exclude, &d.Exclude}, {&i.DNS.Nameservers, &d.DNS.Nameservers}, {&i.DNS.Search, &d.DNS.Search}, {&i.DNS.Options, &d.DNS.Options},
	} {
		if len(*f.into) == 0 {
			*f.into = *f.from
		}
	}
	if len(i.Routes) == 0 {
		i.Routes = d.Routes
	}
	if len(i.Addresses) == 0 {
		i.Addresses = d.Addresses
	}
	if len(i.IPRanges) == 0 {
		i.IPRanges = d.IPRanges
	}
	if i.BlockSize == nil {
		i.BlockSize = d.BlockSize
	}
	if i.LowestFirst == nil {
		i.LowestFirst = d.LowestFirst
	}
}

// store says where the pools are. Files that are named and not there are found when they are used.
func (c *Config) store(i *ipamConf) error {
	c.Kubeconfig = i.Kubernetes.Kubeconfig
	c.Etcd = EtcdConfig{
		Username: i.EtcdUsername, Password: i.EtcdPassword,
		KeyFile: i.EtcdKeyFile, CertFile: i.EtcdCertFile, CAFile: i.EtcdCAFile,
	}
	switch {
	case i.Datastore == Etcd, i.Datastore == "" && c.Kubeconfig == "" && i.EtcdHost != "":
		c.Backend = Etcd
	case i.Datastore == "" || i.Datastore == Kubernetes:
		c.Backend = Kubernetes
	default:
		return cnierr.Config("ipam.datastore", i.Datastore, "it is kubernetes or etcd")
	}
	if c.Backend == Kubernetes {
		if c.Kubeconfig == "" {
			return cnierr.Wrap(cnierr.CodeConfig, ErrNoPlace, "invalid ipam.kubernetes.kubeconfig \"\": name the file, here or in whereabouts.conf, or set ipam.etcd_host")
		}
		return nil
	}
	scheme := "http://"
	if c.Etcd.CAFile != "" || c.Etcd.CertFile != "" {
		scheme = "https://"
	}
	for _, e := range split(i.EtcdHost) {
		if !strings.Contains(e, "://") {
			e = scheme + e
		}
		c.Etcd.Endpoints = append(c.Etcd.Endpoints, e)
	}
	if len(c.Etcd.Endpoints) == 0 {
		return cnierr.Wrap(cnierr.CodeConfig, ErrNoPlace, "invalid ipam.etcd_host \"\": name HOST:PORT of each member")
	}
	if (c.Etcd.CertFile == "") != (c.Etcd.KeyFile == "") {
		return cnierr.Config("ipam.etcd_cert_file", c.Etcd.CertFile, "certificate and key (ipam.etcd_key_file) belong together")
	}
	if c.BlockSize > MaxEtcdBlock {
		return cnierr.Config("ipam.block_size", c.BlockSize, "a transaction of etcd claims at most 120 addresses")
	}
	if c.NodeSliceSize != "" {
		return cnierr.Config("ipam.node_slice_size", c.NodeSliceSize, "slices of nodes are objects of Kubernetes; leave it out with etcd")
	}
	return nil
}
