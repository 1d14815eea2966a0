//! Channels from many senders to one receiver, as all product crates take them.

pub use std::sync::mpsc::{
    Iter, Receiver, RecvError, RecvTimeoutError, SendError, Sender, SyncSender, TryRecvError,
    TrySendError, channel, sync_channel,
};
