#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# rdma-core's own tests through librrxe, our provider: all that stock librxe lacks must run, too.
export RDMAV_DRIVERS=rrxe PYVERBS_KIND=plugin
exec "$(dirname "$0")/pyverbs.sh"
