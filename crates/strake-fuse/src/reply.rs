//! Builds the parts that several replies have in common: attributes and entries.

use crate::abi::{AttrOut, AttrReply, EntryOut, STATX_MASK, StatxOut};
use std::time::Duration;
use strake_client::vfs::Entry;
use strake_proto::Attr;

/// `st_blksize`, the size of buffers that we recommend. Stdio allocates this much for every stream.
const IO_SIZE_HINT: u32 = 128 << 10;

fn mode(attr: &Attr) -> u32 {
    attr.file_type.mode_bits() | attr.permissions
}

pub(crate) fn attr_out(attr: &Attr) -> AttrOut {
    AttrOut {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.allocated.div_ceil(512),
        atime: attr.atime.seconds,
        mtime: attr.mtime.seconds,
        ctime: attr.ctime.seconds,
        atime_nanos: attr.atime.nanos,
        mtime_nanos: attr.mtime.nanos,
        ctime_nanos: attr.ctime.nanos,
        mode: mode(attr),
        links: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: IO_SIZE_HINT,
        flags: 0,
    }
}

/// `fuse_attr_out`.
pub(crate) fn attr_reply(attr: &Attr, valid: Duration) -> Vec<u8> {
    let head = AttrReply { attr_valid: valid.as_secs(), attr_valid_nanos: 0 };
    [&head.encode()[..], &attr_out(attr).encode()].concat()
}

/// `fuse_statx_out`.
pub(crate) fn statx_reply(attr: &Attr, valid: Duration) -> Vec<u8> {
    // The kernel's dev_t in 32 bits: minor bits 0..8 and 20..32, major bits 8..20.
    let (major, minor) =
        ((attr.rdev >> 8) & 0xfff, (attr.rdev & 0xff) | ((attr.rdev >> 12) & !0xff));
    StatxOut {
        attr_valid: valid.as_secs(),
        mask: STATX_MASK,
        blksize: IO_SIZE_HINT,
        links: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        mode: mode(attr) as u16,
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.allocated.div_ceil(512),
        atime: attr.atime.seconds,
        atime_nanos: attr.atime.nanos,
        btime: attr.btime.seconds,
        btime_nanos: attr.btime.nanos,
        ctime: attr.ctime.seconds,
        ctime_nanos: attr.ctime.nanos,
        mtime: attr.mtime.seconds,
        mtime_nanos: attr.mtime.nanos,
        rdev_major: major,
        rdev_minor: minor,
        ..StatxOut::default()
    }
    .encode()
    .to_vec()
}

/// How long the kernel may keep what an entry says.
#[derive(Clone, Copy)]
pub(crate) struct Valid {
    /// The name, also one that leads nowhere.
    pub(crate) name: Duration,
    /// The attributes.
    pub(crate) attr: Duration,
}

impl Valid {
    /// Both equally long.
    pub(crate) fn both(valid: Duration) -> Valid {
        Valid { name: valid, attr: valid }
    }
}

/// `fuse_entry_out`.
pub(crate) fn entry_reply(entry: &Entry, valid: Valid) -> Vec<u8> {
    let mut out = Vec::with_capacity(EntryOut::SIZE + AttrOut::SIZE + 16);
    put_entry(&mut out, Some(&entry.attr), valid);
    out
}

/// The reply for a name that does not exist. The kernel may cache it.
pub(crate) fn negative_entry_reply(valid: Duration) -> Vec<u8> {
    let mut out = Vec::with_capacity(EntryOut::SIZE + AttrOut::SIZE);
    put_entry(&mut out, None, Valid::both(valid));
    out
}

/// Appends a `fuse_entry_out`. The kernel does not count one without attributes as a lookup.
pub(crate) fn put_entry(out: &mut Vec<u8>, attr: Option<&Attr>, valid: Valid) {
    let head = EntryOut {
        nodeid: attr.map_or(0, |attr| attr.ino.0),
        generation: attr.map_or(0, |attr| attr.generation.0),
        entry_valid: valid.name.as_secs(),
        attr_valid: valid.attr.as_secs(),
        entry_valid_nanos: 0,
        attr_valid_nanos: 0,
    };
    out.extend_from_slice(&head.encode());
    out.extend_from_slice(&attr.map_or_else(AttrOut::default, attr_out).encode());
}
