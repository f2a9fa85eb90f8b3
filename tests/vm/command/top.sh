#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: packages=tmux,mandoc timeout=240
# vm-debug: skip The script tests a program of user space.
# Tests `rrxe top` in a terminal of 100x24 characters, which tmux emulates, and the
# man pages.
source "$(dirname "$0")/../lib/guest.sh"

screen() { tmux capture-pane -p -t top; }
# shows TEXT: succeeds if a line of the screen matches TEXT.
shows() { screen | grep -qE "$1"; }
see() { check "$1" wait_for 20 shows "$2" || note "$(screen)"; }
ended() { ! tmux has-session -t top; }
# start ARGUMENT...: starts `rrxe top` in the terminal.
start() {
	tmux new-session -d -s top -x 100 -y 24 "ip netns exec h1 rrxe top $*; echo \$? >/tmp/top-status"
}
end_traffic() {
	kill "${traffic[@]}"
	wait "${traffic[@]}"
	true
}

check "two hosts" hosts_up 1500
check "link on host 1" link_add 1
check "link on host 2" link_add 2
check "top starts" start --interval 0.5
see "top shows the links" "^$DEV1 +eth0 +ACTIVE +1 "
see "the header names the columns" "LINK +NETDEV +STATE +QPS +SENT +RCVD"

ip netns exec h2 ib_write_bw -F "${SECOND[@]}" -D 600 -d "$DEV2" -x "$(gid_index "$DEV2" $HOST2_V4)" \
	>/tmp/server 2>&1 &
traffic=($!)
wait_for 20 _listening
ip netns exec h1 ib_write_bw -F "${SECOND[@]}" -D 600 -d "$DEV1" -x "$(gid_index "$DEV1" $HOST1_V4)" \
	$HOST2_V4 >/tmp/client 2>&1 &
traffic+=($!)
number="[0-9.]+[kMG]?"
see "top shows rates" "^$DEV1 +eth0 +ACTIVE +2 +[1-9]$number? +[1-9]$number? +[1-9]"
see "top shows the QP with its process" "^$DEV1 +[0-9]+ +RC +RTS +[0-9]+ .*ib_write_bw \(${traffic[1]}\)"
tmux send-keys -t top Down
see "Down selects the second link" "^QPs of $DEV2"
see "top shows the QP of the second link" "^$DEV2 +[0-9]+ +RC .*ib_write_bw \(${traffic[0]}\)"
tmux send-keys -t top Up
see "Up selects the first link" "^QPs of $DEV1"
check "host 2 drops a tenth of the packets" in2 nft "add table ip t
	add chain ip t in { type filter hook input priority 0; }
	add rule ip t in udp dport 4791 numgen random mod 10 0 drop"
see "top shows retransmissions" "^$DEV1 +eth0 +ACTIVE +2( +$number){4} +(0\.)?[1-9]"
in2 nft delete table ip t
end_traffic
see "the QP disappears" "^$DEV1 +eth0 +ACTIVE +1 +0 +0 +0 +0 "
tmux resize-window -t top -x 60 -y 10
see "top fits a smaller terminal" "^$DEV1 +eth0"
tmux send-keys -t top q
check "q ends top" wait_for 20 ended
check "the status is 0" grep -qx 0 /tmp/top-status
for page in rrxe.7 rrxe.8 librrxe.7; do
	check "mandoc finds no error in the man page $page" mandoc -T lint -W warning /payload/$page
done
check "top ends after --count updates" start --interval 0.2 --count 2
check "top has ended" wait_for 20 ended

check "link on host 1 is deleted" link_del 1
check "link on host 2 is deleted" link_del 2
