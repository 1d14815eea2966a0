//! An inode as it is when it has been made. The state machine and a client that knows the directory
//! come to the same.

use crate::attr::{Attr, FileType, Timestamp};
use crate::ids::{Generation, Ino};
use crate::meta::{FileData, Inode, NewInode};

const SETGID: u32 = 0o2000;

impl NewInode {
    /// The permission bits before the umask or a default ACL, and the group, in a directory with
    /// these permission bits and this group. A setgid directory passes its group on, and the bit
    /// itself to directories.
    pub fn inherited(&self, (directory, group): (u32, u32)) -> (u32, u32) {
        let permissions = self.permissions & 0o7777;
        if directory & SETGID == 0 {
            return (permissions, self.gid);
        }
        let passes_bit = self.file_type == FileType::Directory;
        (permissions | if passes_bit { SETGID } else { 0 }, group)
    }

    /// This inode with all that it inherits in a directory without a default ACL. The umask is
    /// applied.
    pub fn resolved(&self, directory: (u32, u32)) -> NewInode {
        let (permissions, gid) = self.inherited(directory);
        let permissions = permissions & !(self.umask & 0o777);
        NewInode { permissions, umask: 0, gid, target: self.target.clone(), ..*self }
    }

    /// The inode when it has been made at `time`, with its first name. It inherits nothing any more
    /// ([`NewInode::resolved`]).
    pub fn made(&self, parent: Ino, ino: Ino, time: Timestamp) -> Inode {
        let is_directory = self.file_type == FileType::Directory;
        let is_symlink = self.file_type == FileType::Symlink;
        let attr = Attr {
            ino,
            generation: Generation(1),
            file_type: self.file_type,
            permissions: if is_symlink { 0o777 } else { self.permissions & 0o7777 },
            links: if is_directory { 2 } else { 1 },
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.target.len() as u64,
            allocated: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        };
        let parent = if is_directory { parent } else { Ino(0) };
        Inode { attr, data: FileData::Empty, parent, has_acl: false, has_xattrs: false }
    }
}
