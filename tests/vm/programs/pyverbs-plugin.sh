#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together timeout=400
# Runs rdma-core's own tests through librrxe, the provider library of rrxe. A test that may fail
# through stock librxe, because librxe lacks a feature, must run and pass here.
export RDMAV_DRIVERS=rrxe PYVERBS_KIND=plugin
exec "$(dirname "$0")/pyverbs.sh"
