// SPDX-License-Identifier: GPL-2.0

//! Address handles.

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
    gsi::take_answer,
    limits::{self, accounts::ObjectClaim},
    net::path::{Address, Path},
    verbs::pd::{Pd, PdId},
};

/// An address handle: where datagrams go.
#[pin_data]
pub(crate) struct Ah {
    _object: ObjectClaim,
    device: Arc<Device>,
    pd: PdId,
    /// The process's name for it; zero for the kernel's, which are named by reference.
    number: u32,
    /// The address, which the kernel's posters ask for with interrupts off.
    #[pin]
    av: IrqSpinLock<Av>,
    /// The way there with its route, which all QPs share that send through the handle.
    #[pin]
    path: BhSpinLock<Path>,
}

fn path_to(device: &Device, av: &Av) -> Path {
    let nobody = Qpn::default();
    Path::new(device.link.clone(), av, nobody, nobody)
}

impl Ah {
    /// Makes an address handle. The kernel's in any context, a process's in process context.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the source of a process's is no address of the link, and for ib_core's answer to a question whose
    /// sender was forgotten, or is nobody (`gsi.rs`); `ENOMEM`, also when the device or its process has too many.
    pub(crate) fn create(pd: &Pd, av: Av, user: bool) -> Result<Arc<Self>> {
        if !user {
            let device = pd.device();
            if take_answer(device, &av) {
                return Err(EINVAL);
            }
            let av = device.senders.true_destination(av)?;
            return Self::build(pd, 0, av, GFP_ATOMIC);
        }
        if !pd.device().link.has_source(&av) {
            return Err(EINVAL);
        }
        let place = pd.device().ahs.reserve(1..=limits::MAX_AH)?;
        let ah = Self::build(pd, place.id(), av, GFP_KERNEL_ACCOUNT)?;
        place.publish(ah.clone());
        Ok(ah)
    }

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

    /// The name that processes use in work requests.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The protection domain whose QPs may use it.
    pub(crate) fn pd(&self) -> PdId {
        self.pd
    }

    /// Replaces the address.
    pub(crate) fn modify(&self, av: Av) {
        *self.av.lock() = av;
        *self.path.lock() = path_to(&self.device, &av);
    }

    /// The address. Any context.
    pub(crate) fn av(&self) -> Av {
        *self.av.lock()
    }

    /// The headers' addresses and the route for a datagram of QP `local` to QP `remote`. Any
    /// context but hard interrupts; doesn't sleep.
    ///
    /// # Errors
    ///
    /// Those of [`Path::resolve`].
    pub(crate) fn resolve(&self, local: Qpn, remote: Qpn) -> Result<(Address, Route)> {
        let mut path = self.path.lock();
        let (address, route) = path.resolve()?;
        Ok((address.between(local, remote), route.clone()))
    }

    /// Takes the name away. Process context for a process's, any context for the kernel's.
    pub(crate) fn destroy(&self) {
        if self.number != 0 {
            drop(self.device.ahs.remove(self.number));
        }
    }
}
