# SPDX-License-Identifier: GPL-2.0
# Shortcuts: each target is one call of tools/rrxe. The kernel's build system reads Kbuild instead.

all: modules
modules:
	@tools/rrxe host-build
install modules_install:
	@tools/rrxe host-install
uninstall:
	@tools/rrxe host-uninstall
install-provider:
	@tools/rrxe install-provider
uninstall-provider:
	@tools/rrxe uninstall-provider
install-tools:
	@tools/rrxe install-tools
uninstall-tools:
	@tools/rrxe uninstall-tools

deb:
	@tools/rrxe deb
demo:
	@tools/rrxe demo
test:
	@tools/rrxe test
check:
	@tools/rrxe check
test-debug:
	@tools/rrxe test-debug
test-arm64:
	@tools/rrxe test-arm64
test-system:
	@tools/rrxe test-system
kunit:
	@tools/rrxe kunit
rustdoc:
	@tools/rrxe rustdoc
upstream:
	@tools/rrxe upstream
bench:
	@tools/rrxe bench
bench-gate:
	@tools/rrxe bench-gate
fuzz:
	@tools/rrxe fuzz
vm:
	@tools/rrxe vm $(if $(RUN),$(RUN),$(error usage: make vm RUN=script.sh))
debug-vm:
	@RRXE_KERNEL_KIND=debug tools/rrxe vm $(if $(RUN),$(RUN),$(error usage: make debug-vm RUN=script.sh))
clean:
	@tools/rrxe clean
purge:
	@tools/rrxe purge

help:
	@tools/rrxe help

# make passes variables of its command line (make vm RUN=script.sh VCPUS=4) to tools/rrxe in the
# environment.

.PHONY: all modules install modules_install uninstall install-provider uninstall-provider install-tools uninstall-tools deb demo test check test-debug test-arm64 test-system kunit rustdoc upstream bench bench-gate fuzz vm debug-vm clean purge help
