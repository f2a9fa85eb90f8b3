#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# vm: together suite=testing timeout=400
# The same in a guest of Debian testing, whose libibverbs has another interface to providers.
exec "$(dirname "$0")/pyverbs-plugin.sh"
