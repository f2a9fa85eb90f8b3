# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
# Functions for tests of `rrxe doctor`. A script sources guest.sh before.

# doctor [ARGUMENT...]: runs the doctor on host 1; fails if it finds a fault.
doctor() { in1 rrxe doctor "$@"; }

# finds NUMBER PROBLEM REMEDY COMMAND...: succeeds if the command, a doctor, finds this number of
# faults, one of which has the problem and the remedy (regular expressions). Its status must say so.
finds() {
	local number=$1 problem=$2 remedy=$3 text status=0
	shift 3
	text=$("$@" 2>&1) || status=$?
	echo "$text"
	[[ $status -eq 1 ]] || { echo "status $status" && return 1; }
	grep -q "^$number faults\? w" <<<"$text" || { echo "expected $number faults" && return 1; }
	grep -E -A1 "^(error|warning): .*$problem" <<<"$text" | grep -qE "^    Remedy: .*$remedy"
}
