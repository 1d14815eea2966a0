//! Between a block in memory and its stripe on the NSDs.

pub(crate) mod accepted;
pub(crate) mod load;
pub(crate) mod send;
pub(crate) mod send_many;
