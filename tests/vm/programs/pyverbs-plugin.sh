#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Runs rdma-core's own tests through librrxe, the provider library of rrxe. Tests of features that
# only stock librxe lacks must run and pass.
export RDMAV_DRIVERS=rrxe PYVERBS_KIND=plugin
exec "$(dirname "$0")/pyverbs.sh"
