//! Reads ahead of programs that read small files one after the other: see `inode/listed.rs`.

use crate::inode::queue::Job;
use crate::memory::file::Content;
use crate::mount::Mount;
use std::sync::Arc;
use strake_proto::{Ino, Result};

/// Called when a file is read from its beginning: queues the files that are likely to be read next.
pub(crate) fn run_ahead(mount: &Mount, ino: Ino) {
    if mount.settings.prefetch_blocks == 0 {
        return;
    }
    let wanted = mount.neighbours.read(ino);
    for ino in wanted {
        // An error is ignored: the reader that needs the file gets it.
        let _ = fetch(mount, ino);
    }
}

fn fetch(mount: &Mount, ino: Ino) -> Result<()> {
    let inode = mount.table.pin(ino);
    let file = mount.file(&inode)?;
    let job = {
        let Some(content) = file.content.try_read() else { return Ok(()) };
        let Content::Object(layout) = &*content else { return Ok(()) };
        let cold = file.find_block(0).is_none() && file.stored_limit(layout, 0) > 0;
        cold.then(|| Job::new(inode, Arc::clone(&file), 0))
    };
    if let Some(job) = job {
        mount.prefetch.push(job);
    }
    Ok(())
}
