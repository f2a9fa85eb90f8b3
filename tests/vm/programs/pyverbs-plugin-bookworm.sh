#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: system together suite=bookworm timeout=400
# vm-debug: skip the same tests run on the debug kernel with the library of Debian 13
# Tests the same as pyverbs-plugin.sh, rdma-core's tests through librrxe, in a guest of Debian 12,
# whose libibverbs has another interface to provider libraries.
exec "$(dirname "$0")/pyverbs-plugin.sh"
