// SPDX-License-Identifier: GPL-2.0
/*
 * Of two providers for a device, libibverbs takes the one that it loads first. The package librrxe
 * installs this library in place of stock librxe, whose file it diverts to another name. This
 * library loads librrxe and then stock librxe. So librrxe serves devices of rrxe, and stock librxe
 * serves devices of the kernel's driver rdma_rxe.
 */
#include <dlfcn.h>

__attribute__((constructor)) static void load_providers(void)
{
	dlopen(PROVIDERS "/librrxe-rdmav" ABI ".so", RTLD_NOW);
	dlopen(PROVIDERS "/librxe-stock-rdmav" ABI ".so", RTLD_NOW);
}
