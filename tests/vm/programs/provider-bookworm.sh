#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: system together suite=bookworm timeout=300
# vm-debug: skip the same tests run on the debug kernel with the library of Debian 13
# Tests the same as provider.sh, the installation of librrxe and transfers through it, in a guest of
# Debian 12, whose libibverbs has another layout with the same private symbols.
exec "$(dirname "$0")/provider.sh"
