#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together suite=testing timeout=400
# rdma-core's own tests again, of Debian testing and over its librxe; and the data through that.
exec "$(dirname "$0")/pyverbs.sh"
