//! What repair needs of a client that may have dirty data: it can have the data flushed, and look
//! at a block or a file while no other thread changes it. A mount implements this with its locks.

use strake_proto::{BlockIndex, Ino, ObjectLayout, Result};

/// A file as the client has it in memory. The metadata may not know of all of it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileNow {
    /// The file's size.
    pub size: u64,
    /// Bytes on disks that the file has gained since the metadata was last told.
    pub untold: i64,
}

/// The outcome of moving a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Its bytes lie by the newest layout.
    Done,
    /// It is gone, or has its bytes elsewhere by now.
    Elsewhere,
    /// It was changed faster than it could be copied.
    InUse,
}

/// See the file's head.
pub trait Exclusion: Send + Sync {
    /// Makes everything durable that was written before this call. Returns the bytes that had to be
    /// sent.
    ///
    /// # Errors
    /// If something could not be made durable.
    fn flush_all(&self) -> Result<u64>;

    /// Takes a file from all other clients for a moment. Afterwards the metadata has all that they
    /// wrote to it before, and none of them knows of an object that the metadata has only reserved.
    ///
    /// # Errors
    /// If the file cannot be taken.
    fn settle(&self, ino: Ino) -> Result<()>;

    /// Runs `work` once while no other thread writes this block or moves the file's bytes. `work`
    /// is told whether the block is stable on the NSDs, which means that no part of it is on its
    /// way to them and they have lost none. Returns false without running `work` if the file is
    /// gone or has its bytes elsewhere.
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

    /// Runs `work` once while no other thread reads, writes or cuts the file. Returns false without
    /// running `work` if the file is gone or has its bytes elsewhere.
    ///
    /// # Errors
    /// Those of `work`.
    fn with_file(
        &self,
        ino: Ino,
        layout: &ObjectLayout,
        work: &mut dyn FnMut(FileNow) -> Result<()>,
    ) -> Result<bool>;

    /// Writes a block anew. Like every write, this makes a version above all others. Does nothing
    /// if the file is gone or has its bytes elsewhere.
    ///
    /// # Errors
    /// `Io` if too many strips are away; `NoSpace`.
    fn rewrite(&self, ino: Ino, layout: &ObjectLayout, block: BlockIndex) -> Result<()>;

    /// Moves a file's bytes from this object to one of the newest layout, while the file is used.
    /// `go_on` is called with the bytes that were copied while the file was used; an error ends the
    /// move, and nothing has changed then.
    ///
    /// # Errors
    /// Those of `go_on`; `NoSpace`; `Io` if too many strips are away; the metadata's.
    fn move_file(
        &self,
        ino: Ino,
        layout: &ObjectLayout,
        go_on: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<Moved>;
}
