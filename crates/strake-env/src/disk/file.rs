//! A container file or a block device, by direct I/O.
