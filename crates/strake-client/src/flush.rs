//! Makes dirty data durable.

pub(crate) mod folding;
pub(crate) mod harden;
pub(crate) mod last_close;
pub(crate) mod make_room;
pub(crate) mod settling;
pub(crate) mod sync;
pub(crate) mod told;
pub(crate) mod writers;
