//! Permission checks: mode bits, ACLs, the sticky bit, and the rules about owners.
//!
//! On a FUSE mount with `default_permissions` the kernel has checked before. For all other adapters
//! this is the only check.

use crate::inode::core::{Core, InodeState};
use crate::mount::Mount;
use std::sync::Arc;
use strake_proto::acl::{self, Acl};
use strake_proto::meta::{MetaQuery, MetaReply};
use strake_proto::{Attr, Caller, Error, ErrorKind, FileType, Groups, Result};

pub(crate) use strake_proto::acl::{EXECUTE, READ, WRITE};

/// The name of the access ACL's attribute.
pub(crate) const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
/// The name of the default ACL's attribute.
pub(crate) const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";

/// Whether the caller is in a group: its own group or a supplementary one.
pub(crate) fn in_group(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid
        || match &caller.groups {
            Groups::Known(groups) => groups.contains(&gid),
            Groups::OfProcess => process_groups(caller.pid).contains(&gid),
        }
}

/// The supplementary groups of a process on this machine. There are none if the process is gone.
fn process_groups(pid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.into_iter().flat_map(str::split_whitespace).filter_map(|gid| gid.parse().ok()).collect()
}

impl Mount {
    /// Checks that the caller has all permissions of `want` on an inode. Returns the attributes, of
    /// which times, links and sizes may be out of date.
    ///
    /// # Errors
    /// `Access`.
    pub(crate) fn check_access(
        &self,
        caller: &Caller,
        inode: &InodeState,
        want: u32,
    ) -> Result<Attr> {
        let (attr, has_acl, known) =
            self.for_access(inode, |core| (core.attr(), core.has_acl, core.acl.clone()))?;
        let acl = if has_acl && caller.uid != 0 && caller.uid != attr.uid && known.is_none() {
            self.fetch_acl(inode)?
        } else {
            known
        };
        let mut member = |gid| in_group(caller, gid);
        if acl::permits(&attr, acl.as_deref(), caller.uid, &mut member, want) {
            Ok(attr)
        } else {
            Err(ErrorKind::Access.into())
        }
    }

    fn fetch_acl(&self, inode: &InodeState) -> Result<Option<Arc<Acl>>> {
        let epoch = inode.core.lock().epoch();
        let query = MetaQuery::GetXattr { ino: inode.ino, name: ACL_ACCESS.to_vec() };
        let acl = match self.array.meta.query(&query) {
            Ok(MetaReply::Bytes(bytes)) => Acl::from_xattr(&bytes)?.map(Arc::new),
            Ok(_) => return Err(strake_array::meta_link::wrong_reply()),
            Err(error) if error.kind() == ErrorKind::NoAttribute => None,
            Err(error) => return Err(error),
        };
        let mut core = inode.core.lock();
        if core.epoch() == epoch {
            core.acl.clone_from(&acl);
        }
        Ok(acl)
    }

    /// Checks that the caller may add or remove names in a directory. Returns what
    /// [`Mount::check_access`] returns.
    pub(crate) fn check_directory_change(&self, caller: &Caller, dir: &InodeState) -> Result<Attr> {
        let attr = self.for_access(dir, Core::attr).map_err(no_names)?;
        if attr.file_type != FileType::Directory {
            return Err(ErrorKind::NotDirectory.into());
        }
        self.check_access(caller, dir, WRITE | EXECUTE)
    }
}

/// A directory that another client has removed has no names, like one that was removed here.
pub(crate) fn no_names(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Stale => Error::new(ErrorKind::NotFound, "the directory was removed"),
        _ => error,
    }
}

/// Checks that the caller is the owner or root.
///
/// # Errors
/// `NotPermitted`.
pub(crate) fn check_owner(caller: &Caller, attr: &Attr) -> Result<()> {
    if caller.uid == 0 || caller.uid == attr.uid {
        Ok(())
    } else {
        Err(ErrorKind::NotPermitted.into())
    }
}

/// Checks whether the sticky bit of `dir` lets the caller remove `victim` from it.
///
/// # Errors
/// `NotPermitted`.
pub(crate) fn check_sticky(caller: &Caller, dir: &Attr, victim: &Attr) -> Result<()> {
    const STICKY: u32 = 0o1000;
    let allowed = dir.permissions & STICKY == 0
        || caller.uid == 0
        || caller.uid == victim.uid
        || caller.uid == dir.uid;
    if allowed { Ok(()) } else { Err(ErrorKind::NotPermitted.into()) }
}

/// Whether these permission bits have setuid, or setgid with group execution.
pub(crate) fn has_privileges(permissions: u32) -> bool {
    permissions & 0o4000 != 0 || permissions & 0o2010 == 0o2010
}
