//! A histogram for each operation.

use std::sync::Arc;
use strake_observe::{Observe, Operation};

macro_rules! timings {
    ($(#[$doc:meta])* $type:ident: $($name:ident = $text:literal),* $(,)?) => {
        $(#[$doc])*
        pub(crate) struct $type { $(pub(crate) $name: Arc<Operation>,)* }
        impl $type {
            /// Finds them all once.
            pub(crate) fn new(observe: &Observe) -> $type {
                $type { $($name: observe.operations.operation($text),)* }
            }
        }
    };
}

timings! {
    /// The histograms of the operations.
    Timings:
    lookup = "lookup", getattr = "getattr", setattr = "setattr", mknod = "mknod", mkdir = "mkdir",
    symlink = "symlink", link = "link", unlink = "unlink", rmdir = "rmdir", rename = "rename",
    create = "create", open = "open", read = "read", write = "write", fsync = "fsync",
    fallocate = "fallocate", copy_range = "copyRange", readdir = "readdir", getxattr = "getxattr",
    listxattr = "listxattr", setxattr = "setxattr", removexattr = "removexattr", sync = "sync",
}

timings! {
    /// The histograms of blocks that are sent. A patch that does not fit has failed.
    SendTimings: block_write = "blockWrite", block_patch = "blockPatch",
}
