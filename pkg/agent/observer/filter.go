// SPDX-License-Identifier: Apache-2.0

package observer

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/cilium/api/v1/flow"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"k8s.io/apimachinery/pkg/labels"
)

// match says whether a flow is one that a filter chooses.
type match func(*flow.Flow) bool

// newMatches compiles filters, which are alternatives. An error is an InvalidArgument that names the field. never are fields that no flow has.
func newMatches(list string, filters []*flow.FlowFilter, never ...string) (out []match, err error) {
	for _, f := range filters {
		m, err := newMatch(f, never...)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "%s: %v", list, err)
		}
		out = append(out, m)
	}
	return out, nil
}

// errNoSuch is for what Sluice does not see. A filter that it passed over would show more than was asked for.
var errNoSuch = errors.New("not supported: Sluice sees connections and dropped packets, and no layer 7, DNS names or traces")

// newMatch compiles a filter: all of its fields must match, each by one of its values.
func newMatch(f *flow.FlowFilter, never ...string) (match, error) {
	var all []match
	var failed error
	f.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if slices.Contains(never, string(fd.Name())) {
			all = append(all, func(*flow.Flow) bool { return false })
			return true
		}
		compile, known := fields[string(fd.Name())]
		if !known {
			failed = fmt.Errorf("%s: %w", fd.Name(), errNoSuch)
			return false
		}
		m, err := compile(f)
		if err != nil {
			failed = fmt.Errorf("%s: %w", fd.Name(), err)
			return false
		}
		all = append(all, m)
		return true
	})
	if failed == nil && len(f.ProtoReflect().GetUnknown()) > 0 {
		failed = errors.New("a field that this version of the API does not have: not supported")
	}
	return func(fl *flow.Flow) bool {
		return !slices.ContainsFunc(all, func(m match) bool { return !m(fl) })
	}, failed
}

// fields are those of a filter that can be answered.
var fields = map[string]func(*flow.FlowFilter) (match, error){
	"source_ip": func(f *flow.FlowFilter) (match, error) {
		return byIP(f.GetSourceIp(), func(fl *flow.Flow) string { return fl.GetIP().GetSource() })
	},
	"source_ip_xlated": func(f *flow.FlowFilter) (match, error) {
		return byIP(f.GetSourceIpXlated(), func(fl *flow.Flow) string { return fl.GetIP().GetSourceXlated() })
	},
	"destination_ip": func(f *flow.FlowFilter) (match, error) {
		return byIP(f.GetDestinationIp(), func(fl *flow.Flow) string { return fl.GetIP().GetDestination() })
	},
	"source_pod": func(f *flow.FlowFilter) (match, error) {
		return byName(f.GetSourcePod(), podOf((*flow.Flow).GetSource))
	},
	"destination_pod": func(f *flow.FlowFilter) (match, error) {
		return byName(f.GetDestinationPod(), podOf((*flow.Flow).GetDestination))
	},
	"source_service": func(f *flow.FlowFilter) (match, error) {
		return byName(f.GetSourceService(), serviceOf((*flow.Flow).GetSourceService))
	},
	"destination_service": func(f *flow.FlowFilter) (match, error) {
		return byName(f.GetDestinationService(), serviceOf((*flow.Flow).GetDestinationService))
	},
	"source_label": func(f *flow.FlowFilter) (match, error) { return byLabel(f.GetSourceLabel(), (*flow.Flow).GetSource) },
	"destination_label": func(f *flow.FlowFilter) (match, error) {
		return byLabel(f.GetDestinationLabel(), (*flow.Flow).GetDestination)
	},
	"source_workload": func(f *flow.FlowFilter) (match, error) {
		return byWorkload(f.GetSourceWorkload(), (*flow.Flow).GetSource), nil
	},
	"destination_workload": func(f *flow.FlowFilter) (match, error) {
		return byWorkload(f.GetDestinationWorkload(), (*flow.Flow).GetDestination), nil
	},
	"source_identity": func(f *flow.FlowFilter) (match, error) {
		return among(f.GetSourceIdentity(), func(fl *flow.Flow) uint32 { return fl.GetSource().GetIdentity() }), nil
	},
	"destination_identity": func(f *flow.FlowFilter) (match, error) {
		return among(f.GetDestinationIdentity(), func(fl *flow.Flow) uint32 { return fl.GetDestination().GetIdentity() }), nil
	},
	"source_port": func(f *flow.FlowFilter) (match, error) {
		return byPort(f.GetSourcePort(), func(fl *flow.Flow) uint32 { from, _ := ports(fl); return from })
	},
	"destination_port": func(f *flow.FlowFilter) (match, error) {
		return byPort(f.GetDestinationPort(), func(fl *flow.Flow) uint32 { _, to := ports(fl); return to })
	},
	"traffic_direction": func(f *flow.FlowFilter) (match, error) {
		return among(f.GetTrafficDirection(), (*flow.Flow).GetTrafficDirection), nil
	},
	"verdict": func(f *flow.FlowFilter) (match, error) { return among(f.GetVerdict(), (*flow.Flow).GetVerdict), nil },
	"drop_reason_desc": func(f *flow.FlowFilter) (match, error) {
		return among(f.GetDropReasonDesc(), (*flow.Flow).GetDropReasonDesc), nil
	},
	"ip_version": func(f *flow.FlowFilter) (match, error) {
		return among(f.GetIpVersion(), func(fl *flow.Flow) flow.IPVersion { return fl.GetIP().GetIpVersion() }), nil
	},
	"interface":  func(f *flow.FlowFilter) (match, error) { return byInterface(f.GetInterface()), nil },
	"event_type": func(f *flow.FlowFilter) (match, error) { return byEventType(f.GetEventType()), nil },
	"protocol":   func(f *flow.FlowFilter) (match, error) { return byProtocol(f.GetProtocol()) },
	"reply": func(f *flow.FlowFilter) (match, error) {
		return func(fl *flow.Flow) bool { // a dropped packet counts as none, as in Cilium's server: Hubble UI relies on it
			known := fl.GetIsReply() != nil || fl.GetVerdict() == flow.Verdict_DROPPED
			return known && slices.Contains(f.GetReply(), fl.GetIsReply().GetValue())
		}, nil
	},
	"tcp_flags": func(f *flow.FlowFilter) (match, error) { return byTCPFlags(f.GetTcpFlags()), nil },
	"node_name": func(f *flow.FlowFilter) (match, error) { return byNode(f.GetNodeName()) },
}

func among[T comparable](values []T, of func(*flow.Flow) T) match {
	return func(fl *flow.Flow) bool { return slices.Contains(values, of(fl)) }
}

func byIP(values []string, of func(*flow.Flow) string) (match, error) {
	var networks []netip.Prefix
	for _, v := range values {
		p, err := netip.ParsePrefix(v)
		if err != nil {
			ip, err := netip.ParseAddr(v)
			if err != nil || ip.Zone() != "" {
				return nil, fmt.Errorf("%q: not an IP address or a network", v)
			}
			p = netip.PrefixFrom(ip, ip.BitLen())
		}
		networks = append(networks, p)
	}
	return func(fl *flow.Flow) bool {
		ip, err := netip.ParseAddr(of(fl))
		return err == nil && slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(ip) })
	}, nil
}

// nameOf returns a namespace and a name.
type nameOf func(*flow.Flow) (namespace, name string)

func podOf(end func(*flow.Flow) *flow.Endpoint) nameOf {
	return func(fl *flow.Flow) (string, string) { return end(fl).GetNamespace(), end(fl).GetPodName() }
}

func serviceOf(end func(*flow.Flow) *flow.Service) nameOf {
	return func(fl *flow.Flow) (string, string) { return end(fl).GetNamespace(), end(fl).GetName() }
}

// byName takes "NAMESPACE/BEGINNING", "NAMESPACE/", "/BEGINNING" for any namespace, and "BEGINNING" for the namespace "default".
func byName(values []string, of nameOf) (match, error) {
	if slices.Contains(values, "") {
		return nil, errors.New("a name is empty")
	}
	return func(fl *flow.Flow) bool {
		namespace, name := of(fl)
		if namespace == "" && name == "" {
			return false
		}
		return slices.ContainsFunc(values, func(v string) bool {
			ns, prefix, ok := strings.Cut(v, "/")
			if !ok {
				ns, prefix = "default", v
			}
			return (ns == "" || ns == namespace) && strings.HasPrefix(name, prefix)
		})
	}, nil
}

// byLabel takes selectors of Kubernetes. A source of labels before a key ("k8s:app") is left out: Sluice has one.
func byLabel(values []string, end func(*flow.Flow) *flow.Endpoint) (match, error) {
	var selectors []labels.Selector
	for _, v := range values {
		for _, source := range []string{"k8s:", "any:"} {
			v = strings.ReplaceAll(v, source, "")
		}
		reserved := strings.ReplaceAll(v, "reserved:", "reserved.")
		s, err := labels.Parse(reserved)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", v, err)
		}
		selectors = append(selectors, s)
	}
	return func(fl *flow.Flow) bool {
		set := labels.Set{}
		for _, l := range end(fl).GetLabels() {
			key, value, _ := strings.Cut(strings.TrimPrefix(l, "k8s:"), "=")
			set[strings.Replace(key, "reserved:", "reserved.", 1)] = value
		}
		return slices.ContainsFunc(selectors, func(s labels.Selector) bool { return s.Matches(set) })
	}, nil
}

func byWorkload(values []*flow.Workload, end func(*flow.Flow) *flow.Endpoint) match {
	return func(fl *flow.Flow) bool {
		return slices.ContainsFunc(end(fl).GetWorkloads(), func(w *flow.Workload) bool {
			return slices.ContainsFunc(values, func(v *flow.Workload) bool {
				return (v.GetName() == "" || v.GetName() == w.GetName()) && (v.GetKind() == "" || v.GetKind() == w.GetKind())
			})
		})
	}
}

func ports(fl *flow.Flow) (from, to uint32) {
	switch p := fl.GetL4().GetProtocol().(type) {
	case *flow.Layer4_TCP:
		return p.TCP.GetSourcePort(), p.TCP.GetDestinationPort()
	case *flow.Layer4_UDP:
		return p.UDP.GetSourcePort(), p.UDP.GetDestinationPort()
	case *flow.Layer4_SCTP:
		return p.SCTP.GetSourcePort(), p.SCTP.GetDestinationPort()
	}
	return 0, 0
}

func byPort(values []string, of func(*flow.Flow) uint32) (match, error) {
	var wanted []uint32
	for _, v := range values {
		n, err := strconv.ParseUint(v, 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%q: must be 1 to 65535", v)
		}
		wanted = append(wanted, uint32(n))
	}
	return among(wanted, of), nil
}

func byInterface(values []*flow.NetworkInterface) match {
	return func(fl *flow.Flow) bool {
		return slices.ContainsFunc(values, func(v *flow.NetworkInterface) bool {
			have := fl.GetInterface()
			return have != nil && (v.GetName() == "" || v.GetName() == have.GetName()) && (v.GetIndex() == 0 || v.GetIndex() == have.GetIndex())
		})
	}
}

func byEventType(values []*flow.EventTypeFilter) match {
	return func(fl *flow.Flow) bool {
		return slices.ContainsFunc(values, func(v *flow.EventTypeFilter) bool {
			return v.GetType() == fl.GetEventType().GetType() && (!v.GetMatchSubType() || v.GetSubType() == fl.GetEventType().GetSubType())
		})
	}
}

func byProtocol(values []string) (match, error) {
	wanted := map[string]bool{}
	for _, v := range values {
		switch v = strings.ToLower(v); v {
		case "tcp", "udp", "sctp", "icmpv4", "icmpv6":
			wanted[v] = true
		case "icmp":
			wanted["icmpv4"], wanted["icmpv6"] = true, true
		default:
			return nil, fmt.Errorf("%q: %w", v, errNoSuch)
		}
	}
	return func(fl *flow.Flow) bool {
		switch fl.GetL4().GetProtocol().(type) {
		case *flow.Layer4_TCP:
			return wanted["tcp"]
		case *flow.Layer4_UDP:
			return wanted["udp"]
		case *flow.Layer4_SCTP:
			return wanted["sctp"]
		case *flow.Layer4_ICMPv4:
			return wanted["icmpv4"]
		case *flow.Layer4_ICMPv6:
			return wanted["icmpv6"]
		}
		return false
	}, nil
}

// byTCPFlags wants all flags of one of values.
func byTCPFlags(values []*flow.TCPFlags) match {
	return func(fl *flow.Flow) bool {
		have := fl.GetL4().GetTCP().GetFlags()
		return have != nil && slices.ContainsFunc(values, func(v *flow.TCPFlags) bool {
			both := proto.Clone(have).(*flow.TCPFlags)
			proto.Merge(both, v)
			return proto.Equal(both, have)
		})
	}
}

// cluster is the name of the cluster in patterns of node names: Sluice knows one.
const cluster = "default"

// byNode takes patterns with "*", with the name of a cluster before them or without.
func byNode(values []string) (match, error) {
	for _, v := range values {
		if _, err := path.Match(v, ""); err != nil || v == "" {
			return nil, fmt.Errorf("%q: not a pattern of a node's name", v)
		}
	}
	return func(fl *flow.Flow) bool {
		return slices.ContainsFunc(values, func(v string) bool {
			if where, name, ok := strings.Cut(v, "/"); ok {
				if v = name; where != cluster && where != "*" {
					return false
				}
			}
			if v == "" {
				return true
			}
			ok, err := path.Match(v, fl.GetNodeName())
			return err == nil && ok
		})
	}, nil
}
