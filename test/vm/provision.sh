#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prepares a test machine (Debian, Ubuntu, Rocky, Fedora): the tools that the
# tests run, and a Go that can build them. Run as root; again is fine.
#
#   provision.sh                          packages and Go
#   provision.sh network ADDR4 ADDR6/LEN  an IPv6 address beside that IPv4 one
set -euo pipefail

source_dir=$(cd "$(dirname "$0")/../.." && pwd)
[ -e "$source_dir/go.mod" ] || source_dir=/sluice # Vagrant copies the script elsewhere

# wanted is the Go version of go.mod.
wanted=$(sed -n 's/^go //p' "$source_dir/go.mod")

packages_apt() {
	export DEBIAN_FRONTEND=noninteractive
	apt-get -qq update
	apt-get -qq install -y --no-install-recommends \
		make git iproute2 nftables iptables iputils-ping dnsmasq-base ethtool procps ca-certificates golang-go >/dev/null
	apt-get -qq install -y --no-install-recommends kea-dhcp4-server >/dev/null ||
		echo "no kea here: the tests of DHCP servers need it" >&2
}

packages_dnf() {
	# The extra modules hold sch_fq, dummy, vrf and the like on Rocky and Fedora.
	dnf -q -y install make git iproute iproute-tc nftables iptables-nft iptables-utils iputils dnsmasq ethtool procps-ng golang
	dnf -q -y install kea || echo "no kea here: the tests of DHCP servers need it" >&2
	dnf -q -y install "kernel-modules-extra-$(uname -r)" "kernel-modules-$(uname -r)" ||
		echo "no further modules for $(uname -r): the tests name what is missing" >&2
}

# go_minor prints the minor number of the installed Go, 0 for none.
go_minor() {
	local v
	v=$(go version 2>/dev/null | sed -n 's/.* go1\.\([0-9]*\).*/\1/p')
	echo "${v:-0}"
}

# go_backports takes Go from the distribution's backports, where it has some.
go_backports() {
	. /etc/os-release
	local mirror
	[ "$ID" = debian ] || return 0
	mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m1 -E '/debian/?$')
	echo "deb $mirror $VERSION_CODENAME-backports main" >/etc/apt/sources.list.d/sluice-backports.list
	apt-get -qq update
	apt-get -qq install -y --no-install-recommends -t "$VERSION_CODENAME-backports" golang-go >/dev/null
}

# From 1.21 on the go command fetches the version that go.mod asks for. Before,
# a small program from the module proxy does.
install_go() {
	if [ "$(go_minor)" -lt 21 ] && command -v apt-get >/dev/null; then
		go_backports || echo "no newer Go in backports" >&2
	fi
	if [ "$(go_minor)" -ge 21 ]; then
		return
	fi
	local home=/usr/local/lib/sluice-go # for every user
	mkdir -p "$home"
	HOME=$home GOPATH=$home go install "golang.org/dl/go$wanted@latest"
	HOME=$home "$home/bin/go$wanted" download
	ln -sf "$home/sdk/go$wanted/bin/go" /usr/local/bin/go
}

network() {
	local dev
	dev=$(ip -o -4 addr show | awk -v a="$1/" 'index($4, a) == 1 { print $2; exit }')
	[ -n "$dev" ] || { echo "no device has $1" >&2; return 1; }
	ip -6 addr replace "$2" dev "$dev" nodad
	ip link set "$dev" up
}

if [ "${1:-}" = network ]; then
	network "$2" "$3"
	exit
fi
if command -v apt-get >/dev/null; then packages_apt; else packages_dnf; fi
install_go
for m in br_netfilter nf_conntrack tun; do
	modprobe "$m"
	echo "$m"
done >/etc/modules-load.d/sluice-tests.conf
(cd "$source_dir" && go version)
