//! Channels from many senders to one receiver, as all product crates take them.

#[cfg(any(test, feature = "simulation"))]
pub use crate::simulation::seam::{Iter, Receiver, Sender, SyncSender, channel, sync_channel};
#[cfg(not(any(test, feature = "simulation")))]
pub use std::sync::mpsc::{Iter, Receiver, Sender, SyncSender, channel, sync_channel};
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
