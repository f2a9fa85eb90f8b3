#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=200
# Tests librrxe, the provider library of rrxe: which devices libibverbs gives to it, its
# installation and removal by provider-install, and transfers through it, which rrxe-check compares.
# Tests that the command `rrxe` starts, too. Two hosts over a veth pair.
source "$(dirname "$0")/../lib/guest.sh"
PROGRAM_SECONDS=180
readonly CONFIGURATION=/etc/libibverbs.d PAGE=/usr/share/man/man7/librrxe.7

# serves HOST DEVICE PROVIDER: succeeds if the provider library (rrxe: librrxe, rxe: librxe) serves
# the device.
serves() { [[ $(ip netns exec "h$1" python3 /payload/tests/tools/provider_of.py "$2") == "$3" ]]; }
by_librrxe() { RDMAV_DRIVERS=rrxe serves "$@"; }
by_librxe() { RDMAV_DRIVERS=rxe serves "$@"; }
configuration() { find $CONFIGURATION /usr/share/rrxe -type f -exec md5sum {} + 2>/dev/null | sort; }

note "rdma-core $(dpkg-query -W -f '${Version}' rdma-core)"
# The toolbox, where the command is built, has a newer glibc than Debian 12.
check "the command rrxe starts" rrxe --version
check "the module loads with shared_xrcd=1, for perftest's XRC" modprobe rrxe shared_xrcd=1
check "two hosts" hosts_up 1500
check "link on host 1" link_add 1 rrxe
check "link of C rxe on host 2" link_add 2 rxe
check "stock librxe serves rrxe's device by default" serves 1 "$DEV1" rxe
check "librrxe serves rrxe's device with RDMAV_DRIVERS=rrxe" by_librrxe 1 "$DEV1" rrxe
check "librxe serves C rxe's device with RDMAV_DRIVERS=rrxe" by_librrxe 2 "$DEV2" rxe
link_del 2
check "link of rrxe on host 2" link_add 2 rrxe

library=$(echo /usr/lib/*/libibverbs/librrxe-rdmav*.so)
mv "$library" /tmp/
before=$(configuration)
check "librrxe is installed" provider-install install "/tmp/$(basename "$library")" /payload/librrxe.7
check "librrxe is installed a second time" \
	provider-install install "/tmp/$(basename "$library")" /payload/librrxe.7
check "librrxe serves rrxe's device by default after its installation" serves 1 "$DEV1" rrxe
check "librxe serves rrxe's device with RDMAV_DRIVERS=rxe after that" by_librxe 1 "$DEV1" rxe
check "the man page of librrxe is installed" grep -q "^.TH LIBRRXE 7" $PAGE
check "the configuration of the package is diverted" test -e /usr/share/rrxe/rxe.driver
RRXE_PROVIDER=rrxe rrxe-check "$DEV1" "$DEV2" v4 || fail "rrxe-check ends well" "status $?"
RRXE_PROVIDER=rrxe rrxe-check "$DEV1" "$DEV2" v4 matrix || fail "rrxe-check matrix ends well" "status $?"
check "ib_send_lat through librrxe" perftest ib_send_lat -n 200
check "ib_write_bw through librrxe, with lists of requests" perftest ib_write_bw -n 200 -l 8 -t 16
check "ib_send_bw through librrxe, with XRC" perftest ib_send_bw -c XRC -n 200
check "ib_write_lat through librrxe, with XRC" perftest ib_write_lat -c XRC -n 200
check "pingpong through librrxe, with events" pingpong -e -n 200
check "librrxe is uninstalled" provider-install uninstall
check "librxe serves rrxe's device after that" serves 1 "$DEV1" rxe
[[ $(configuration) == "$before" ]] && pass "the configuration is as before" ||
	fail "the configuration is as before" "$before"$'\n---\n'"$(configuration)"
check "no file and no diversion of librrxe is left" bash -c \
	'! compgen -G "/usr/lib/*/libibverbs/librrxe*" && ! test -e '$PAGE' && ! dpkg-divert --list | grep rrxe'
# For the scripts that follow in this guest.
mv "/tmp/$(basename "$library")" "$library"
