//! POSIX access control lists as Linux keeps and obeys them. Metadata and client share these pure
//! functions, so both decide alike.
//!
//! The form is that of the extended attributes `system.posix_acl_access` and
//! `system.posix_acl_default` (little-endian):
//!
//! ```text
//! 0      4  version, 2
//! 4+8i   2  tag: 1 owner, 2 user, 4 owning group, 8 group, 16 mask, 32 others
//! 6+8i   2  permissions: 4 read, 2 write, 1 execute
//! 8+8i   4  user or group id; 0xFFFF_FFFF for the tags that have none
//! ```
//!
//! Invariants of an [`Acl`]: it has one owner, one owning-group and one others entry. It has a mask
//! if it names a user or a group. Entries are in the order of the tags above. Users may stand in
//! any order among themselves, and so may groups: Linux accepts that and shows them as they were
//! set.

use crate::attr::{Attr, FileType};
use crate::error::{Error, ErrorKind, Result};

/// The name of the attribute that has the access ACL.
pub const ACCESS_NAME: &[u8] = b"system.posix_acl_access";
/// The name of the attribute that has the ACL that new entries of a directory inherit.
pub const DEFAULT_NAME: &[u8] = b"system.posix_acl_default";

/// The caller wants to read.
pub const READ: u32 = 4;
/// The caller wants to write.
pub const WRITE: u32 = 2;
/// The caller wants to execute or search.
pub const EXECUTE: u32 = 1;

const VERSION: u32 = 2;
const ID_NONE: u32 = u32::MAX;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

/// The user or group that an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclTag {
    /// The inode's owner.
    Owner,
    /// A user.
    User(u32),
    /// The inode's group.
    OwningGroup,
    /// A group.
    Group(u32),
    /// The most that all entries but those of the owner and others can grant.
    Mask,
    /// Everyone else.
    Others,
}

/// One line of an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// The user or group that it is about.
    pub tag: AclTag,
    /// The sum of [`READ`], [`WRITE`] and [`EXECUTE`]: 0..=7.
    pub permissions: u32,
}

/// A valid ACL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// An ACL of these entries.
    ///
    /// # Errors
    /// `Invalid` if Linux's `posix_acl_valid` would refuse it.
    pub fn new(entries: Vec<AclEntry>) -> Result<Acl> {
        if valid(&entries) {
            Ok(Acl { entries })
        } else {
            Err(Error::new(ErrorKind::Invalid, "the ACL lacks an entry or is out of order"))
        }
    }

    /// Reads Linux's form. An empty value, or one without entries, is no ACL.
    ///
    /// # Errors
    /// `NotSupported` for another version, `Invalid` for anything else that is malformed.
    pub fn from_xattr(bytes: &[u8]) -> Result<Option<Acl>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let bad = || Error::new(ErrorKind::Invalid, "the ACL attribute is malformed");
        let (header, mut rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or_else(bad)?;
        if u32::from_le_bytes(*header) != VERSION {
            return Err(Error::new(ErrorKind::NotSupported, "ACL attributes have version 2 only"));
        }
        if rest.len() % ENTRY_BYTES != 0 {
            return Err(bad());
        }
        let mut entries = Vec::with_capacity(rest.len() / ENTRY_BYTES);
        while let Some((entry, after)) = rest.split_first_chunk::<ENTRY_BYTES>() {
            let [tag0, tag1, permissions0, permissions1, id @ ..] = *entry;
            let id = u32::from_le_bytes(id);
            let tag = match u16::from_le_bytes([tag0, tag1]) {
                1 => AclTag::Owner,
                2 if id != ID_NONE => AclTag::User(id),
                4 => AclTag::OwningGroup,
                8 if id != ID_NONE => AclTag::Group(id),
                16 => AclTag::Mask,
                32 => AclTag::Others,
                _ => return Err(bad()),
            };
            let permissions = u32::from(u16::from_le_bytes([permissions0, permissions1]));
            entries.push(AclEntry { tag, permissions });
            rest = after;
        }
        if entries.is_empty() { Ok(None) } else { Acl::new(entries).map(Some) }
    }

    /// Linux's form.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + ENTRY_BYTES * self.entries.len());
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            let (tag, id): (u16, u32) = match entry.tag {
                AclTag::Owner => (1, ID_NONE),
                AclTag::User(id) => (2, id),
                AclTag::OwningGroup => (4, ID_NONE),
                AclTag::Group(id) => (8, id),
                AclTag::Mask => (16, ID_NONE),
                AclTag::Others => (32, ID_NONE),
            };
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&(entry.permissions as u16).to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    /// Its entries, in order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// True if mode bits alone say the same. Then no ACL needs to be stored.
    pub fn is_mode_alone(&self) -> bool {
        self.entries.len() == 3
    }

    /// The nine permission bits that `stat` shows. If there is a mask, it is shown as the group's.
    pub fn mode(&self) -> u32 {
        let mut mode = 0;
        for entry in &self.entries {
            match entry.tag {
                AclTag::Owner => mode |= entry.permissions << 6,
                AclTag::OwningGroup => mode |= entry.permissions << 3,
                AclTag::Others => mode |= entry.permissions,
                AclTag::Mask => mode = (mode & !0o070) | entry.permissions << 3,
                AclTag::User(_) | AclTag::Group(_) => {}
            }
        }
        mode
    }

    /// Follows a `chmod`. The group bits set the mask if there is one, else the owning group.
    pub fn change_mode(&mut self, mode: u32) {
        let masked = self.entries.iter().any(|entry| entry.tag == AclTag::Mask);
        for entry in &mut self.entries {
            match entry.tag {
                AclTag::Owner => entry.permissions = (mode >> 6) & 7,
                AclTag::Mask => entry.permissions = (mode >> 3) & 7,
                AclTag::OwningGroup if !masked => entry.permissions = (mode >> 3) & 7,
                AclTag::Others => entry.permissions = mode & 7,
                AclTag::OwningGroup | AclTag::User(_) | AclTag::Group(_) => {}
            }
        }
    }

    /// The mode and access ACL that a new inode inherits from its directory's default ACL. `mode`
    /// is the one that the caller asked for, all 12 bits, without the umask. The ACL is `None` if
    /// the mode alone says the same. A new directory also gets the default ACL itself.
    pub fn inherit(&self, mode: u32) -> (u32, Option<Acl>) {
        let masked = self.entries.iter().any(|entry| entry.tag == AclTag::Mask);
        let mut access = self.clone();
        for entry in &mut access.entries {
            match entry.tag {
                AclTag::Owner => entry.permissions &= mode >> 6,
                AclTag::Mask => entry.permissions &= mode >> 3,
                AclTag::OwningGroup if !masked => entry.permissions &= mode >> 3,
                AclTag::Others => entry.permissions &= mode,
                AclTag::OwningGroup | AclTag::User(_) | AclTag::Group(_) => {}
            }
        }
        let mode = (mode & !0o777) | access.mode();
        (mode, (!access.is_mode_alone()).then_some(access))
    }

    /// True if the ACL grants all of `want` to a caller who is not the owner.
    fn permits(
        &self,
        want: u32,
        gid: u32,
        uid: u32,
        in_group: &mut dyn FnMut(u32) -> bool,
    ) -> bool {
        let mask = self
            .entries
            .iter()
            .find(|entry| entry.tag == AclTag::Mask)
            .map_or(7, |entry| entry.permissions);
        // True once an entry of a group that the caller is in was seen. Then the bits of others do
        // not count.
        let mut member = false;
        for entry in &self.entries {
            let group = match entry.tag {
                AclTag::User(id) if id == uid => return entry.permissions & mask & want == want,
                AclTag::OwningGroup => gid,
                AclTag::Group(id) => id,
                AclTag::Others => return !member && entry.permissions & want == want,
                AclTag::Owner | AclTag::User(_) | AclTag::Mask => continue,
            };
            if in_group(group) {
                member = true;
                if entry.permissions & want == want {
                    return mask & want == want;
                }
            }
        }
        false
    }
}

/// True if the entries have the order and number that Linux demands.
fn valid(entries: &[AclEntry]) -> bool {
    #[derive(PartialEq)]
    enum Next {
        Owner,
        UserOrOwningGroup,
        GroupOrEnd,
        Others,
        Nothing,
    }
    let mut next = Next::Owner;
    let mut named = false;
    for entry in entries {
        if entry.permissions > 7 {
            return false;
        }
        next = match (entry.tag, next) {
            (AclTag::Owner, Next::Owner) => Next::UserOrOwningGroup,
            (AclTag::User(id), Next::UserOrOwningGroup) if id != ID_NONE => {
                named = true;
                Next::UserOrOwningGroup
            }
            (AclTag::OwningGroup, Next::UserOrOwningGroup) => Next::GroupOrEnd,
            (AclTag::Group(id), Next::GroupOrEnd) if id != ID_NONE => {
                named = true;
                Next::GroupOrEnd
            }
            (AclTag::Mask, Next::GroupOrEnd) => Next::Others,
            (AclTag::Others, Next::Others) => Next::Nothing,
            (AclTag::Others, Next::GroupOrEnd) if !named => Next::Nothing,
            _ => return false,
        };
    }
    next == Next::Nothing
}

/// True if mode bits and ACL let `uid` have all of `want` (of [`READ`], [`WRITE`], [`EXECUTE`]).
/// `acl` is the inode's access ACL, `None` if it has none. `in_group` says whether the caller is in
/// a group, by its own or a supplementary one. It is asked only if the answer depends on it. User 0
/// may do everything, except execute a file that nobody may execute.
pub fn permits(
    attr: &Attr,
    acl: Option<&Acl>,
    uid: u32,
    in_group: &mut dyn FnMut(u32) -> bool,
    want: u32,
) -> bool {
    let want = want & 7;
    if uid == 0 {
        let executable = attr.file_type == FileType::Directory || attr.permissions & 0o111 != 0;
        return want & EXECUTE == 0 || executable;
    }
    let mode = attr.permissions;
    if attr.uid == uid {
        return (mode >> 6) & want == want;
    }
    // Without group bits the mask is empty. Then Linux uses the bits of group and others.
    if let Some(acl) = acl.filter(|_| mode & 0o070 != 0) {
        return acl.permits(want, attr.gid, uid, in_group);
    }
    let differs = (mode ^ (mode >> 3)) & want != 0;
    let bits = if differs && in_group(attr.gid) { mode >> 3 } else { mode };
    bits & want == want
}

#[cfg(test)]
#[path = "acl_test.rs"]
mod acl_test;
