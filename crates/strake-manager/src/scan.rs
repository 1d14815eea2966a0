//! All files that have blocks, as the metadata knows them.

use strake_array::Array;
use strake_array::meta_link::wrong_reply;
use strake_proto::meta::{FileData, Inode, MetaQuery, MetaReply};
use strake_proto::{Ino, ObjectLayout, Result};

/// Calls `visit` with every inode that has objects.
pub(crate) fn scan_objects(
    array: &Array,
    visit: &mut dyn FnMut(&Inode, &ObjectLayout) -> Result<()>,
) -> Result<()> {
    scan_inodes(array, &mut |inode| match &inode.data {
        FileData::Objects(layouts) => layouts.iter().try_for_each(|layout| visit(inode, layout)),
        FileData::Empty | FileData::Inline(_) => Ok(()),
    })
}

/// Calls `visit` with every inode.
pub(crate) fn scan_inodes(
    array: &Array,
    visit: &mut dyn FnMut(&Inode) -> Result<()>,
) -> Result<()> {
    let mut after = Ino(0);
    loop {
        let query = MetaQuery::ScanInodes { after, limit: 1024 };
        let MetaReply::Inodes(page) = array.meta.query(&query)? else {
            return Err(wrong_reply());
        };
        let Some(last) = page.last() else { return Ok(()) };
        after = last.attr.ino;
        page.iter().try_for_each(&mut *visit)?;
    }
}

/// Bytes that all files have on disks, without parity.
pub(crate) fn allocated(array: &Array) -> Result<u64> {
    match array.meta.query(&MetaQuery::Counts)? {
        MetaReply::Counts(counts) => Ok(counts.allocated),
        _ => Err(wrong_reply()),
    }
}
