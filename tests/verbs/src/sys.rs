// SPDX-License-Identifier: GPL-2.0

//! The declarations of libibverbs that bindgen generates (`build.rs`).

#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals
)]
#![allow(clippy::all, dead_code)]

include!(concat!(env!("OUT_DIR"), "/verbs.rs"));
