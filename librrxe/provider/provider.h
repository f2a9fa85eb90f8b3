/* SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB */
#include <infiniband/driver.h>
#include <rdma/rdma_user_rxe.h>
#include <rdma/rrxe-abi.h>
