#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together suite=testing timeout=400
# vm-debug: skip the kernel runs the same tests there with the library of Debian 13
# rdma-core's own tests again, of Debian testing and over its librxe; and the data through that.
exec "$(dirname "$0")/pyverbs.sh"
