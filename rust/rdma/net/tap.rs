// SPDX-License-Identifier: GPL-2.0

//! Looking on at what passes a network device: a packet handler for all protocols.
//!
//! The stack gets its packets all the same. While there is no handler, none of this costs anything.

use core::{
    pin::Pin,
    ptr::NonNull, //
};

use kernel::{ffi::c_int, prelude::*, sync::Arc, types::Opaque};

use super::{netdev::Netdev, skb::TappedFrame};
use crate::bindings;

const SUCCESS: c_int = bindings::NET_RX_SUCCESS as c_int;

/// Who looks on.
pub trait FrameObserver: Send + Sync + 'static {
    /// Something passes the network device, in either direction.
    ///
    /// # Context
    ///
    /// Softirq, or process with bottom halves disabled; under RCU, perhaps under a lock of whoever
    /// sends. Must not sleep, nor send.
    fn passes(&self, frame: &TappedFrame<'_>);
}

/// A registered packet handler. Dropping it ends the calls, and waits for those that run: process
/// context; sleeps.
pub struct Tap<T: FrameObserver> {
    block: Pin<KBox<Block<T>>>,
    /// The handler is in its list.
    _netdev: Netdev,
}

/// # Invariants
///
/// `handler` is the first member.
#[repr(C)]
#[pin_data]
struct Block<T: FrameObserver> {
    #[pin]
    handler: Opaque<bindings::packet_type>,
    onlooker: Arc<T>,
}

// SAFETY: The handler is touched only by the network stack, under its lock and RCU.
unsafe impl<T: FrameObserver> Send for Block<T> {}
// SAFETY: As above.
unsafe impl<T: FrameObserver> Sync for Block<T> {}

impl<T: FrameObserver> Tap<T> {
    /// Shows `onlooker` what passes `netdev` from now on. Process context.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(netdev: Netdev, onlooker: Arc<T>) -> Result<Self> {
        let dev = netdev.as_ptr();
        let block = KBox::pin_init(
            pin_init!(Block {
                handler <- Opaque::ffi_init(|slot: *mut bindings::packet_type| {
                    let handler = bindings::packet_type {
                        type_: (bindings::ETH_P_ALL as u16).to_be(),
                        dev,
                        func: Some(passes::<T>),
                        ..Default::default()
                    };
                    // SAFETY: The slot is valid for writes.
                    unsafe { slot.write(handler) }
                }),
                onlooker,
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        // SAFETY: The handler is pinned, and removed before it goes; so is the device, which is held
        // until then.
        unsafe { bindings::dev_add_pack(block.handler.get()) };
        Ok(Self {
            block,
            _netdev: netdev,
        })
    }
}

impl<T: FrameObserver> Drop for Tap<T> {
    fn drop(&mut self) {
        // SAFETY: `new` added it. Nobody is in `passes` any more when this returns.
        unsafe { bindings::dev_remove_pack(self.block.handler.get()) };
    }
}

/// # Safety
///
/// `handler` must be that of a [`Block<T>`], `skb` a packet of which the caller gives up a count.
unsafe extern "C" fn passes<T: FrameObserver>(
    skb: *mut bindings::sk_buff,
    _netdev: *mut bindings::net_device,
    handler: *mut bindings::packet_type,
    _original: *mut bindings::net_device,
) -> c_int {
    let Some(skb) = NonNull::new(skb) else {
        return SUCCESS;
    };
    // SAFETY: The handler is the first member of a `Block<T>`, which outlives its being in the list.
    let block = unsafe { &*handler.cast::<Block<T>>() };
    // SAFETY: The stack shows a valid packet, whose count is kept until below.
    if let Some(frame) = unsafe { TappedFrame::new(skb) } {
        block.onlooker.passes(&frame);
    }
    // SAFETY: The count is given up by the caller.
    unsafe { bindings::consume_skb(skb.as_ptr()) };
    SUCCESS
}
