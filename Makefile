# SPDX-License-Identifier: Apache-2.0
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# A commit has the same version in each clone, however many objects that has.
VERSION ?= $(shell git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo dev)
IMAGE ?= sluice
ARM64 ?= ./pkg/... ./plugins/... ./loader/... ./cmd/...
# The modules: the product, then what has requirements that no product has. go.work joins all but test/chart, whose Helm has versions of its own.
MODULES := . bench build/release test test/chart
LDFLAGS := -s -w -X github.com/sluice-cni/sluice/pkg/version.build=$(VERSION)
# "make verify" runs go vet on everything.
GOTESTFLAGS ?= -count=1 -timeout=30m -vet=off
CNI_BIN_DIR ?= /opt/cni/bin
MAN_DIR ?= /usr/local/share/man
GOLANGCI_VERSION ?= v2.15.0
VALE_VERSION ?= v3.21.0
VALE := bin/tools/vale-$(VALE_VERSION)
GOTESTSUM_VERSION ?= v1.13.0
GOTESTSUM := bin/tools/gotestsum-$(GOTESTSUM_VERSION)
CYCLONEDX_VERSION ?= v1.10.0
CYCLONEDX := bin/tools/cyclonedx-gomod-$(CYCLONEDX_VERSION)
# The Markdown that is checked: all but what docs/.vale/exclude.txt names.
PROSE ?= $$(git ls-files -co --exclude-standard '*.md' | grep -vxFf docs/.vale/exclude.txt)
PROSEFLAGS ?= --minAlertLevel=error
# What targets run besides Go: command:package. The demo and the benchmark, the tests of "make test", tests in virtual machines, the load
# generators of the report (those of Debian 12), container runtimes, what comparisons with upstream run, and all that "make test-interop" does.
RUN_NEEDS := ip:iproute2 nft:nftables iptables:iptables git:git
TEST_NEEDS := $(RUN_NEEDS) ping:iputils-ping strace:strace udevadm:udev conntrack:conntrack
GUEST_NEEDS := $(RUN_NEEDS) ping:iputils-ping strace:strace dnsmasq:dnsmasq-base kea-dhcp4:kea-dhcp4-server
REPORT_NEEDS := iperf3:iperf3 wrk:wrk sockperf:sockperf
RUNTIME_NEEDS := $(TEST_NEEDS) podman:podman crun:crun catatonit:catatonit containerd:containerd newuidmap:uidmap slirp4netns:slirp4netns
UPSTREAM_NEEDS := $(TEST_NEEDS) firewalld:firewalld dbus-daemon:dbus-daemon
INTEROP_NEEDS := $(GUEST_NEEDS) $(REPORT_NEEDS) $(RUNTIME_NEEDS) $(UPSTREAM_NEEDS) ruby:ruby vagrant:vagrant promtool:prometheus chromium:chromium npm:npm
# Packages whose tests run programs of other projects for most of their time: upstream's plugins, netfilter's tools, load generators, runtimes,
# DHCP servers, Kubernetes, Prometheus, a browser, Vagrant.
# Those that take longest come first.
INTEROP := ./bench/subject ./test/e2e/stateful ./test/e2e/takeover ./test/e2e/agent ./test/e2e/netfilter ./plugins/ipam/cluster ./test/runtimes ./test/upstream ./cmd/sluice/internal/ui/pagetest ./bench \
	./bench/page ./bench/tool ./pkg/test/kubetest ./test/e2e/dhcp ./test/e2e/parity ./test/manifests ./test/monitoring ./test/vm/vagrantfile
# Packages whose tests take minutes. They begin first: the last one to begin would be tested alone.
LONGEST := ./test/e2e/lifecycle ./bpf/tests ./loader ./cmd/sluice ./test/e2e/datapath ./test/e2e/policy ./test/e2e/hostport
# How many packages are tested at a time: many tests wait.
TEST_PARALLEL ?= $(shell echo $$((2*$$(nproc))))
# What makes packages, and what tests them.
RELEASE_NEEDS := git:git dpkg-deb:dpkg rpmbuild:rpm
PACKAGE_NEEDS := $(RELEASE_NEEDS) ip:iproute2 iptables:iptables nft:nftables podman:podman crun:crun catatonit:catatonit containerd:containerd man:man-db mandoc:mandoc zsh:zsh fish:fish systemd-analyze:systemd
RELEASE = go run ./build/release -version '$(VERSION)' -commit "$$(git rev-parse HEAD)" -epoch "$$(git log -1 --format=%ct)" -image '$(IMAGE)' -sbom-tool $(CYCLONEDX)
# What takes Debian's kernels apart.
KERNEL_NEEDS := $(GUEST_NEEDS) dpkg-deb:dpkg lz4:lz4 zstd:zstd xz:xz-utils
KERNEL ?= 5.10
KERNELFLAGS ?=
FUZZTIME ?= 10m
FUZZQUICK ?= 3s
FUZZFLAGS ?=
HOSTILEFLAGS ?=
REPORTFLAGS ?=

CLUSTERFLAGS ?=
# What the nodes of a cluster run beside what is built, and what its containers have as tools.
CLUSTER_NEEDS := $(RUN_NEEDS) containerd:containerd runc:runc nsenter:util-linux curl:curl wget:wget nc:netcat-openbsd dig:bind9-dnsutils ping:iputils-ping

CLANG ?= clang-14
export BPF2GO_CC ?= $(CLANG)
export BPF2GO_CFLAGS ?= -O2 -g -Wall -Wextra -Wshadow -Wpadded -Werror -mcpu=v3 -idirafter /usr/include/$(shell uname -m)-linux-gnu

export CGO_ENABLED := 0
export PATH := $(PATH):/usr/sbin:/sbin

# need installs the packages of the commands that are missing, given as
# command:package pairs, and does nothing when all are there. Their services
# (firewalld, a DHCP server) are started neither now nor by the next boot.
define need
	@missing=(); \
	for pair in $(1); do command -v "$${pair%%:*}" >/dev/null || missing+=("$${pair##*:}"); done; \
	[ $${#missing[@]} -eq 0 ] && exit 0; \
	command -v apt-get >/dev/null || { echo "please install: $${missing[*]}" >&2; exit 1; }; \
	[ "$$(id -u)" -eq 0 ] || { echo "as root: apt-get install $${missing[*]}" >&2; exit 1; }; \
	echo "installing $${missing[*]}"; \
	exec 9>/run/sluice-apt.lock; flock 9; : one target at a time; \
	export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1; : no service is started by its package; \
	apt-get -qq update; apt-get -qq install -y --no-install-recommends "$${missing[@]}" >/dev/null; \
	command -v systemctl >/dev/null || exit 0; \
	for unit in $$(dpkg -L "$${missing[@]}" | sed -n 's,.*/systemd/system/\([^/@]*\.service\)$$,\1,p'); do systemctl --root=/ --quiet disable "$$unit"; done
endef

# build-programs builds the programs under test once for a recipe, and not once for each package.
define build-programs
[ -n "$${SLUICE_TEST_BIN:-}" ] || { programs=$$(mktemp -d -t sluice-bin-XXXXXX); trap 'rm -rf "$$programs"' EXIT; go run ./test/programs "$$programs"; export SLUICE_TEST_BIN="$$programs"; }
endef

define need-root
	@[ "$$(id -u)" -eq 0 ] || { echo "$@ makes network namespaces: run it as root" >&2; exit 1; }
endef

.PHONY: help help-all demo build test test-packet test-e2e lint verify generate test-interop test-unit test-privileged test-volume test-fastpath-model parity runtimes hubble hostile fuzz fuzz-quick upstream-suites test-guest kernel-load kernel-quick kernel-matrix kernel-shell cluster cluster-shell cluster-quick cluster-test cluster-soak cluster-conformance cluster-networkpolicy bench-cluster cluster-down bench-quick bench-traffic bench-report bench-observe bench-add bench-churn bench-deny bench-udp bench-ipam bench-bandwidth bench-bandwidth-kernel install fmt tidy lint-prose check-bpf-headers clean test-ipam

help: # list the targets that most people need: those whose line has "##*"
	@awk -F ':.*##[*] ' '/^[a-z-]+:.*##[*] / { printf "  make %-16s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

help-all: ##* list all targets
	@awk -F ':.*##[*]? ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z0-9-]+:.*##[*]? / { printf "  make %-24s%s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Start here

demo: build ##* show a pod, a hostPort and masquerade end to end, in its own namespaces (root)
	$(need-root)
	$(call need,$(RUN_NEEDS))
	go build -trimpath -o bin/demo ./test/demo
	bin/demo -bin bin

build: ##* build the plugins, the operator's tool and the node agent into bin/
	GOWORK=off go build -trimpath -tags grpcnotrace -ldflags '$(LDFLAGS)' -o bin/ ./cmd/sluice-cni ./cmd/sluice-helper ./cmd/sluice-dhcp ./cmd/sluice-ipam ./cmd/sluice-ipam-store ./cmd/sluice ./cmd/sluice-agent

# run-tests runs the packages that are not for test-interop and whose path grep finds by $(1). The longest come first.
define run-tests
	$(need-root)
	$(call need,$(TEST_NEEDS))
	packages=$$({ go list $(LONGEST); comm -23 <(go list work | sort) <(go list $(INTEROP) | sort); } | awk '!seen[$$0]++' | grep $(1)); \
	$(build-programs); \
	$(GOTESTSUM) --format standard-quiet -- -p=$(TEST_PARALLEL) $(GOTESTFLAGS) $$packages
endef

test: $(GOTESTSUM) ##* run the tests: unit, packet, end to end, conformance; half an hour on two cores (root)
	$(call run-tests,.)

$(GOTESTSUM):
	GOBIN=$(CURDIR)/bin/tools go install gotest.tools/gotestsum@$(GOTESTSUM_VERSION)
	mv bin/tools/gotestsum $@

lint: lint-prose ##* run golangci-lint, and the prose linter on pages
	@[ -x bin/tools/golangci-lint-$(GOLANGCI_VERSION) ] || { \
		GOBIN=$(CURDIR)/bin/tools go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION) && \
		mv bin/tools/golangci-lint bin/tools/golangci-lint-$(GOLANGCI_VERSION); }
	@for module in $(MODULES); do (cd $$module && GOWORK=off $(CURDIR)/bin/tools/golangci-lint-$(GOLANGCI_VERSION) run ./...) || exit; done

verify: ##* check that generated files, formatting and go.mod are as committed, and each module and BPF header compiles alone
	$(call need,$(CLANG):$(CLANG) llvm-strip-14:llvm-14 clang-format:clang-format git:git)
	@[ -e /usr/include/bpf/bpf_helpers.h ] && [ -e /usr/include/linux/bpf.h ] || \
		{ apt-get -qq update; apt-get -qq install -y --no-install-recommends libbpf-dev linux-libc-dev >/dev/null; }
	$(MAKE) --no-print-directory generate
	git diff --exit-code -- pkg/bpfgen bpf/README.md
	$(MAKE) --no-print-directory check-bpf-headers
	clang-format --dry-run -Werror bpf/*.c $$(find bpf/lib -name '*.h')
	@out=$$(gofmt -l build cmd loader pkg plugins bench test bpf); [ -z "$$out" ] || { echo "not gofmt'ed: $$out" >&2; exit 1; }
	@for module in $(MODULES); do echo "go mod tidy, go vet: $$module"; (cd $$module && export GOWORK=off && go mod tidy -diff && go vet ./...) || exit; done

generate: ## compile the BPF programs, regenerate their Go bindings and the tables of bpf/README.md
	go generate ./pkg/...
	go test -count=1 -run '^TestREADME$$' ./bpf/tests -update >/dev/null

##@ More tests

test-packet: $(GOTESTSUM) ## run the first half of "make test": unit tests, the loader, packets (root)
	$(call run-tests,-Ev '/test/(e2e|conformance)(/|$$)')

test-e2e: $(GOTESTSUM) ## run the second half: end to end, conformance (root)
	$(call run-tests,-E '/test/(e2e|conformance)(/|$$)')

test-interop: $(GOTESTSUM) ##* run the tests with programs of other projects: upstream's plugins, runtimes, Kubernetes, a browser (root)
	$(need-root)
	$(call need,$(INTEROP_NEEDS))
	$(build-programs); \
	$(GOTESTSUM) --format standard-quiet -- -p=$(TEST_PARALLEL) $(GOTESTFLAGS) $(INTEROP)

test-unit: ##* run the tests that need no privileges
	go test $(GOTESTFLAGS) -skip '^TestPrivileged|^TestVagrantfile' work

test-privileged: ## run only the tests that need root and a kernel with BPF
	$(need-root)
	$(call need,$(INTEROP_NEEDS))
	$(build-programs); go test $(GOTESTFLAGS) -run '^TestPrivileged' work

test-volume: ## run the attacks on the connection table with a million connections each, an hour (root)
	$(need-root)
	go test -count=1 -timeout=3h -v -run '^TestPrivilegedShare' ./bpf/tests -volume 1000000
	go test -count=1 -timeout=1h -v -run '^TestPrivilegedFlood$$' ./test/e2e/datapath -volume 1000000

test-fastpath-model: ## 100,000 messages in worlds with and without the fast path: each must arrive where the stack delivers it, five minutes (root)
	$(need-root)
	$(call need,$(TEST_NEEDS))
	go test -count=1 -timeout=1h -v -parallel=4 -run '^TestPrivilegedModel$$' ./test/e2e/fastpath -packets 100000

test-ipam: ## 10,000 ADDs of cluster-wide addresses with kill -9, partitions and two builds, and whereabouts' own program beside them, minutes (root)
	$(need-root)
	go test -count=1 -timeout=2h -v -run '^TestPrivileged(Volume|Whereabouts)$$' ./plugins/ipam/cluster -volume 10000 -volume-time 100m

parity: ## compare every behaviour in every backend with upstream, cell by cell, about ten minutes (root)
	$(need-root)
	$(call need,$(UPSTREAM_NEEDS))
	go test -count=1 -timeout=30m -parallel=4 -run Parity ./test/e2e/parity -whole

runtimes: ## run the container runtimes, beside Debian's the newest containerd and kubelet; building those takes long, once (root)
	$(need-root)
	$(call need,$(RUNTIME_NEEDS))
	go test -count=1 -timeout=120m ./test/runtimes -built -kubelet

hubble: ## ask the agent by the published hubble and hubble-relay; building those takes minutes, once (root)
	$(need-root)
	$(call need,$(RUN_NEEDS) chromium:chromium)
	go test -count=1 -timeout=30m -v -run '^TestPrivilegedHubble' ./test/e2e/agent -hubble

hostile: ## run the tests behind every promise of SECURITY.md and every class of docs/dev/design/bug-classes.md, row by row (root)
	$(need-root)
	$(call need,$(INTEROP_NEEDS))
	go run ./test/hostile $(HOSTILEFLAGS)

fuzz: ## run every fuzz target for FUZZTIME (10m), two at a time; findings go to testdata/fuzz (root)
	$(need-root)
	go run ./test/fuzz -time $(FUZZTIME) $(FUZZFLAGS)

fuzz-quick: ## the same for FUZZQUICK (3s) each, under five minutes on two cores; CI takes 1s (root)
	$(need-root)
	go run ./test/fuzz -time $(FUZZQUICK) $(FUZZFLAGS)

.PHONY: networkpolicy-oracle

networkpolicy-oracle: ## compare the compiler of NetworkPolicy with those of cyclonus and kube-network-policies, 100,000 random cases each, minutes; building those takes long, once
	cd test/networkpolicy && export GOWORK=off && go mod tidy -diff && go vet ./... && go test -count=1 -timeout=1h -v . -cases 100000

upstream-suites: ## run upstream's own test suites against Sluice, here and under Linux 6.12 in QEMU (root)
	$(need-root)
	$(call need,$(UPSTREAM_NEEDS))
	go run ./test/upstream -suites bandwidth,dhcp,firewall,host-local,loopback,portmap,ptp,static,tap
	$(call need,$(KERNEL_NEEDS))
	go run ./test/upstream -kernel 6.12 -suites bridge,dummy,firewall,host-device,ipvlan,macvlan,sbr,tuning,vlan,vrf

.PHONY: chart chart-check chart-generate

chart-check: ## lint and render the Helm chart with every profile, try bad values, compare the plain manifests (Helm as a library, a minute to build)
	cd test/chart && export GOWORK=off && go vet ./... && go test -count=1 ./...

test-guest: ## run the privileged tests as they run in test machines, on this one (root, or sudo)
	go run ./test/vm -build bin/guest
	$$([ "$$(id -u)" -eq 0 ] || echo sudo) bin/guest/guest run bin/guest/suites.json

##@ Other kernels, in QEMU

kernel-load: ## load every BPF program under Linux 5.10 and 6.12, in QEMU, a minute
	$(call need,$(KERNEL_NEEDS))
	go run ./test/vm -kernels 5.10,6.12 -run '^TestPrivilegedLoad' $(KERNELFLAGS) ./bpf/tests

kernel-quick: ##* load every program and run a test of each kind under Linux 5.10 and 6.12, in QEMU, under ten minutes
	$(call need,$(KERNEL_NEEDS))
	go run ./test/vm -quick $(KERNELFLAGS)

kernel-matrix: ## run the privileged tests under each kernel, in QEMU, and write docs/dev/kernels.md
	$(call need,$(KERNEL_NEEDS))
	go run ./test/vm -docs docs/dev/kernels.md $(KERNELFLAGS)

kernel-shell: ## give a shell in one kernel (KERNEL=5.10), with the tests in it
	$(call need,$(KERNEL_NEEDS))
	go run ./test/vm -shell $(KERNEL)

##@ A Kubernetes of three nodes in namespaces

cluster: ## make a cluster and leave it running, half a minute once its programs are built (root)
	$(need-root)
	$(call need,$(CLUSTER_NEEDS))
	go run ./test/cluster up $(CLUSTERFLAGS)

cluster-shell: ## give a shell with kubectl in the cluster
	$(need-root)
	go run ./test/cluster shell $(CLUSTERFLAGS)

cluster-quick: ##* make a cluster of two nodes, run Services, hostPorts and the swap with upstream under load in it, and take it down (root)
	$(need-root)
	$(call need,$(CLUSTER_NEEDS))
	go run ./test/cluster quick $(CLUSTERFLAGS)

# What the agent's part of a cluster can break.
AGENT_TESTS := ^TestPrivileged(PodsOfAllNodes|HostPort|Masquerade|Deletion|AgentOutage|Upgrades|NodeJoinsAgain|Reboot)$$

cluster-test: ## run all scenarios in clusters of three nodes: ptp and bridge, kube-proxy by iptables and nftables, the agent's modes (root)
	$(need-root)
	$(call need,$(CLUSTER_NEEDS))
	go test -count=1 -timeout=30m ./test/cluster/kube -clusters
	go run ./test/cluster test -name test -main ptp -proxy iptables $(CLUSTERFLAGS)
	go run ./test/cluster test -name test -main bridge -proxy nftables $(CLUSTERFLAGS)
	go run ./test/cluster test -name test -agent host-gw -main bridge -run '$(AGENT_TESTS)' $(CLUSTERFLAGS)
	go run ./test/cluster test -name test -agent vxlan -run '$(AGENT_TESTS)' $(CLUSTERFLAGS)
	go run ./test/cluster test -name test -agent wireguard -proxy nftables -run '$(AGENT_TESTS)' $(CLUSTERFLAGS)

cluster-soak: ## 100 upgrades under load, 1,000 pods and an hour without an API server, about two hours (root)
	$(need-root)
	$(call need,$(CLUSTER_NEEDS))
	go run ./test/cluster test -name soak -timeout 3h -run '^TestPrivileged(Upgrades|Rollout|ManyPods|LongOutage)$$' $(CLUSTERFLAGS) -- -heavy -upgrades 100 -pods 1000 -outage 1h

cluster-conformance: ## run Kubernetes' own tests of the network with Sluice and with upstream, kube-proxy by iptables and nftables (root)
	$(need-root)
	$(call need,$(CLUSTER_NEEDS))
	go run ./test/cluster conformance -name conformance $(CLUSTERFLAGS)

# Kubernetes' tests of SCTP need a kernel module.
NETPOL := -name netpol -nodes 2 -agent host-gw -network-policy

cluster-networkpolicy: ## NetworkPolicy in a cluster: the scenarios, and Kubernetes' own tests, kube-proxy by iptables and nftables, half an hour (root)
	$(need-root)
	$(call need,$(CLUSTER_NEEDS))
	go run ./test/cluster test $(NETPOL) -main bridge -run '^TestPrivilegedNetworkPolicy' $(CLUSTERFLAGS)
	go run ./test/cluster conformance $(NETPOL) -with sluice -focus NetworkPolicy -skip '\[(Disruptive|Flaky)\]|SCTP' $(CLUSTERFLAGS)

bench-cluster: ## 150 pods of a cluster come and go, with Sluice and with upstream, and with flannel's chain of each, a quarter of an hour (root)
	$(need-root)
	$(call need,$(CLUSTER_NEEDS))
	go run ./test/cluster pods -name pods -main bridge $(CLUSTERFLAGS)

cluster-down: ## remove the cluster, also one that was interrupted
	$(need-root)
	go run ./test/cluster down $(CLUSTERFLAGS)

##@ Benchmarks

bench-quick: build ##* compare with no plugin and with upstream, under 3 minutes (root)
	$(need-root)
	$(call need,$(RUN_NEEDS))
	go run ./bench

bench-traffic: build ## each kind of traffic (hostPort, NodePort, to Services and out, pod to pod) with SERVICES rules (10), beside no plugin and upstream, 6 minutes (root)
	$(need-root)
	$(call need,$(RUN_NEEDS))
	for kind in hostport nodeport outbound clusterip clusterip-local pod; do \
		go run ./bench quick -kind $$kind -services $(or $(SERVICES),10) -pods 2 -rounds 10 -cycles 1 -out bench/out/traffic-$$kind.json || exit; \
	done

bench-report: build ## iperf3, wrk, sockperf and our probes by pods, connections and rules, also with upstream: JSON and a page, 30 minutes (root; REPORTFLAGS=-quick: two)
	$(need-root)
	$(call need,$(RUN_NEEDS) $(REPORT_NEEDS))
	go run ./bench report $(REPORTFLAGS)

bench-observe: build ## what an observer of everything costs: CRR and stream with and without, in pairs, 5 minutes (root)
	$(need-root)
	$(call need,$(RUN_NEEDS))
	go run ./bench quick -peers direct,sluice,sluice-observed -pods 2 -cycles 1 -rounds 20 -budget 6m -crr 2s -stream 2s -rr 300ms -out bench/out/observe.json

bench-add: build ## compare the time of ADD with upstream's, for each main plugin (root)
	$(need-root)
	$(call need,$(RUN_NEEDS))
	go run ./bench add

bench-churn: build ## 200 pods come and go at once, mixed plugins, also with upstream (root)
	$(need-root)
	$(call need,$(RUN_NEEDS))
	go run ./bench churn

bench-deny: build ## drop a flood on an uplink by the denylist and by iptables, half a minute (root)
	$(need-root)
	$(call need,$(RUN_NEEDS))
	go run ./bench deny

bench-udp: build ## the shortest UDP packets through a hostPort, also with upstream, half a minute (root)
	$(need-root)
	$(call need,$(RUN_NEEDS))
	go run ./bench udp

bench-ipam: build ## 1,000 pods over 10 simulated nodes, 2,048 addresses, ADD with the API server up and down; a kube-apiserver is built once (root)
	$(need-root)
	go test -run '^$$' -bench '^BenchmarkIPAM$$' -benchtime 1x -timeout 40m ./plugins/ipam/cluster

bench-bandwidth: build ## goodput and delay of a limited pod, also with upstream, about two minutes (root)
	$(need-root)
	$(call need,$(RUN_NEEDS))
	go run ./bench bandwidth

bench-bandwidth-kernel: build ## the same under another kernel, in QEMU (KERNEL=6.12 has sch_fq)
	$(call need,$(KERNEL_NEEDS))
	go run ./bench bandwidth -kernel $(KERNEL) -rates 1,10,100,1000

##@ Releases

.PHONY: man image packages release package-quick package-check test-arm64

image: $(CYCLONEDX) ##* make the OCI image for amd64 and arm64, and its SBOM, in bin/image (IMAGE=name, VERSION=tag)
	rm -rf bin/image
	$(RELEASE) -out bin/image image sbom

packages: ##* make the deb and rpm packages for amd64 and arm64, in bin/packages
	$(call need,$(RELEASE_NEEDS))
	rm -rf bin/packages
	$(RELEASE) -out bin/packages packages

release: $(CYCLONEDX) ## make all that users get, with checksums, in bin/release/VERSION: docs/dev/releasing.md
	$(call need,$(RELEASE_NEEDS))
	rm -rf 'bin/release/$(VERSION)'
	cd test/chart && GOWORK=off go run ./pack -version '$(VERSION)' -out '$(CURDIR)/bin/release/$(VERSION)'
	$(RELEASE) -out 'bin/release/$(VERSION)' image archives packages sbom checksums

test-arm64: ## run the unit tests for arm64 in QEMU's user emulation (ARM64=./pkg/policy for one package); Linux 6.7 or later
	$(call need,qemu-aarch64-static:qemu-user-static unshare:util-linux)
	test/arm64.sh go test $(GOTESTFLAGS) -vet=off -skip '^TestPrivileged|^TestVagrantfile' $(ARM64)

package-quick: ## build image and packages for this machine, look at the image, install and purge the deb; two minutes, what CI does (root)
	$(need-root)
	$(call need,$(RELEASE_NEEDS) $(RUN_NEEDS))
	go test $(GOTESTFLAGS) -run '^TestPrivilegedPackageQuick$$' ./test/packages -quick

package-check: $(CYCLONEDX) ## test image and packages: equal builds, containerd, podman, dpkg, rpm (root)
	$(need-root)
	$(call need,$(PACKAGE_NEEDS))
	go test $(GOTESTFLAGS) ./test/packages -whole -sbom-tool $(CURDIR)/$(CYCLONEDX)
	$(RELEASE) -image localhost/sluice -version v0.0.0-check -out bin/package-check image
	go test $(GOTESTFLAGS) -run '^TestPrivilegedImage' ./test/runtimes -image $(CURDIR)/bin/package-check/sluice-v0.0.0-check-image.tar -image-name localhost/sluice:v0.0.0-check

$(CYCLONEDX):
	GOBIN=$(CURDIR)/bin/tools go install github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$(CYCLONEDX_VERSION)
	mv bin/tools/cyclonedx-gomod $@

##@ Everything else

chart: ## make the archive of the Helm chart, dist/sluice-VERSION.tgz
	cd test/chart && GOWORK=off go run ./pack -version '$(VERSION)' -out ../../dist

chart-generate: ## render deploy/kustomize and the chart's table of values
	cd test/chart && GOWORK=off go test -count=1 -run '^(TestManifests|TestReadme)$$' . -update

man: ## write the man pages of sluice and sluice-agent into bin/man
	rm -rf bin/man
	mkdir -p bin/man
	go test -count=1 -vet=off -run '^TestManPages$$' ./cmd/sluice ./cmd/sluice-agent -args -man '$(CURDIR)/bin/man'
	sed -i -e 's/@VERSION@/$(VERSION)/' -e "s/@DATE@/$$(date -u +%F)/" bin/man/*.8

install: build man ##* install the plugins into CNI_BIN_DIR (/opt/cni/bin), and the man pages into MAN_DIR
	bin/sluice install $(CNI_BIN_DIR)
	install -D -m 644 -t '$(MAN_DIR)/man8' bin/man/*.8

fmt: ## format the Go and C sources
	gofmt -w build cmd loader pkg plugins bench test bpf
	$(call need,clang-format:clang-format)
	clang-format -i bpf/*.c $$(find bpf/lib -name '*.h')

tidy: ## give all modules the versions of go.work, and tidy them: after a change of go.mod
	go work sync
	@for module in $(MODULES); do (cd $$module && GOWORK=off go mod tidy) || exit; done

lint-prose: $(VALE) ## check the words of the documentation by docs/dev/style.md (PROSE=page.md for one, PROSEFLAGS= for warnings too)
	@files="$(PROSE)" || exit 0; [ -z "$$files" ] || $(VALE) $(PROSEFLAGS) $$files

$(VALE):
	$(call need,git:git cc:build-essential)
	CGO_ENABLED=1 CGO_CFLAGS=-O1 GOBIN=$(CURDIR)/bin/tools go install github.com/vale-cli/vale/v3/cmd/vale@$(VALE_VERSION)
	mv bin/tools/vale $@

check-bpf-headers: ## compile each header of the BPF programs alone: it must include what it uses
	$(call need,$(CLANG):$(CLANG))
	@for header in $$(find bpf/lib -name '*.h' | sort); do \
		echo "#include \"$$header\"" | $(CLANG) -target bpf $(BPF2GO_CFLAGS) -Wno-unused-function -fsyntax-only -x c -I. - || { echo "$$header does not compile alone" >&2; exit 1; }; \
	done

clean: ##* remove what the build made
	rm -rf bin bench/out dist
