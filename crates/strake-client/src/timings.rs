//! A histogram for each operation.

use std::sync::Arc;
use strake_observe::{Observe, Operation};

macro_rules! timings {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// The histograms of the operations.
        pub(crate) struct Timings { $(pub(crate) $name: Arc<Operation>,)* }
        impl Timings {
            /// Finds them all once.
            pub(crate) fn new(observe: &Observe) -> Timings {
                Timings { $($name: observe.operations.operation($text),)* }
            }
        }
    };
}

timings! {
    lookup = "lookup", getattr = "getattr", setattr = "setattr", mknod = "mknod", mkdir = "mkdir",
    symlink = "symlink", link = "link", unlink = "unlink", rmdir = "rmdir", rename = "rename",
    create = "create", open = "open", read = "read", write = "write", fsync = "fsync",
    fallocate = "fallocate", copy_range = "copyRange", readdir = "readdir", getxattr = "getxattr",
    listxattr = "listxattr", setxattr = "setxattr", removexattr = "removexattr", sync = "sync",
}

/// The histograms of blocks that are sent. A patch that does not fit has failed.
pub(crate) struct SendTimings {
    pub(crate) block_write: Arc<Operation>,
    pub(crate) block_patch: Arc<Operation>,
}

impl SendTimings {
    /// Finds them all once.
    pub(crate) fn new(observe: &Observe) -> SendTimings {
        let operation = |name| observe.operations.operation(name);
        SendTimings { block_write: operation("blockWrite"), block_patch: operation("blockPatch") }
    }
}
