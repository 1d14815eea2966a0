//! Whether what is written will have room: ENOSPC belongs to `write`, not to a later flush.
//!
//! Bytes that are dirty and not yet sent are held against the free space that the NSDs told last,
//! less what was sent since. If that does not suffice the NSDs are asked again. An estimate: the
//! placement is even but not exact, so a margin stays free.

use crate::stripe_io::StripeIo;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use strake_proto::{Code, ErrorKind, Result};

/// Raw bytes per NSD that data never takes: room for an uneven placement.
const MARGIN_PER_SLOT: u64 = 1 << 20;

/// See the file's head.
pub(crate) struct Space {
    code: Code,
    slots: u64,
    /// Raw bytes free as last told, less what was sent since.
    free: AtomicI64,
    /// Bytes of data dirty and not sent.
    pending: AtomicU64,
    /// Nothing is refused: what is written was acknowledged before a crash.
    owing: AtomicBool,
}

impl Space {
    /// Asks the NSDs.
    pub(crate) fn new(code: Code, io: &StripeIo) -> Space {
        let slots = io.nsds().slots().count() as u64;
        let (free, pending) = (AtomicI64::new(0), AtomicU64::new(0));
        let space = Space { code, slots, free, pending, owing: AtomicBool::new(false) };
        space.learn(io);
        space
    }

    fn raw(&self, bytes: u64) -> u64 {
        let (data, width) = (u64::from(self.code.data), self.code.width() as u64);
        (u128::from(bytes) * u128::from(width) / u128::from(data)) as u64
    }

    /// Takes over what the NSDs told last.
    pub(crate) fn learn(&self, io: &StripeIo) {
        let free = io.nsds().space().1;
        self.free.store(i64::try_from(free).unwrap_or(i64::MAX), Ordering::Relaxed);
    }

    fn fits(&self) -> bool {
        let margin = MARGIN_PER_SLOT * self.slots;
        let pending = self.raw(self.pending.load(Ordering::Relaxed));
        let free = u64::try_from(self.free.load(Ordering::Relaxed)).unwrap_or(0);
        pending.saturating_add(margin) <= free
    }

    /// Holds room for `bytes` of data that become dirty.
    ///
    /// # Errors
    /// `NoSpace`; nothing is held then.
    pub(crate) fn hold(&self, bytes: u64, io: &StripeIo) -> Result<()> {
        self.pending.fetch_add(bytes, Ordering::Relaxed);
        if self.fits() || self.owing.load(Ordering::Acquire) {
            return Ok(());
        }
        io.nsds().refresh_space();
        self.learn(io);
        if self.fits() {
            return Ok(());
        }
        self.release(bytes);
        Err(ErrorKind::NoSpace.into())
    }

    /// Gives back what was held for data that was dropped.
    pub(crate) fn release(&self, bytes: u64) {
        self.pending.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Holds room for data that could not be sent after all.
    pub(crate) fn owe(&self, bytes: u64) {
        self.pending.fetch_add(bytes, Ordering::Relaxed);
    }

    /// While `owing`, [`Space::hold`] refuses nothing.
    pub(crate) fn set_owing(&self, owing: bool) {
        self.owing.store(owing, Ordering::Release);
    }

    /// What was held is on its way.
    pub(crate) fn sent(&self, bytes: u64) {
        self.release(bytes);
        let raw = i64::try_from(self.raw(bytes)).unwrap_or(i64::MAX);
        self.free.fetch_sub(raw, Ordering::Relaxed);
    }

    /// Whether `bytes` more would fit.
    pub(crate) fn would_fit(&self, bytes: u64, io: &StripeIo) -> bool {
        let fits = self.hold(bytes, io).is_ok();
        if fits {
            self.release(bytes);
        }
        fits
    }

    /// Bytes held for data that is dirty and not sent.
    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        self.pending.load(Ordering::Relaxed)
    }

    /// Total and free bytes for data.
    pub(crate) fn usable(&self, io: &StripeIo) -> (u64, u64) {
        let (total, free) = io.nsds().space();
        let data = |raw: u64| {
            (u128::from(raw) * u128::from(self.code.data) / self.code.width() as u128) as u64
        };
        let pending = self.pending.load(Ordering::Relaxed);
        (data(total), data(free).saturating_sub(pending))
    }
}
