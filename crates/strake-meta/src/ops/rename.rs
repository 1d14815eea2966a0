//! Rename: moves a name, and may replace another or exchange the two. It is atomic in every case.
//!
//! Errors come in the order in which Linux finds them: names, existence, one inside the other,
//! types, emptiness. The times of both directories move. So does the change time of each inode that
//! gets or loses a name.

use super::Target;
use crate::names::{check_name, is_dot};
use crate::records::DentryRecord;
use crate::transaction::Transaction;
use strake_proto::meta::{MetaOp, MetaReply, RenameMode};
use strake_proto::{Error, ErrorKind, FileType, Ino, Result};

/// A place where a name can be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name<'a> {
    pub(crate) parent: Ino,
    pub(crate) name: &'a [u8],
}

pub(crate) fn rename(
    txn: &mut Transaction<'_>,
    source: Name<'_>,
    target: Name<'_>,
    mode: RenameMode,
    open: bool,
) -> Result<MetaReply> {
    check_name(source.name)?;
    check_name(target.name)?;
    txn.live_directory(source.parent)?;
    txn.live_directory(target.parent)?;
    if is_dot(source.name) || is_dot(target.name) {
        let kind = if mode == RenameMode::NoReplace { ErrorKind::Exists } else { ErrorKind::Busy };
        return Err(kind.into());
    }
    let moved: DentryRecord = txn.dentry(source.parent, source.name)?.ok_or(ErrorKind::NotFound)?;
    let old = txn.dentry(target.parent, target.name)?;
    match (mode, &old) {
        (RenameMode::NoReplace, Some(_)) => return Err(ErrorKind::Exists.into()),
        (RenameMode::Exchange, None) => return Err(ErrorKind::NotFound.into()),
        _ => {}
    }
    check_nesting(txn, source.parent, target.parent, &moved, old.as_ref(), mode)?;
    match old {
        Some(old) if old.ino == moved.ino => Ok(MetaReply::Removed(None)),
        Some(old) if mode == RenameMode::Exchange => exchange(txn, source, target, &moved, &old),
        Some(old) => replace(txn, source, target, &moved, &old, open),
        None => {
            if source.parent == target.parent {
                txn.rename_entry(source.parent, (source.name, target.name), &moved)?;
            } else {
                txn.remove_entry(source.parent, source.name, &moved)?;
                txn.add_entry(target.parent, target.name, Target::from(moved))?;
            }
            arrive(txn, &moved, target.parent)?;
            Ok(MetaReply::Removed(None))
        }
    }
}

/// Whether directory `inner` is `outer` or lies below it. A rename asks that of each directory that
/// it moves or replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nesting {
    pub(crate) inner: Ino,
    pub(crate) outer: Ino,
}

/// What a rename of `moved` asks, and what it asks of the name that it replaces.
fn nestings(
    source_parent: Ino,
    target_parent: Ino,
    moved: &DentryRecord,
    old: Option<&DentryRecord>,
) -> (Option<Nesting>, Option<Nesting>) {
    let ask = |inner: Ino, outer: &DentryRecord| {
        let is_asked = source_parent != target_parent && outer.file_type == FileType::Directory;
        is_asked.then_some(Nesting { inner, outer: outer.ino })
    };
    (ask(target_parent, moved), old.and_then(|old| ask(source_parent, old)))
}

/// What an operation asks; nothing if it moves no directory from one directory to another.
///
/// # Errors
/// The store's.
pub(crate) fn nestings_of(txn: &Transaction<'_>, op: &MetaOp) -> Result<Vec<Nesting>> {
    let MetaOp::Rename { parent, name, new_parent, new_name, .. } = op else {
        return Ok(Vec::new());
    };
    if parent == new_parent {
        return Ok(Vec::new());
    }
    let Some(moved) = txn.dentry(*parent, name)? else { return Ok(Vec::new()) };
    let old = txn.dentry(*new_parent, new_name)?;
    let (first, second) = nestings(*parent, *new_parent, &moved, old.as_ref());
    Ok(first.into_iter().chain(second).collect())
}

/// Refuses to move a directory into itself, and to replace a directory that contains the source.
fn check_nesting(
    txn: &mut Transaction<'_>,
    source_parent: Ino,
    target_parent: Ino,
    moved: &DentryRecord,
    old: Option<&DentryRecord>,
    mode: RenameMode,
) -> Result<()> {
    let into_itself = Error::new(ErrorKind::Invalid, "a directory cannot move into itself");
    let (of_moved, of_old) = nestings(source_parent, target_parent, moved, old);
    let is_so = |nesting: Option<Nesting>| nesting.map_or(Ok(false), |asked| holds(txn, asked));
    if is_so(of_moved)? {
        return Err(into_itself);
    }
    if is_so(of_old)? {
        return Err(match mode {
            RenameMode::Exchange => into_itself,
            _ => ErrorKind::NotEmpty.into(),
        });
    }
    Ok(())
}

fn holds(txn: &Transaction<'_>, asked: Nesting) -> Result<bool> {
    if let Some((_, answer)) = txn.known.iter().find(|(nesting, _)| *nesting == asked) {
        return Ok(*answer);
    }
    let answer = Climb::new(asked).go(usize::MAX, |ino| txn.parent(ino))?;
    Ok(answer.expect("invariant: a walk without a limit ends"))
}

/// A walk from a directory to the root, which looks for another directory. It can be made in parts.
pub(crate) struct Climb {
    asked: Nesting,
    at: Ino,
    steps: u64,
    /// Where the walk was after the last power of two of steps. A damaged chain of parents that
    /// loops comes there again (Brent, "An improved Monte Carlo factorization algorithm", 1980).
    mark: Ino,
}

impl Climb {
    pub(crate) fn new(asked: Nesting) -> Climb {
        Climb { asked, at: asked.inner, steps: 0, mark: Ino::ROOT }
    }

    /// Takes up to `steps_max` steps; `parent` gives the parent of a directory. `None`: the answer
    /// is not known yet.
    ///
    /// # Errors
    /// `Corrupt` if there is no way to the root, and those of `parent`.
    pub(crate) fn go(
        &mut self,
        steps_max: usize,
        parent: impl Fn(Ino) -> Result<Ino>,
    ) -> Result<Option<bool>> {
        for _ in 0..steps_max {
            if self.at == self.asked.outer {
                return Ok(Some(true));
            }
            if self.at == Ino::ROOT {
                return Ok(Some(false));
            }
            self.at = parent(self.at)?;
            if self.at == self.mark && self.at != Ino::ROOT {
                let detail = format!("directory {} has no way to the root", self.asked.inner);
                return Err(Error::new(ErrorKind::Corrupt, detail));
            }
            self.steps += 1;
            if self.steps.is_power_of_two() {
                self.mark = self.at;
            }
        }
        Ok(None)
    }
}

fn replace(
    txn: &mut Transaction<'_>,
    source: Name<'_>,
    target: Name<'_>,
    moved: &DentryRecord,
    old: &DentryRecord,
    open: bool,
) -> Result<MetaReply> {
    match (moved.file_type == FileType::Directory, old.file_type == FileType::Directory) {
        (true, false) => return Err(ErrorKind::NotDirectory.into()),
        (false, true) => return Err(ErrorKind::IsDirectory.into()),
        (true, true) if txn.inode(old.ino)?.entries > 0 => return Err(ErrorKind::NotEmpty.into()),
        _ => {}
    }
    txn.remove_entry(source.parent, source.name, moved)?;
    txn.replace_entry(target.parent, target.name, old, Target::from(*moved))?;
    arrive(txn, moved, target.parent)?;
    Ok(MetaReply::Removed(Some(txn.drop_link(old.ino, open)?)))
}

fn exchange(
    txn: &mut Transaction<'_>,
    source: Name<'_>,
    target: Name<'_>,
    moved: &DentryRecord,
    old: &DentryRecord,
) -> Result<MetaReply> {
    txn.replace_entry(source.parent, source.name, moved, Target::from(*old))?;
    txn.replace_entry(target.parent, target.name, old, Target::from(*moved))?;
    arrive(txn, moved, target.parent)?;
    arrive(txn, old, source.parent)?;
    Ok(MetaReply::Removed(None))
}

/// Updates an inode that has just got a name in `parent`.
fn arrive(txn: &mut Transaction<'_>, moved: &DentryRecord, parent: Ino) -> Result<()> {
    let time = txn.time;
    let record = txn.inode_mut(moved.ino)?;
    record.ctime = time;
    if moved.file_type == FileType::Directory {
        record.parent = parent;
    }
    Ok(())
}

#[cfg(test)]
#[path = "rename_test.rs"]
mod rename_test;
