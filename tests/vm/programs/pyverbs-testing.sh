#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together suite=testing timeout=400
# vm-debug: skip the same tests run on the debug kernel with the library of Debian 13
# Runs rdma-core's own tests of Debian testing, through its librxe, in a guest of Debian testing.
exec "$(dirname "$0")/pyverbs.sh"
