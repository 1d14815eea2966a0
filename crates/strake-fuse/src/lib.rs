//! The thin adapter from `/dev/fuse` to `Vfs`.
