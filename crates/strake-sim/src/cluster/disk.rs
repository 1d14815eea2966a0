//! A node's disk as its process has it.
//!
//! A process that was killed still has threads in a simulation, until they notice. What these
//! threads do from then on must reach nobody: the disk is *detached* from the process, which goes
//! on with a copy, and the node's next process has the disk itself.

use std::io;
use std::sync::Arc;
use strake_env::sync::Mutex;
use strake_env::{Disk, SimDisk};

/// See the head of this file.
pub(crate) struct AttachedDisk(Mutex<Arc<SimDisk>>);

impl AttachedDisk {
    pub(crate) fn new(disk: &Arc<SimDisk>) -> Arc<AttachedDisk> {
        Arc::new(AttachedDisk(Mutex::new(Arc::clone(disk))))
    }

    fn now(&self) -> Arc<SimDisk> {
        Arc::clone(&self.0.lock())
    }

    /// The process goes on with a copy. Returns the disk.
    pub(crate) fn detach(&self) -> Arc<SimDisk> {
        let mut disk = self.0.lock();
        let copy = disk.copy();
        std::mem::replace(&mut disk, copy)
    }
}

impl Disk for AttachedDisk {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.now().read_at(offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.now().write_at(offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.now().sync()
    }

    fn len(&self) -> u64 {
        self.now().len()
    }

    fn reserve(&self, offset: u64, length: u64) -> io::Result<()> {
        self.now().reserve(offset, length)
    }

    fn discard(&self, offset: u64, length: u64) {
        self.now().discard(offset, length);
    }
}
