//! Erasure codes, checksums and placement: the three pure functions that every strip passes on its
//! way between a block and the disks. They use no clock, no I/O and no thread, and allocate nothing
//! on the hot paths.
//!
//! - [`checksum`]: CRC32C of each 4 KiB unit of a strip, seeded with the strip's key and version.
//! - [`code`]: systematic Reed–Solomon over GF(2⁸); parity of a block and rebuilding of strips.
//! - [`placement`]: which slots hold the strips of a block.

#![warn(missing_docs)]

pub mod checksum;
pub mod code;
mod gf256;
pub mod kernel;
pub mod placement;

pub use checksum::{ChecksumSeed, first_bad_unit, strip_checksums};
pub use code::StripeCode;
pub use placement::{Placement, StripeSlots, strips_at_most};
