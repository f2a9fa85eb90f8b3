#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Replaces ssh for mpirun: remote.sh ADDRESS COMMAND... runs the command in the network namespace of
# the host that has the address, with the host's name.
host=h${1##*.}
shift
exec ip netns exec "$host" unshare --uts bash -c 'hostname "$0" && exec bash -c "$1"' "$host" "$*"
