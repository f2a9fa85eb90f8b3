# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# For scripts that run UCX's own measurements between the two hosts.

# Without UCX's file system, which wants directories that are not there. UCX before 1.19 tells the version of IP of
# a datagram by a field that only Mellanox's adapters fill in, and drops what it takes for another's.
export UCX_VFS_ENABLE=n UCX_UD_VERBS_ETH_DGID_CHECK=n

# ucx TRANSPORTS TEST [ARGUMENT...]. Without a terminal Debian's ucx_perftest takes itself for a part of an MPI job.
ucx() {
	local listen=13337 setting="env UCX_WARN_UNUSED_ENV_VARS=n UCX_TLS=$1"
	shift
	run_server_and_client script -qec "$setting UCX_NET_DEVICES=$DEV2:1 ucx_perftest" /dev/null -- \
		script -qec "$setting UCX_NET_DEVICES=$DEV1:1 ucx_perftest $HOST2_V4 -t $*" /dev/null
}
