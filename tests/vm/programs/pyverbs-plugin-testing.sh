#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together suite=testing timeout=400
# vm-debug: skip the kernel runs the same tests there with the library of Debian 13
# The same in a guest of Debian testing, whose libibverbs has another interface to providers.
exec "$(dirname "$0")/pyverbs-plugin.sh"
