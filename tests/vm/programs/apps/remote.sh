#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What mpirun takes for ssh: remote.sh ADDRESS COMMAND...: in the namespace of the host with the address.
host=h${1##*.}
shift
exec ip netns exec "$host" unshare --uts bash -c 'hostname "$0" && exec bash -c "$1"' "$host" "$*"
