// SPDX-License-Identifier: GPL-2.0

//! Observation of the frames that pass a network device, by a packet handler for all protocols
//! (`struct packet_type`, include/linux/netdevice.h).
//!
//! The network stack still receives the frames. A device without such a handler has no additional
//! cost.

use core::{
    pin::Pin,
    ptr::NonNull, //
};

use kernel::{ffi::c_int, prelude::*, sync::Arc, types::Opaque};

use super::{netdev::Netdev, skb::TappedFrame};
use crate::bindings;

const SUCCESS: c_int = bindings::NET_RX_SUCCESS as c_int;

/// Receiver of the frames that pass a network device.
pub trait FrameObserver: Send + Sync + 'static {
    /// Handles a buffer that passes the network device, in either direction.
    ///
    /// # Context
    ///
    /// Softirq, or process context with bottom halves disabled. The RCU read lock is held, and the
    /// code that sends the frame may hold further locks. Must not sleep, and must not send.
    fn observe_frame(&self, frame: &TappedFrame<'_>);
}

/// A registered packet handler.
///
/// Dropping the value unregisters the handler and waits for running calls. It must be dropped in
/// process context; that sleeps.
pub struct Tap<T: FrameObserver> {
    block: Pin<KBox<Block<T>>>,
    /// The network device, whose list contains the handler.
    _netdev: Netdev,
}

/// The packet handler, with the observer behind it.
///
/// # Invariants
///
/// `handler` is the first member.
#[repr(C)]
#[pin_data]
struct Block<T: FrameObserver> {
    #[pin]
    handler: Opaque<bindings::packet_type>,
    observer: Arc<T>,
}

// SAFETY: The handler is touched only by the network stack, under its lock and RCU.
unsafe impl<T: FrameObserver> Send for Block<T> {}
// SAFETY: The handler is touched only by the network stack, under its lock and RCU.
unsafe impl<T: FrameObserver> Sync for Block<T> {}

impl<T: FrameObserver> Tap<T> {
    /// Passes the frames of `netdev` to `observer` from now on. Must be called in process context.
    ///
    /// # Errors
    ///
    /// Returns `ENOMEM` if there is no memory.
    pub fn new(netdev: Netdev, observer: Arc<T>) -> Result<Self> {
        let dev = netdev.as_ptr();
        let block = KBox::pin_init(
            pin_init!(Block {
                handler <- Opaque::ffi_init(|slot: *mut bindings::packet_type| {
                    let handler = bindings::packet_type {
                        type_: (bindings::ETH_P_ALL as u16).to_be(),
                        dev,
                        func: Some(observe_frame::<T>),
                        ..Default::default()
                    };
                    // SAFETY: `slot` is valid for writes while the closure runs.
                    unsafe { slot.write(handler) }
                }),
                observer,
            }),
            GFP_KERNEL_ACCOUNT,
        )?;
        // SAFETY: The handler is pinned, and `drop` removes it before it is freed. The device is
        // held until then.
        unsafe { bindings::dev_add_pack(block.handler.get()) };
        Ok(Self {
            block,
            _netdev: netdev,
        })
    }
}

impl<T: FrameObserver> Drop for Tap<T> {
    fn drop(&mut self) {
        // SAFETY: `new` added the handler. No call of `observe_frame` runs any more when
        // `dev_remove_pack()` returns.
        unsafe { bindings::dev_remove_pack(self.block.handler.get()) };
    }
}

/// Passes a frame to the observer (`packet_type.func`).
///
/// # Safety
///
/// `handler` must be the first member of a registered [`Block<T>`]. `skb` must be a packet, and the
/// caller gives up a reference to it.
unsafe extern "C" fn observe_frame<T: FrameObserver>(
    skb: *mut bindings::sk_buff,
    _netdev: *mut bindings::net_device,
    handler: *mut bindings::packet_type,
    _original: *mut bindings::net_device,
) -> c_int {
    let Some(skb) = NonNull::new(skb) else {
        return SUCCESS;
    };
    // SAFETY: `handler` is the first member of a `Block<T>`, which is freed only after it was
    // removed from the list.
    let block = unsafe { &*handler.cast::<Block<T>>() };
    // SAFETY: The network stack passes a valid packet, and this function keeps its reference until
    // the end.
    if let Some(frame) = unsafe { TappedFrame::new(skb) } {
        block.observer.observe_frame(&frame);
    }
    // SAFETY: The caller gives up a reference to the packet (see `# Safety`).
    unsafe { bindings::consume_skb(skb.as_ptr()) };
    SUCCESS
}
