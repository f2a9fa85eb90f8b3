#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together quick timeout=120
# vm-debug: skip The version does not depend on the kernel.
# Tests that module, device, provider library and command show one version.
source "$(dirname "$0")/../lib/guest.sh"

number=$(rrxe --version)
number=${number#rrxe }
# is_version COMMAND...: succeeds if the command prints the version and nothing else.
is_version() {
	local found
	found=$("$@") || return
	echo "$found, expected $number"
	[[ $found == "$number" ]]
}
# The field fw of `rdma dev` is the name and the version of the driver.
device_version() { rdma -j dev show "$DEV1" | python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["fw"].removeprefix("rrxe "))'; }
# Prints the version in the package metadata of an ELF file.
library_version() { grep -aoP '"name":"librrxe","version":"\K[^"]+' /usr/lib/*/libibverbs/librrxe-rdmav*.so; }
# Prints the version in the heading of a man page.
page_version() { sed -n 's/^\.TH .*"rrxe \(.*\)" ".*/\1/p' /payload/rrxe.8; }

check "rrxe --version prints three numbers" grep -qxE '[0-9]+\.[0-9]+\.[0-9]+' <<<"$number"
check "two hosts" hosts_up 1500
check "link on host 1" link_add 1 rrxe
check "modinfo shows the version" is_version modinfo -F version rrxe
check "the loaded module shows the version" is_version cat /sys/module/rrxe/version
check "rdma dev shows the version as the firmware's" is_version device_version
check "librrxe has the version" is_version library_version
check "the man page has the version" is_version page_version
