//! Locks beside other mounts: what the kernel asks for, in the words of the `Vfs`, and back.
//!
//! The kernel sends locks only where INIT has agreed to that (`POSIX_LOCKS`, `FLOCK_LOCKS`). For a
//! lone mount it has not, and the kernel keeps locks by itself.
//!
//! **Ends.** The kernel names the last byte of a lock, and the largest offset stands for the end of
//! the file, however long that becomes. A [`ByteRange`] names one past the last byte.

use crate::abi::{LK_FLOCK, LkIn, LkOut, lock_kind};
use strake_client::vfs::{ByteRange, LockHeld, LockKind, LockMode, LockOwner, LockWant};
use strake_proto::{Error, ErrorKind, Ino, Result};

/// What a request wants.
///
/// # Errors
/// `Invalid` if it has no bytes or no known kind.
pub(crate) fn want(ino: Ino, asked: &LkIn) -> Result<LockWant> {
    let to = asked.end.saturating_add(1).min(ByteRange::END);
    let range = ByteRange::new(asked.start, to);
    let range = range.ok_or_else(|| Error::new(ErrorKind::Invalid, "a lock without bytes"))?;
    let mode = match asked.kind {
        lock_kind::READ => Some(LockMode::Shared),
        lock_kind::WRITE => Some(LockMode::Exclusive),
        lock_kind::UNLOCK => None,
        _ => return Err(Error::new(ErrorKind::Invalid, "a lock of no known kind")),
    };
    let is_flock = asked.lk_flags & LK_FLOCK != 0;
    let kind = if is_flock { LockKind::Flock } else { LockKind::Posix };
    let range = if is_flock { ByteRange::ALL } else { range };
    let owner = LockOwner { kind, id: asked.owner };
    Ok(LockWant { ino, owner, range, mode, pid: asked.pid })
}

/// The answer to GETLK.
pub(crate) fn found(held: Option<LockHeld>) -> [u8; LkOut::SIZE] {
    let Some(LockHeld { range, mode, pid }) = held else {
        return LkOut { kind: lock_kind::UNLOCK, ..LkOut::default() }.encode();
    };
    let kind = match mode {
        LockMode::Shared => lock_kind::READ,
        // No lock is held for writing beside others.
        LockMode::Exclusive | LockMode::Writing => lock_kind::WRITE,
    };
    LkOut { start: range.from, end: range.to - 1, kind, pid }.encode()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: u64 = i64::MAX as u64;

    #[test]
    fn the_largest_offset_is_the_end_of_the_file() {
        let asked = LkIn { start: 5, end: LAST, kind: lock_kind::WRITE, ..LkIn::default() };
        let wanted = want(Ino(1), &asked).expect("it has bytes");
        assert_eq!(wanted.range, ByteRange { from: 5, to: ByteRange::END });
        let held = LockHeld { range: wanted.range, mode: LockMode::Exclusive, pid: 3 };
        let out = LkOut { start: 5, end: LAST, kind: lock_kind::WRITE, pid: 3 };
        assert_eq!(found(Some(held)), out.encode());
        let one = want(Ino(1), &LkIn { start: 7, end: 7, ..LkIn::default() }).expect("a byte");
        assert_eq!(one.range, ByteRange { from: 7, to: 8 });
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (start, end, kind) in [(8, 7, 0), (LAST + 1, u64::MAX, 0), (0, 7, 3)] {
            let asked = LkIn { start, end, kind, ..LkIn::default() };
            let refused = want(Ino(1), &asked).expect_err("no lock");
            assert_eq!(refused.kind(), ErrorKind::Invalid);
        }
    }
}
