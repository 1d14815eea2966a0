//! The tokens that operations want.

use strake_proto::Ino;
use strake_token::held::{RangeWant, Want};
use strake_token::{BlockRange, Mode};

/// One want for each file.
pub(super) fn merged(wants: &[Want]) -> Vec<Want> {
    let mut merged: Vec<Want> = Vec::with_capacity(wants.len());
    for want in wants {
        match merged.iter_mut().find(|other| other.ino == want.ino) {
            Some(other) => {
                other.inode = match (other.inode, want.inode) {
                    (Some(one), Some(two)) => Some(one.join(two)),
                    (one, two) => one.or(two),
                };
                other.open |= want.open;
            }
            None => merged.push(want.clone()),
        }
    }
    merged
}

pub(super) fn text(wants: &[Want]) -> String {
    let inodes: Vec<String> = wants.iter().map(|want| want.ino.to_string()).collect();
    format!("inode {}", inodes.join(", "))
}

/// The file's inode in a mode.
pub(crate) fn want(ino: Ino, mode: Mode) -> Want {
    Want { ino, inode: Some(mode), open: false, range: None }
}

/// To write some blocks of a file, beside others that write other blocks.
pub(crate) fn beside(ino: Ino, required: BlockRange) -> Want {
    let range = RangeWant { required, desired: required, mode: Mode::Exclusive };
    Want { ino, inode: Some(Mode::Writing), open: false, range: Some(range) }
}

/// To look at a file.
pub(crate) fn shared(ino: Ino) -> Want {
    want(ino, Mode::Shared)
}

/// To change a file.
pub(crate) fn exclusive(ino: Ino) -> Want {
    want(ino, Mode::Exclusive)
}
