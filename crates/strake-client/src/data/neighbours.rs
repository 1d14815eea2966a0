//! Reading ahead of programs that read small files one after the other: see `inode/listed.rs`.

use crate::context::Shared;
use crate::inode::queue::Job;
use crate::memory::file::Content;
use std::sync::Arc;
use strake_proto::{Ino, Result};

/// A file is read from its beginning: asks for the next ones, if they are likely to be read.
pub(crate) fn run_ahead(shared: &Shared, ino: Ino) {
    if shared.settings.prefetch_blocks == 0 {
        return;
    }
    let wanted = shared.neighbours.read(ino);
    for ino in wanted {
        // Whoever reads it in earnest finds out what is wrong with it.
        let _ = fetch(shared, ino);
    }
}

fn fetch(shared: &Shared, ino: Ino) -> Result<()> {
    let inode = shared.table.pin(ino);
    let file = shared.file(&inode)?;
    let job = {
        let Some(content) = file.content.try_read() else { return Ok(()) };
        let Content::Object(layout) = &*content else { return Ok(()) };
        let cold = file.find_block(0).is_none() && file.stored_limit(layout, 0) > 0;
        cold.then(|| Job { inode, file: Arc::clone(&file), index: 0 })
    };
    if let Some(job) = job {
        shared.prefetch.push(job);
    }
    Ok(())
}
