//! What the file systems of the examples have in common: handles, and the operations that none of
//! them needs.

use strake_client::vfs::Handle;
use strake_proto::Ino;

/// The inode of a handle, which is in its lower half.
pub(crate) fn inode(handle: Handle) -> Ino {
    Ino(handle.0 & u64::from(u32::MAX))
}

/// Operations of a `Vfs` that do nothing, or are not supported. Stands inside the `impl`.
macro_rules! unneeded_operations {
    () => {
        fn statfs(&self) -> Result<StatFs> {
            let (total, free, available) = (1 << 50, 1 << 50, 1 << 50);
            let (inodes_used, inodes_free) = (1, 1 << 32);
            Ok(StatFs { total, free, available, inodes_used, inodes_free, block_size: 4 << 20 })
        }
        fn remember(&self, _: Ino) {}
        fn forget(&self, _: Ino, _: u64) {}
        fn access(&self, _: &Caller, _: Ino, _: u32) -> Result<()> {
            Ok(())
        }
        fn readlink(&self, _: Ino) -> Result<Vec<u8>> {
            Err(strake_proto::ErrorKind::NotSupported.into())
        }
        fn symlink(&self, _: &Caller, _: Ino, _: &[u8], _: &[u8]) -> Result<Entry> {
            Err(strake_proto::ErrorKind::NotSupported.into())
        }
        fn link(&self, _: &Caller, _: Ino, _: Ino, _: &[u8]) -> Result<Entry> {
            Err(strake_proto::ErrorKind::NotSupported.into())
        }
        fn tmpfile(&self, _: &Caller, _: Ino, _: u32, _: OpenFlags) -> Result<(Entry, Opened)> {
            Err(strake_proto::ErrorKind::NotSupported.into())
        }
        fn flush(&self, _: Handle) -> Result<()> {
            Ok(())
        }
        fn fsync(&self, _: Handle) -> Result<()> {
            Ok(())
        }
        fn release(&self, _: Handle) {}
        fn fallocate(&self, _: Handle, _: Range<u64>, _: FallocateMode) -> Result<()> {
            Err(strake_proto::ErrorKind::NotSupported.into())
        }
        fn seek(&self, _: Handle, _: u64, _: SeekFor) -> Result<u64> {
            Err(strake_proto::ErrorKind::NotSupported.into())
        }
        fn copy_range(&self, _: (Handle, u64), _: (Handle, u64), _: u64) -> Result<u64> {
            Err(strake_proto::ErrorKind::NotSupported.into())
        }
        fn fsyncdir(&self, _: Ino) -> Result<()> {
            Ok(())
        }
        fn getxattr(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<Vec<u8>> {
            Err(ErrorKind::NoAttribute.into())
        }
        fn listxattr(&self, _: &Caller, _: Ino) -> Result<Vec<Vec<u8>>> {
            Ok(Vec::new())
        }
        fn setxattr(
            &self,
            _: &Caller,
            _: Ino,
            _: &[u8],
            _: &[u8],
            _: XattrMode,
            _: bool,
        ) -> Result<()> {
            Err(strake_proto::ErrorKind::NotSupported.into())
        }
        fn removexattr(&self, _: &Caller, _: Ino, _: &[u8]) -> Result<()> {
            Err(strake_proto::ErrorKind::NotSupported.into())
        }
        fn sync(&self) -> Result<u64> {
            Ok(0)
        }
    };
}
