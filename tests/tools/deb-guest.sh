#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Tests the Debian packages in a guest: the module that DKMS built, and which provider serves which
# device while the package librrxe is installed. The packages are in /payload/deb. The suite 46-deb
# runs this script.
source "$(dirname "$0")/../vm/lib/guest.sh"
readonly PACKAGES=/payload/deb
serves() { [[ $(ip netns exec "h$1" python3 /payload/tests/tools/provider_of.py "$2") == "$3" ]]; }

rm -f /usr/lib/*/libibverbs/librrxe-rdmav*.so
install -D -m 644 $PACKAGES/dkms/rrxe.ko "/lib/modules/$(uname -r)/updates/dkms/rrxe.ko"
depmod
check "two hosts" hosts_up 1500
check "the first link loads the module that DKMS built" link_add 1 rrxe
check "link of C rxe on host 2" link_add 2 rxe
check "without librrxe, stock librxe serves rrxe's device" serves 1 "$DEV1" rxe
check "dpkg installs librrxe" dpkg --install $PACKAGES/librrxe_*.deb
check "librrxe serves rrxe's device" serves 1 "$DEV1" rrxe
check "stock librxe serves C rxe's device" serves 2 "$DEV2" rxe
check "libibverbs warns of nothing" bash -c '! ibv_devices 2>&1 | grep -i warning'
check "pingpong between librrxe and stock librxe" pingpong -n 200
check "dpkg installs librrxe again" dpkg --install $PACKAGES/librrxe_*.deb
check "librrxe still serves rrxe's device" serves 1 "$DEV1" rrxe
check "dpkg removes librrxe" dpkg --remove librrxe
check "stock librxe serves rrxe's device again" serves 1 "$DEV1" rxe
check "libibverbs warns of nothing after the removal" bash -c '! ibv_devices 2>&1 | grep -i warning'
