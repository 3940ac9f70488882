#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# plugin-files puts the plugins into the node's plugin directories and takes them out again. The scripts of the deb and rpm
# packages run it. Operators run "plugin-files install" after a change of /etc/default/sluice.
#
# A file of another package or installer is set aside under another name and comes back at the removal. dpkg knows of that by
# diversions, also for files that come later. rpm has none, so its packages run "install" again after each transaction.
# No step leaves a name without a plugin: a second link is made first, and one rename replaces the name. The runtime may call at
# any moment.
set -eu

packager=@PACKAGER@
root=${SLUICE_PACKAGE_ROOT:-}
lib=$root/usr/lib/sluice
list=$root/usr/share/sluice/plugins # one name on each line
programs=$root/usr/share/sluice/programs
state=$root/var/lib/sluice/plugins # what is installed: "DIRECTORY NAME" on each line
aside=.sluice-diverted

CNI_BIN_DIRS=/opt/cni/bin
if [ -r "$root/etc/default/sluice" ]; then . "$root/etc/default/sluice"; fi

say() { echo "sluice: $*" >&2; }

die() {
	say "$*"
	exit 1
}

# ours says whether a plugin's file starts one of Sluice's programs (pkg/install writes such files).
ours() {
	[ -f "$1" ] && [ ! -L "$1" ] || return 1
	case $(head -c 256 -- "$1" | tr -d '\000' | head -n 1) in
	'#!'*/sluice-*) return 0 ;;
	esac
	return 1
}

exists() { [ -e "$1" ] || [ -L "$1" ]; }

# divert tells dpkg that other packages' files of this name go elsewhere. It moves nothing.
divert() { # PATH; true: it was new
	[ "$packager" = dpkg ] || return 1
	owner=$(dpkg-divert --listpackage "$1")
	[ "$owner" != sluice ] || return 1
	dpkg-divert --quiet --package sluice --no-rename --divert "$1$aside" --add "$1" || die "$1: another diversion is in the way; dpkg-divert --list shows it"
}

# set_aside keeps a file of others before Sluice's takes its name.
set_aside() { # PATH
	new=1
	divert "$1" || new=
	exists "$1" || return 0
	if ours "$1"; then return 0; fi
	# With a diversion the place aside belongs to the package that has the file. What is at the name itself came by another way.
	if [ "$packager" = dpkg ] && [ -z "$new" ] && exists "$1$aside"; then
		say "replaces $1, which another installer wrote"
		return 0
	fi
	rm -f -- "$1$aside.new"
	ln -P -- "$1" "$1$aside.new"
	mv -f -- "$1$aside.new" "$1$aside"
	say "keeps the former $1 as $1$aside"
}

# withdraw gives a name back.
withdraw() { # PATH
	if exists "$1$aside"; then
		if [ "$packager" = dpkg ] || ours "$1"; then
			mv -f -- "$1$aside" "$1"
		elif exists "$1"; then
			rm -f -- "$1$aside" # another installer has written a newer one
		else
			mv -f -- "$1$aside" "$1"
		fi
	elif ours "$1"; then
		rm -f -- "$1"
	fi
	[ "$packager" = dpkg ] || return 0
	[ "$(dpkg-divert --listpackage "$1")" != sluice ] ||
		dpkg-divert --quiet --package sluice --no-rename --divert "$1$aside" --remove "$1"
}

# outdated drops what was set aside for an rpm package that has gone: its own file of the name went with it.
outdated() { # PATH
	if [ "$packager" = rpm ] && ! exists "$1" && exists "$1$aside"; then rm -f -- "$1$aside"; fi
}

wanted() {
	for dir in $CNI_BIN_DIRS; do
		while read -r name; do echo "$dir $name"; done <"$list"
	done
}

# record writes the state from stdin, whole or not at all.
record() {
	mkdir -p -- "${state%/*}"
	cat >"$state.new"
	mv -f -- "$state.new" "$state"
}

check() {
	for dir in $CNI_BIN_DIRS; do
		case $dir in
		/*) ;;
		*) die "CNI_BIN_DIRS: $dir: must be an absolute path" ;;
		esac
		[ ${#dir} -le 200 ] || die "CNI_BIN_DIRS: $dir: must have at most 200 characters"
		while read -r name; do
			[ -L "$root$dir/$name" ] || [ ! -d "$root$dir/$name" ] || die "$dir/$name is a directory; move it away"
		done <"$list"
	done
}

install_all() {
	check
	was=
	if [ -f "$state" ]; then was=$(cat "$state"); fi
	now=$(wanted)
	# Both, until it is done: a removal after a failure knows every name.
	printf '%s\n%s\n' "$was" "$now" | sed '/^$/d' | sort -u | record
	for dir in $CNI_BIN_DIRS; do
		mkdir -p -- "$root$dir"
		while read -r name; do
			outdated "$root$dir/$name"
			set_aside "$root$dir/$name"
		done <"$list"
		"$lib/sluice" install --runtime-dir "$dir" "$root$dir" >/dev/null
	done
	printf '%s\n' "$was" | while read -r dir name; do
		[ -n "$dir" ] || continue
		printf '%s\n' "$now" | grep -qxF -- "$dir $name" || withdraw "$root$dir/$name"
	done
	dirs_of "$was" | while read -r dir; do
		printf '%s\n' "$now" | grep -q "^$dir " || programs_out "$dir"
	done
	printf '%s\n' "$now" | record
}

dirs_of() { printf '%s\n' "$1" | sed -n 's/ .*//p' | sort -u; }

# programs_out removes the programs of a directory without plugins.
programs_out() { # DIRECTORY
	while read -r name; do rm -f -- "$root$1/$name"; done <"$programs"
	rm -f -- "$root$1/.sluice-install.lock"
}

remove_all() {
	[ -f "$state" ] || return 0
	was=$(cat "$state")
	printf '%s\n' "$was" | while read -r dir name; do
		withdraw "$root$dir/$name"
	done
	dirs_of "$was" | while read -r dir; do
		programs_out "$dir"
	done
	rm -f -- "$state"
	rmdir -- "${state%/*}" 2>/dev/null || :
	set -- "$root"/run/sluice/attachments/*
	if [ -e "$1" ]; then
		say "pods that Sluice attached keep running. Their DEL needs its plugins, or upstream's and then, with a copy of the tool," \
			"\"sluice cleanup --yes\" and \"sluice unload\"."
	fi
}

case ${1:-} in
install) install_all ;;
remove) remove_all ;;
*) die "usage: plugin-files install | remove" ;;
esac
