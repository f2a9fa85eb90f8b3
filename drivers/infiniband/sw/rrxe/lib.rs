// SPDX-License-Identifier: GPL-2.0

//! rrxe: a software RoCEv2 provider.

#![forbid(unsafe_code)]
#![deny(missing_docs)]

use kernel::prelude::*;

module! {
    type: Rrxe,
    name: "rrxe",
    authors: ["The rrxe authors"],
    description: "Software RoCEv2 provider",
    license: "GPL",
    alias: ["rdma-link-rrxe"],
}

struct Rrxe;

impl kernel::Module for Rrxe {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        Ok(Self)
    }
}
