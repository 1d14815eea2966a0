//! Finds names of inodes by going through all directories, as `find -inum` does.

use std::collections::{BTreeSet, HashMap};
use strake_array::Array;
use strake_array::meta_link::wrong_reply;
use strake_proto::meta::{Cookie, MetaQuery, MetaReply};
use strake_proto::{FileType, Ino, Result};

/// So many inodes or entries are asked for at once.
const PAGE: u32 = 1024;
/// Deeper paths are not followed.
const DEPTH_MAX: usize = 4096;

/// A path for each wanted inode that has a name.
pub(super) fn of(array: &Array, wanted: BTreeSet<Ino>) -> Result<HashMap<Ino, String>> {
    let mut paths = HashMap::new();
    if wanted.is_empty() {
        return Ok(paths);
    }
    let mut parents: HashMap<Ino, Ino> = HashMap::new();
    let mut names: HashMap<Ino, (Ino, String)> = HashMap::new();
    let mut after = Ino(0);
    loop {
        let query = MetaQuery::ScanInodes { after, limit: PAGE };
        let MetaReply::Inodes(page) = array.meta.query(&query)? else {
            return Err(wrong_reply());
        };
        let Some(last) = page.last() else { break };
        after = last.attr.ino;
        for inode in page.iter().filter(|one| one.attr.file_type == FileType::Directory) {
            let dir = inode.attr.ino;
            parents.insert(dir, inode.parent);
            visit_names(array, dir, &mut |name, ino| {
                if wanted.contains(&ino) {
                    names.insert(ino, (dir, String::from_utf8_lossy(name).into_owned()));
                }
            })?;
        }
    }
    for (ino, (dir, name)) in names {
        if let Some(above) = path_of_directory(array, &parents, dir)? {
            paths.insert(ino, format!("{above}/{name}"));
        }
    }
    Ok(paths)
}

fn visit_names(array: &Array, dir: Ino, visit: &mut dyn FnMut(&[u8], Ino)) -> Result<()> {
    let mut after: Cookie = 0;
    loop {
        let query = MetaQuery::ReadDir { dir, after, limit: PAGE, with_inodes: false };
        let Ok(MetaReply::Entries { entries, end }) = array.meta.query(&query) else {
            // The directory was removed meanwhile.
            return Ok(());
        };
        entries.iter().for_each(|entry| visit(&entry.name, entry.ino));
        match entries.last() {
            Some(last) if !end => after = last.cookie,
            _ => return Ok(()),
        }
    }
}

/// The path of a directory, empty for the root. `None` if it has no path.
fn path_of_directory(
    array: &Array,
    parents: &HashMap<Ino, Ino>,
    dir: Ino,
) -> Result<Option<String>> {
    let mut path = String::new();
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at == Ino::ROOT {
            return Ok(Some(path));
        }
        let Some(parent) = parents.get(&at) else { return Ok(None) };
        let mut own = None;
        visit_names(array, *parent, &mut |name, ino| {
            if ino == at {
                own = Some(String::from_utf8_lossy(name).into_owned());
            }
        })?;
        let Some(own) = own else { return Ok(None) };
        path = format!("/{own}{path}");
        at = *parent;
    }
    Ok(None)
}
