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
