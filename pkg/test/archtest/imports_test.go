// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"slices"
	"strings"
	"testing"
)

// A room is a set of packages with one rule about what of ours they import.
// The first room whose pattern matches a package is its room.
type room struct {
	pattern string   // path below the module; a trailing "/" means everything below
	imports []string // patterns of ours it may import, besides itself when exact
	why     string
}

// leaves are what any room above pkg may use.
var leaves = []string{
	"pkg/sysctlallow", "pkg/cnierr", "pkg/cniconf", "pkg/cniskel", "pkg/delegate", "pkg/ipalloc", "pkg/log", "pkg/netns",
	"pkg/nodeconf", "pkg/policy", "pkg/attachments", "pkg/sysctl", "pkg/rollback", "pkg/version",
}

// ground are packages that import none of ours but each other. A room that may import anything may import them.
var ground = []string{"pkg/file", "pkg/hostport", "pkg/ipproto", "pkg/nodeid"}

var rooms = []room{
	{"cmd/internal/fastversion", nil, "initialised before everything else"},
	{"cmd/sluice-cni", []string{"cmd/internal/", "plugins/", "loader", "pkg/"}, "the multi-call binary wires everything"},
	{"cmd/sluice-helper", []string{"loader/", "pkg/"}, "what takes libraries that no plugin should start with"},
	{"cmd/sluice-dhcp", []string{"plugins/ipam/dhcp", "pkg/"}, "one plugin and its daemon"},
	{"cmd/sluice-agent", []string{"pkg/agent", "pkg/log", "pkg/version"}, "the node agent; it runs no plugin's code"},
	{"cmd/sluice-ipam", []string{"plugins/ipam/cluster", "plugins/ipam/cluster/conf", "pkg/"}, "one plugin"},
	{"cmd/sluice-ipam-store", []string{"plugins/ipam/cluster/", "pkg/"}, "the stores of one plugin, and their clients"},
	{"cmd/sluice", []string{"loader", "pkg/"}, "the operator's tool reads state; it runs no plugin"},
	{"cmd/sluice/internal/", []string{"cmd/sluice/internal/", "loader", "pkg/"}, "parts of the operator's tool"},
	{"cmd/", []string{"plugins/", "loader", "pkg/"}, "a command wires everything"},
	{"plugins/ipam/cluster/pool", nil, "a model: no store, no file, no clock"},
	{"plugins/ipam/cluster/blocks", []string{"plugins/ipam/cluster/pool"}, "the node's file; no store"},
	{"plugins/ipam/cluster/conf", append([]string{"plugins/ipam/cluster/pool"}, leaves...), "the configuration; no store"},
	{"plugins/ipam/cluster/claims", []string{"plugins/ipam/cluster/blocks", "plugins/ipam/cluster/pool", "pkg/log"}, "a protocol; any store"},
	{"plugins/ipam/cluster/kubestore", []string{"plugins/ipam/cluster/operator", "plugins/ipam/cluster/blocks", "plugins/ipam/cluster/claims", "plugins/ipam/cluster/conf", "plugins/ipam/cluster/pool"}, "one store; it decides nothing"},
	{"plugins/ipam/cluster/operator", []string{"plugins/ipam/cluster/blocks", "plugins/ipam/cluster/claims", "plugins/ipam/cluster/pool"}, "any store"},
	{"plugins/ipam/cluster/etcdstore", []string{"plugins/ipam/cluster/blocks", "plugins/ipam/cluster/claims", "plugins/ipam/cluster/conf", "plugins/ipam/cluster/pool"}, "one store; it decides nothing"},
	{"plugins/ipam/cluster/", append([]string{"plugins/ipam/cluster/", "pkg/helperproc"}, leaves...), "the request to the store program"},
	{"plugins/ipam/cluster", append([]string{"plugins/ipam/cluster/"}, leaves...), "IPAM sees no BPF and no netlink"},
	{"plugins/ipam/", leaves, "IPAM sees no BPF and no netlink"},
	{"plugins/internal/", append([]string{"loader", "pkg/netfilter", "plugins/internal/"}, leaves...), "what main and chained plugins share; it is no plugin"},
	{"plugins/main/internal/", append([]string{"loader", "pkg/netfilter", "pkg/rtnl", "plugins/internal/", "plugins/main/internal/"}, leaves...), "what main plugins share; it is no plugin"},
	{"plugins/main/", append([]string{"loader", "pkg/netfilter", "pkg/rtnl", "plugins/internal/", "plugins/main/internal/"}, leaves...), "a plugin never imports another plugin"},
	{"plugins/meta/internal/", append([]string{"loader", "pkg/netfilter", "pkg/rtnl", "plugins/internal/"}, leaves...), "what chained plugins share; it is no plugin"},
	{"plugins/meta/", append([]string{"loader", "pkg/maps/hostport", "pkg/netfilter", "pkg/nodeports", "pkg/rtnl", "plugins/internal/", "plugins/meta/internal/"}, leaves...), "a plugin never imports another plugin"},
	{"loader/loadapi", []string{"pkg/helperproc"}, "what the loader leaves to others"},
	{"loader/ebpfload", []string{"loader/loadapi", "pkg/bpfsys", "pkg/bpfgen", "pkg/rtnl"}, "the compiled objects and the eBPF library"},
	{"loader/internal/hook", []string{"pkg/bpfsys", "pkg/rtnl"}, "a table: which program goes where"},
	{"loader/internal/pintree", []string{"loader/loadapi", "loader/internal/hook", "pkg/bpfsys", "pkg/log", "pkg/maps/", "pkg/mountinfo", "pkg/netns", "pkg/nodeconf", "pkg/sysctl"},
		"the handle that all rooms of the loader share; it knows none of them"},
	{"loader/internal/programs", []string{"loader/loadapi", "loader/internal/hook", "loader/internal/pintree", "pkg/bpfgen", "pkg/bpfsys", "pkg/log", "pkg/nodeconf", "pkg/rtnl", "pkg/sysctl"},
		"makes sets of programs; what attaches them lies above"},
	{"loader/internal/attach", []string{"loader/internal/hook", "loader/internal/pintree", "loader/internal/programs", "pkg/bpfsys", "pkg/log", "pkg/netns", "pkg/nodeconf", "pkg/rtnl"},
		"hangs programs up; which device gets what is decided above"},
	{"loader/internal/uplinks", []string{"pkg/bpfsys", "pkg/maps/endpoint", "pkg/rtnl"}, "reads the node's network and the kernel's version; opens no map and writes nothing"},
	{"loader", []string{"loader/internal/", "loader/loadapi", "pkg/attachments", "pkg/bpfgen", "pkg/bpfsys", "pkg/log", "pkg/maps/", "pkg/netns", "pkg/networkpolicy", "pkg/nodeconf", "pkg/policy", "pkg/rollback", "pkg/rtnl"},
		"the datapath; it returns sentinel errors and knows nothing of CNI"},
	{"pkg/maps/", []string{"pkg/maps/", "pkg/bpfsys", "pkg/bpfgen", "pkg/log", "pkg/networkpolicy", "pkg/policy"}, "a typed view of one map family"},
	{"pkg/bpfgen/objects", nil, "generated code; only its test compares with pkg/bpfgen"},
	{"pkg/bpfgen", nil, "generated types, without a BPF library"},
	{"pkg/agent/agentconf", []string{"pkg/nodeconf"}, "the agent's configuration; it decides nothing"},
	{"pkg/agent/conflist", []string{"pkg/agent/agentconf"}, "makes the network's configuration; writes nothing"},
	{"pkg/agent/garbage", []string{"pkg/attachments", "pkg/log"}, "is given whom to ask for pods; calls the plugins as a runtime does"},
	{"pkg/agent/health", []string{"pkg/connlimit"}, "is given what to ask; all users of the node reach it"},
	{"pkg/agent/installer", []string{"pkg/install", "pkg/log"}, "watches over files"},
	{"pkg/agent/kube", []string{"pkg/version"}, "requests to the API server; decides nothing"},
	{"pkg/agent/masquerade", []string{"pkg/nodeconf"}, "runs sluice for the datapath: the agent has no BPF library"},
	{"pkg/agent/netpol", []string{"pkg/agent/kube", "pkg/agent/report", "pkg/log", "pkg/networkpolicy"}, "NetworkPolicies; is given the datapath's tables"},
	{"pkg/agent/nodes", []string{"pkg/agent/kube", "pkg/agent/routes"}, "Node objects; changes nothing"},
	{"pkg/agent/names", []string{"pkg/agent/kube", "pkg/log"}, "who has an address; keeps nothing while nobody asks"},
	{"pkg/agent/observer", []string{"pkg/connlimit", "pkg/flowevent", "pkg/hubbleflow", "pkg/log"}, "is given names and nodes; runs sluice for the datapath"},
	{"pkg/agent/report", []string{"pkg/log"}, "tells problems"},
	{"pkg/agent/routes", []string{"pkg/log", "pkg/rtnl", "pkg/sysctl"}, "routes between nodes, from facts that it is given; it talks to no API server"},
	{"pkg/agent", []string{"loader", "pkg/agent/", "pkg/attachments", "pkg/install", "pkg/log", "pkg/nodeconf", "pkg/nodeports", "pkg/rtnl", "pkg/version"}, "the order of the agent's steps; each has a room of its own"},
	{"pkg/nodeports", []string{"pkg/attachments", "pkg/rtnl"}, "which hostPorts take traffic of the node; the agent, which has no BPF, asks too"},
	{"pkg/networkpolicy/kube", []string{"pkg/networkpolicy"}, "objects of the API in another form; it decides nothing"},
	{"pkg/networkpolicy", []string{"pkg/ipproto"}, "a compiler; it knows no kernel and no API"},
	{"pkg/flowevent", []string{"pkg/ipproto"}, "a line of JSON, which one program writes and another one reads"},
	{"pkg/hubbleflow", []string{"pkg/flowevent"}, "messages for others; it knows no API server"},
	{"pkg/test/", []string{"pkg/", "loader"}, "test helpers; who may import them is checked apart"},
	{"pkg/cniskel", []string{"pkg/cniconf", "pkg/cnierr", "pkg/log", "pkg/netns", "pkg/attachments"}, "the process contract"},
	{"pkg/delegate", []string{"pkg/cnierr", "pkg/cniconf", "pkg/cniskel", "pkg/install", "pkg/log"}, "calls an IPAM plugin in-process or by exec"},
	{"pkg/rtnl", []string{"pkg/netns", "pkg/log"}, "opens its socket in a given namespace"},
	{"pkg/netfilter/choice", []string{"pkg/netfilter", "pkg/netfilter/internal/tool", "pkg/netfilter/iptables", "pkg/netfilter/nftables", "pkg/netfilter/firewalld", "pkg/log", "pkg/rtnl"}, "chooses among the tools"},
	{"pkg/netfilter/nftables", []string{"pkg/netfilter", "pkg/netfilter/internal/tool", "pkg/netfilter/iptables", "pkg/log", "pkg/attachments"}, "one tool; FORWARD of iptables must accept what it admits"},
	{"pkg/netfilter/iptables", []string{"pkg/netfilter", "pkg/netfilter/internal/tool", "pkg/attachments"}, "one tool"},
	{"pkg/netfilter/firewalld/bus", []string{"pkg/netfilter/firewalld", "pkg/netfilter", "pkg/helperproc"}, "the bus of the helper"},
	{"pkg/netfilter/firewalld", []string{"pkg/netfilter", "pkg/helperproc"}, "one tool, asked through the helper"},
	{"pkg/netfilter/internal/tooltest", []string{"pkg/netfilter", "pkg/netfilter/internal/tool", "pkg/log", "pkg/rtnl"}, "the tools of tests"},
	{"pkg/netfilter/internal/tool", []string{"pkg/netfilter", "pkg/log", "pkg/rtnl", "pkg/sysctl"}, "what the tools share"},
	{"pkg/netfilter", []string{"pkg/cnierr", "pkg/attachments"}, "what is wanted of any tool; the loader must not see it"},
	{"pkg/install", []string{"pkg/helperproc"}, "lays programs out"},
	{"pkg/file", nil, "files of any format"},
	{"pkg/ipproto", nil, "a table"},
	{"pkg/hostport", []string{"pkg/ipproto"}, "a name"},
	{"pkg/nodeid", []string{"pkg/file"}, "reads two files"},
	{"pkg/sysctlallow", []string{"pkg/helperproc", "pkg/sysctlallow"}, "asks the helper"},
	{"pkg/", []string{"pkg/cnierr", "pkg/log", "pkg/attachments"}, "leaves import none of ours but the registries everybody shares"},
	{"build/", []string{"pkg/install"}, "makes what users get from the other packages"},
	{"bench", []string{"pkg/", "loader", "bench/"}, "benchmarks; they see no plugin's code"},
	{"test/", []string{"pkg/", "loader", "test/"}, "suites of several packages; they see no plugin's code"},
	{"bpf/", []string{"pkg/", "bpf/"}, "packet walks"},
}

func matches(pattern, pkg string) bool {
	if strings.HasSuffix(pattern, "/") {
		return strings.HasPrefix(pkg, pattern)
	}
	return pkg == pattern || strings.HasPrefix(pkg, pattern+"/") && pattern != "cmd/sluice"
}

func roomOf(pkg string) (room, bool) {
	for _, r := range rooms {
		if matches(r.pattern, pkg) {
			return r, true
		}
	}
	return room{}, false
}

// mayImport reports whether a package of r may import another one of ours.
func (r room) mayImport(self, other string) bool {
	if strings.HasPrefix(other, self+"/") {
		return true // its own parts
	}
	if above, ok := roomOf(other); ok && strings.HasPrefix(self, other+"/") && above.pattern == r.pattern && !strings.HasSuffix(r.pattern, "/") {
		return true // parts of one room; a part with a room of its own does not see what is above
	}
	if len(r.imports) > 0 && slices.Contains(ground, other) {
		return true
	}
	return slices.ContainsFunc(r.imports, func(p string) bool { return matches(p, other) })
}

// Each room imports only what lies below it.
func TestImportDirection(t *testing.T) {
	for _, p := range listPackages(t) {
		r, ok := roomOf(p.rel())
		if !ok {
			t.Errorf("%s belongs to no room: add it to the table with its reason", p.rel())
			continue
		}
		for _, imp := range p.Imports {
			if ours(imp) && !r.mayImport(p.rel(), relative(imp)) {
				t.Errorf("%s imports %s; its room %q allows %v (%s)", p.rel(), relative(imp), r.pattern, r.imports, r.why)
			}
		}
	}
}

// onlyFrom lists packages with a closed set of importers. Keys ending in "/"
// stand for everything below; tests are bound by it as well, except where the
// importer list says "_test".
var onlyFrom = map[string]struct {
	importers []string
	why       string
}{
	"github.com/cilium/ebpf/":                      {[]string{"loader/ebpfload", "pkg/bpfgen/objects", "pkg/test/", "bpf/", "bench/subject", "_test"}, "its initialisers and its size, in every process that links it"},
	module + "/loader/ebpfload/":                   {[]string{"cmd/sluice-helper", "cmd/sluice/internal/doctor", "cmd/sluice/internal/trace", "pkg/test/", "bench", "_test"}, "brings the eBPF library"},
	"github.com/cilium/cilium/api/v1/flow/":        {[]string{"pkg/hubbleflow", "pkg/agent/observer", "pkg/agent/names", "test/", "_test"}, "messages of Hubble's API"},
	"github.com/cilium/cilium/api/v1/observer/":    {[]string{"pkg/agent/observer", "test/", "_test"}, "links gRPC; only the agent serves it"},
	"github.com/cilium/cilium/api/v1/peer/":        {[]string{"pkg/agent/observer", "test/", "_test"}, "links gRPC; only the agent serves it"},
	"github.com/cilium/cilium/api/v1/relay/":       {[]string{"pkg/agent/observer", "test/", "_test"}, "links gRPC; only the agent serves it"},
	"github.com/cilium/cilium/pkg/":                {nil, "Cilium's own code: the messages of its API are all that Sluice needs"},
	"github.com/godbus/dbus/":                      {[]string{"pkg/netfilter/firewalld/bus", "_test"}, "its initialisers and its size, in every process that links it"},
	"github.com/florianl/go-tc/":                   {[]string{"pkg/rtnl", "_test"}, "its lists fail at an attribute that it does not know; docs/dev/adr/0021-go-tc.md says what it is for"},
	"github.com/mdlayher/netlink/":                 {[]string{"pkg/rtnl"}, "the message layer of go-tc, whose errors pkg/rtnl translates"},
	"github.com/vishvananda/netlink/":              {[]string{"pkg/rtnl", "pkg/agent", "pkg/test/", "_test"}, "dumps are retried in one place; the agent makes VXLAN devices and their neighbours by it, and follows addresses"},
	"golang.zx2c4.com/wireguard/":                  {[]string{"pkg/agent/routes", "_test"}, "generic netlink and curves, which only the agent needs"},
	"github.com/vishvananda/netns/":                {[]string{"pkg/test/", "_test"}, "threads are restored in one place"},
	"github.com/containernetworking/cni/libcni/":   {[]string{"pkg/agent/conflist", "pkg/agent/garbage", "pkg/agent/health", "pkg/test/", "test/", "bench", "_test"}, "libcni is the runtime's side"},
	"github.com/containernetworking/cni/pkg/skel/": {[]string{"plugins/ipam/dhcp", "_test"}, "it compiles regular expressions in every process; dhcp sends its type to the daemon"},
	"github.com/containernetworking/plugins/":      {[]string{"_test"}, "only its test helpers may be used"},
	"k8s.io/client-go/":                            {[]string{"cmd/sluice-agent", "pkg/agent", "plugins/ipam/cluster/kubestore", "pkg/test/", "test/", "bench", "_test"}, "programs that need a cluster link it, and no others"},
	"k8s.io/api/":                                  {[]string{"cmd/sluice-agent", "pkg/agent", "pkg/networkpolicy/kube", "plugins/ipam/cluster/kubestore", "pkg/test/", "test/", "bench", "_test"}, "programs that need a cluster link it, and no others"},
	"k8s.io/apimachinery/":                         {[]string{"cmd/sluice-agent", "pkg/agent", "pkg/networkpolicy/kube", "plugins/ipam/cluster/kubestore", "pkg/test/", "test/", "bench", "_test"}, "programs that need a cluster link it, and no others"},
	"github.com/fsnotify/fsnotify/":                {[]string{"pkg/agent/installer", "_test"}, "only the agent watches files"},
	"sigs.k8s.io/yaml/":                            {[]string{"pkg/agent/agentconf", "test/", "_test"}, "JSON needs none of it; only the agent's file may be YAML"},
	"github.com/spf13/cobra/":                      {[]string{"cmd/sluice", "cmd/sluice-agent", "pkg/test/mantest"}, "heavy; the plugin binary must start fast"},
	"go.etcd.io/":                                  {[]string{"plugins/ipam/cluster/etcdstore", "pkg/test/", "test/", "bench", "_test"}, "programs that need etcd link it, and no others"},
	"go.uber.org/zap/":                             {[]string{"pkg/log", "plugins/ipam/cluster/etcdstore", "_test"}, "one place builds a log core; etcd's client is told to log nothing; zap's own logger brings an HTTP server into every process"},
	"net/http/":                                    {[]string{"pkg/agent/health", "cmd/sluice/internal/ui", "pkg/test/", "test/", "bench", "_test"}, "heavy; only the agent and the page serve HTTP"},
	module + "/pkg/netfilter/choice/":              {[]string{"cmd/", "_test"}, "a plugin gets the tables from its command"},
	module + "/pkg/netfilter/iptables/":            {[]string{"pkg/netfilter/choice", "pkg/netfilter/nftables", "_test"}, "the plugins know no tool"},
	module + "/pkg/netfilter/nftables/":            {[]string{"pkg/netfilter/choice", "_test"}, "the plugins know no tool"},
	module + "/pkg/netfilter/firewalld/":           {[]string{"cmd/sluice-helper", "plugins/meta/firewall", "pkg/netfilter/choice", "pkg/netfilter/firewalld", "_test"}, "only the firewall plugin has zones; others learn from choice whether firewalld runs"},
	module + "/pkg/netfilter/internal/tooltest/":   {[]string{"_test"}, "tools of tests"},
	module + "/loader/loadertest/":                 {[]string{"pkg/test/", "_test"}, "a fake for tests"},
	module + "/pkg/test/":                          {[]string{"pkg/test/", "test/", "bench", "_test"}, "helpers of tests"},
}

func TestOnlyFrom(t *testing.T) {
	for _, p := range listPackages(t) {
		for _, imp := range p.Imports {
			checkImporter(t, p, imp, false)
		}
		for _, imp := range slices.Concat(p.TestImports, p.XTestImports) {
			checkImporter(t, p, imp, true)
		}
	}
}

func checkImporter(t *testing.T, p goPackage, imp string, test bool) {
	t.Helper()
	for target, rule := range onlyFrom {
		if !strings.HasPrefix(imp+"/", target) {
			continue
		}
		allowed := test && slices.Contains(rule.importers, "_test") ||
			slices.ContainsFunc(rule.importers, func(r string) bool { return r != "_test" && matches(r, p.rel()) })
		if !allowed {
			t.Errorf("%s imports %s: only %v may (%s)", p.rel(), imp, rule.importers, rule.why)
		}
	}
}

// notLinked names what a binary must not contain, whatever imports it.
var notLinked = map[string]map[string]string{
	"cmd/sluice-cni": {
		"net/http":               "adds megabytes and start-up time to every CNI call",
		"k8s.io":                 "clusters are the business of programs of their own",
		"go.etcd.io":             "clusters are the business of programs of their own",
		"github.com/spf13/cobra": "a plugin has no command line",
		"text/template":          "keeps the linker from dropping unused methods",
		"html/template":          "keeps the linker from dropping unused methods",
		"encoding/gob":           "its initialiser; sluice-dhcp is apart for that reason",
		"regexp":                 "its tables; sluice-helper is apart for such reasons",
		"encoding/xml":           "its initialiser; sluice-helper is apart for such reasons",
		"net/rpc":                "its initialiser; sluice-dhcp is apart for that reason",
		"github.com/cilium/ebpf": "its initialiser; sluice-helper is apart for that reason",
		"github.com/godbus/dbus": "its initialiser; sluice-helper is apart for that reason",
		"testing":                "belongs to tests",
		module + "/pkg/test/":    "belongs to tests",
	},
	"cmd/sluice-dhcp": {
		"k8s.io":                 "clusters are the business of programs of their own",
		"net/http":               "nothing in Sluice serves HTTP",
		"testing":                "belongs to tests",
		module + "/pkg/test/":    "belongs to tests",
		"github.com/cilium/ebpf": "IPAM sees no BPF",
	},
	"cmd/sluice": {
		"k8s.io":              "clusters are the business of programs of their own",
		"testing":             "belongs to tests",
		module + "/pkg/test/": "belongs to tests",
	},
	"cmd/sluice-helper": {
		"k8s.io": "clusters are the business of programs of their own",
	},
	"cmd/sluice-agent": {
		"github.com/cilium/ebpf":           "it writes the tables of NetworkPolicy, and runs sluice for the rest of the datapath",
		module + "/loader/ebpfload":        "it loads nothing",
		module + "/plugins":                "it calls the plugins as a runtime does",
		"k8s.io/client-go/kubernetes":      "registers each API group; pkg/agent/kube has a client for core/v1",
		"github.com/google/gnostic-models": "its descriptors, in memory; it comes with strategicpatch and discovery",
		"k8s.io/client-go/discovery":       "brings the OpenAPI models",
		"golang.org/x/net/trace":           "its templates keep each method of each type; the build tag grpcnotrace leaves it out",
		"testing":                          "belongs to tests",
		module + "/pkg/test/":              "belongs to tests",
	},
	"cmd/sluice-ipam": {
		"k8s.io/client-go":       "its initialisers; sluice-ipam-store is apart for that reason",
		"k8s.io/apimachinery":    "its initialisers; sluice-ipam-store is apart for that reason",
		"go.etcd.io":             "its initialisers; sluice-ipam-store is apart for that reason",
		"google.golang.org/grpc": "its initialisers; sluice-ipam-store is apart for that reason",
		"net/http":               "adds megabytes and start-up time to every CNI call",
		"testing":                "belongs to tests",
		module + "/pkg/test/":    "belongs to tests",
		"github.com/cilium/ebpf": "IPAM sees no BPF",
		"github.com/spf13/cobra": "a plugin has no command line",
	},
	"cmd/sluice-ipam-store": {
		"golang.org/x/net/trace": "its templates keep each method of each type; the build tag grpcnotrace leaves it out",
		"text/template":          "keeps the linker from dropping unused methods",
		"testing":                "belongs to tests",
		module + "/pkg/test/":    "belongs to tests",
		"github.com/cilium/ebpf": "IPAM sees no BPF",
		"k8s.io/api":             "a megabyte of types; the store reads three",
	},
	"plugins/ipam/host-local": {
		"github.com/cilium/ebpf":         "IPAM sees no BPF",
		"github.com/vishvananda/netlink": "IPAM sees no netlink",
		module + "/loader":               "IPAM sees no BPF",
	},
	"plugins/ipam/dhcp": {
		"github.com/cilium/ebpf":         "IPAM sees no BPF",
		"github.com/vishvananda/netlink": "IPAM sees no netlink",
		module + "/loader":               "IPAM sees no BPF",
	},
	"plugins/ipam/static": {
		"github.com/cilium/ebpf":         "IPAM sees no BPF",
		"github.com/vishvananda/netlink": "IPAM sees no netlink",
		module + "/loader":               "IPAM sees no BPF",
	},
	"pkg/bpfgen": {
		"github.com/cilium/ebpf": "plugins use the types without it; what needs it is in pkg/bpfgen/objects",
	},
	"loader": {
		"github.com/containernetworking/cni/pkg/skel": "the loader knows nothing of CNI",
	},
}

func TestNotLinked(t *testing.T) {
	for pkg, deny := range notLinked {
		importers := importersIn(t, pkg)
		for bad, why := range deny {
			for dep, by := range importers {
				if dep != bad && !strings.HasPrefix(dep, strings.TrimSuffix(bad, "/")+"/") {
					continue
				}
				t.Errorf("%s links %s through %v: %s", pkg, dep, by, why)
			}
		}
	}
}

// importersIn returns, for each package that pkg links, the packages outside
// the standard library that import it directly.
func importersIn(tb testing.TB, pkg string) map[string][]string {
	tb.Helper()
	importers := map[string][]string{}
	for _, p := range goList(tb, "off", "-deps", "./"+pkg) {
		if p.Standard {
			continue
		}
		for _, imp := range p.Imports {
			importers[imp] = append(importers[imp], p.ImportPath)
		}
	}
	return importers
}
