//! Looks ahead of a program that looks at the entries of a directory one after the other: `find`,
//! `ls -l`, `du`, `rsync`.
//!
//! Beside other mounts an inode is looked at under its token, and then the metadata is asked for
//! it. The kernel is shown no inodes with a listing, so that would be two messages and two waits
//! for each entry. If a program goes through a listing ([`crate::inode::listing`]), the tokens of
//! the next entries are asked for with messages that are sent together, and one question brings the
//! inodes.
//!
//! A wrong guess costs others nothing but that they give up what a look at the file would take,
//! too. Nothing here holds a token or waits for long: another client may have much to flush.

use crate::inode::open_table::Pinned;
use crate::mount::Mount;
use std::collections::BTreeMap;
use std::time::Duration;
use strake_proto::Ino;
use strake_proto::meta::{MetaQuery, MetaReply};

/// The number of entries that are asked for together.
const AHEAD: usize = 32;
/// The longest wait for their tokens.
const WAIT_MAX: Duration = Duration::from_millis(10);

/// Fetches an inode that a name in `parent` led to, and those that follow, if a program goes
/// through the listing. The caller holds no token. Files that cannot be fetched are left to the
/// operations that need them.
pub(crate) fn look_ahead(mount: &Mount, parent: Ino, ino: Ino) {
    let Some(tokens) = &mount.tokens else { return };
    if tokens.may_look(ino) {
        return;
    }
    let Some(dir) = mount.table.find(parent) else { return };
    let Some((after, files)) = dir.core.lock().names.ahead(AHEAD) else { return };
    tokens.fetch(&files, WAIT_MAX);
    let mut wanted: BTreeMap<Ino, (Pinned, u64)> = BTreeMap::new();
    for ino in &files {
        let inode = mount.table.pin(*ino);
        // It is read before the look at the token. A thread that gives the token up raises the
        // epoch first, so that an answer from the time without the token is not taken in.
        let epoch = inode.core.lock().epoch();
        if tokens.may_look(*ino) {
            wanted.insert(*ino, (inode, epoch));
        }
    }
    if wanted.is_empty() {
        return;
    }
    let limit = files.len() as u32;
    let query = MetaQuery::ReadDir { dir: parent, after, limit, with_inodes: true };
    let entries = match mount.array.meta.query(&query) {
        Ok(MetaReply::Entries { entries, .. }) => entries,
        _ => Vec::new(),
    };
    for found in entries.iter().filter_map(|entry| entry.inode.as_ref()) {
        if let Some((inode, epoch)) = wanted.get(&found.attr.ino) {
            let mut core = inode.core.lock();
            if !core.is_loaded() {
                core.absorb(found, *epoch);
            }
        }
    }
    // A file that was removed meanwhile stays for as long as a client has it open.
    wanted.values().for_each(|(inode, _)| mount.let_go_if_nameless(inode));
    mount.fetched.keep(wanted.into_values().map(|(inode, _)| inode));
}
