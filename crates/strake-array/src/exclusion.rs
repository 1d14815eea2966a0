//! Repair needs this of whatever may hold dirty data: that it is flushed, and that nobody changes
//! a block or a file while it is looked at. A mount grants it with its locks.

use strake_proto::{BlockIndex, Ino, ObjectLayout, Result};

/// A file as its holder has it, which may be ahead of the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileNow {
    /// Its size.
    pub size: u64,
    /// Bytes on disks that it has gained and the metadata was not told of yet.
    pub untold: i64,
}

/// See the file's head.
pub trait Exclusion: Send + Sync {
    /// Makes everything durable that was written before. Returns the bytes that had to be sent.
    ///
    /// # Errors
    /// If something could not be made durable.
    fn flush_all(&self) -> Result<u64>;

    /// Runs `work` once while nobody else writes this block or moves the file's bytes. `work` is
    /// told whether what the NSDs have of the block is stable: nothing of it is on its way, nor was
    /// lost there. Returns false, with nothing run, if the file is gone or has its bytes elsewhere.
    ///
    /// # Errors
    /// Those of `work`.
    fn with_block(
        &self,
        ino: Ino,
        layout: &ObjectLayout,
        block: BlockIndex,
        work: &mut dyn FnMut(bool) -> Result<()>,
    ) -> Result<bool>;

    /// Runs `work` once while nobody else reads, writes or cuts the file. Returns false, with
    /// nothing run, if the file is gone or has its bytes elsewhere.
    ///
    /// # Errors
    /// Those of `work`.
    fn with_file(
        &self,
        ino: Ino,
        layout: &ObjectLayout,
        work: &mut dyn FnMut(FileNow) -> Result<()>,
    ) -> Result<bool>;

    /// Writes a block anew at a version above all others, as any writer does. Does nothing if the
    /// file is gone or has its bytes elsewhere.
    ///
    /// # Errors
    /// `Io` where too many strips are away; `NoSpace`.
    fn rewrite(&self, ino: Ino, layout: &ObjectLayout, block: BlockIndex) -> Result<()>;
}
