// SPDX-License-Identifier: GPL-2.0

//! Address handles: the addresses to which UD and GSI QPs send datagrams.

use kernel::{alloc::Flags, prelude::*, sync::Arc};
use rdma::{
    net::route::Route,
    new_bh_spinlock, new_irq_spinlock,
    support::sync::{BhSpinLock, IrqSpinLock},
    verbs::av::Av,
};
use roce::ids::Qpn;

use crate::{
    device::Device,
    gsi::take_probe_response,
    limits::{self, accounts::ObjectClaim},
    net::path::{Address, Path},
    verbs::pd::{Pd, PdId},
};

/// An address handle: the destination of datagrams.
#[pin_data]
pub(crate) struct Ah {
    /// Claim on the object limit of the payer.
    _object: ObjectClaim,
    device: Arc<Device>,
    /// Protection domain whose QPs may use the handle.
    pd: PdId,
    /// Number by which a process names the handle in work requests. Zero for the kernel's handles,
    /// which are named by pointer.
    number: u32,
    /// Address vector. Kernel consumers query it with interrupts disabled.
    #[pin]
    av: IrqSpinLock<Av>,
    /// Path to the destination with its route. All QPs that send through the handle share it.
    #[pin]
    path: BhSpinLock<Path>,
}

/// Returns the path to `av`, for no particular pair of QPs.
fn path_to(device: &Device, av: &Av) -> Path {
    let nobody = Qpn::default();
    Path::new(device.link.clone(), av, nobody, nobody)
}

impl Ah {
    /// Creates an address handle. Any context for the kernel's handles, process context for those
    /// of a process (`user`).
    ///
    /// # Errors
    ///
    /// `EINVAL` if the source address of a process's handle is no address of the link. `EINVAL`
    /// also for ib_core's response to a MAD request if the request was a probe, or its true sender
    /// is no longer remembered (`gsi.rs`). `ENOMEM`, also if the limits of the device or of the
    /// process are reached.
    pub(crate) fn create(pd: &Pd, av: Av, user: bool) -> Result<Arc<Self>> {
        if !user {
            let device = pd.device();
            if take_probe_response(device, &av) {
                return Err(EINVAL);
            }
            let av = device.senders.true_destination(av)?;
            return Self::build(pd, 0, av, GFP_ATOMIC);
        }
        if !pd.device().link.has_source(&av) {
            return Err(EINVAL);
        }
        let reservation = pd.device().ahs.reserve(1..=limits::MAX_AH)?;
        let ah = Self::build(pd, reservation.id(), av, GFP_KERNEL_ACCOUNT)?;
        reservation.publish(ah.clone());
        Ok(ah)
    }

    /// Allocates the handle with `flags`, and charges it to the payer of `pd`.
    fn build(pd: &Pd, number: u32, av: Av, flags: Flags) -> Result<Arc<Self>> {
        let (device, object) = (pd.device(), pd.claim_object()?);
        let path = path_to(device, &av);
        Arc::pin_init(
            pin_init!(Self {
                _object: object,
                device: device.clone(),
                pd: pd.id(),
                number,
                av <- new_irq_spinlock!(av, "rrxe_ah_address"),
                path <- new_bh_spinlock!(path, "rrxe_ah"),
            }),
            flags,
        )
    }

    /// Returns the number by which a process names the handle in work requests; zero for the
    /// kernel's handles.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Returns the protection domain whose QPs may use the handle.
    pub(crate) fn pd(&self) -> PdId {
        self.pd
    }

    /// Replaces the address vector, and with it the path.
    pub(crate) fn modify(&self, av: Av) {
        *self.av.lock() = av;
        *self.path.lock() = path_to(&self.device, &av);
    }

    /// Returns the address vector. Any context.
    pub(crate) fn av(&self) -> Av {
        *self.av.lock()
    }

    /// Returns the addresses for the headers, and the route, of a datagram from QP `local` to QP
    /// `remote`. Any context but hard interrupts; doesn't sleep.
    ///
    /// # Errors
    ///
    /// Those of [`Path::resolve`].
    pub(crate) fn resolve(&self, local: Qpn, remote: Qpn) -> Result<(Address, Route)> {
        let mut path = self.path.lock();
        let (address, route) = path.resolve()?;
        Ok((address.between(local, remote), route.clone()))
    }

    /// Makes the number of a process's handle invalid. Process context for a process's handle, any
    /// context for the kernel's.
    pub(crate) fn destroy(&self) {
        if self.number != 0 {
            drop(self.device.ahs.remove(self.number));
        }
    }
}
