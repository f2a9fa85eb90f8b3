# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Library for scripts that run UCX's benchmark (ucx_perftest) between the two hosts.

# UCX's file system (VFS) is disabled, because it needs directories that the guest does not have.
# The check of a datagram's destination GID is disabled, too: UCX before 1.19 takes the IP version
# of a datagram from a field that only Mellanox's adapters fill in. With the wrong version it
# misreads the destination and drops the datagram.
export UCX_VFS_ENABLE=n UCX_UD_VERBS_ETH_DGID_CHECK=n

# ucx TRANSPORTS TEST [ARGUMENT...]: runs a test of ucx_perftest. script(1) gives it a terminal,
# without which Debian's ucx_perftest assumes that it is part of an MPI job.
ucx() {
	local listen=13337 setting="env UCX_WARN_UNUSED_ENV_VARS=n UCX_TLS=$1"
	shift
	run_server_and_client script -qec "$setting UCX_NET_DEVICES=$DEV2:1 ucx_perftest" /dev/null -- \
		script -qec "$setting UCX_NET_DEVICES=$DEV1:1 ucx_perftest $HOST2_V4 -t $*" /dev/null
}
