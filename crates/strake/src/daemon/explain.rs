//! Answers what is known of a file.

use super::serve::Daemon;
use crate::commands::diag::explain::{Contents, Explained, Memory, OnNsd};
use crate::show::availability_name;
use strake_client::explain::{FileView, Place};
use strake_proto::{FileType, Ino, Result};

impl Daemon {
    /// Describes a file. At most `blocks` of its blocks are looked for on the disks.
    ///
    /// # Errors
    /// Those of [`strake_client::client::StrakeVfs::explain`].
    pub(super) fn explain(&self, inode: u64, blocks: u64) -> Result<Explained> {
        let view = self.life().vfs.explain(Ino(inode), blocks)?;
        let token = view.token.map(|held| match held {
            Some(strake_token::Mode::Shared) => "shared",
            Some(strake_token::Mode::Exclusive) => "exclusive",
            Some(strake_token::Mode::Writing) => "writing",
            None => "none",
        });
        Ok(Explained {
            inode,
            file_type: type_name(view.attr.file_type).to_owned(),
            size_bytes: view.attr.size,
            allocated_bytes: view.attr.allocated,
            contents: self.contents(&view),
            open_handles: view.handles,
            memory: Memory {
                blocks: view.memory.blocks,
                bytes: view.memory.bytes,
                dirty_blocks: view.memory.dirty,
                unstable_blocks: view.memory.unstable,
                in_metadata_log: view.memory.hardened,
            },
            token: token.map(str::to_owned),
            locks: Vec::new(),
        })
    }

    fn contents(&self, view: &FileView) -> Contents {
        let layout = match view.place {
            Place::NoFile => return Contents::NoFile,
            Place::Nowhere => return Contents::Nowhere,
            Place::Inode(bytes) => return Contents::Inode { bytes },
            Place::Object(layout) => layout,
        };
        let nsds = view.nsds.iter().map(|(nsd, on)| OnNsd {
            nsd: self.nsd_name(*nsd),
            availability: availability_name(on.availability).to_owned(),
            strips: on.present,
            missing: on.missing,
            damaged: on.damaged,
            away: on.away,
        });
        Contents::Blocks {
            code: layout.code.to_string(),
            block_size: layout.block_size,
            object: layout.object.0,
            layout_version: layout.layout.0,
            blocks: view.blocks,
            looked: view.looked,
            holes: view.holes,
            degraded: view.degraded,
            unreadable: view.unreadable,
            nsds: nsds.collect(),
        }
    }
}

fn type_name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "named pipe",
        FileType::Socket => "socket",
        FileType::CharDevice => "character device",
        FileType::BlockDevice => "block device",
    }
}
