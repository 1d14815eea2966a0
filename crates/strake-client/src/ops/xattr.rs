//! Extended attributes, and who may see and change them.
//!
//! - `user.` exists on regular files and directories. Their permissions apply.
//! - `trusted.` is for root alone, and hidden from others.
//! - `security.` can be read by all, and changed by root.
//! - POSIX ACLs are changed by the owner.

use crate::inode::core::{Core, InodeState};
use crate::mount::Mount;
use crate::permissions::{ACL_ACCESS, ACL_DEFAULT, READ, WRITE, check_owner, in_group};
use strake_array::meta_link::wrong_reply;
use strake_proto::limits::{NAME_BYTES_MAX, XATTR_LIST_BYTES_MAX, XATTR_VALUE_BYTES_MAX};
use strake_proto::meta::{CAPABILITY_NAME, MetaOp, MetaQuery, MetaReply, XattrMode};
use strake_proto::{Attr, Caller, ErrorKind, FileType, Result};

enum Namespace {
    User,
    Trusted,
    Security,
    Acl,
}

fn namespace_of(name: &[u8]) -> Result<Namespace> {
    let within = |prefix: &[u8]| name.len() > prefix.len() && name.starts_with(prefix);
    if name.len() > NAME_BYTES_MAX {
        return Err(ErrorKind::Range.into());
    }
    if within(b"user.") {
        Ok(Namespace::User)
    } else if within(b"trusted.") {
        Ok(Namespace::Trusted)
    } else if within(b"security.") {
        Ok(Namespace::Security)
    } else if name == ACL_ACCESS || name == ACL_DEFAULT {
        Ok(Namespace::Acl)
    } else {
        Err(ErrorKind::NotSupported.into())
    }
}

/// See [`crate::Vfs::getxattr`].
pub(crate) fn get(
    mount: &Mount,
    caller: &Caller,
    inode: &InodeState,
    name: &[u8],
) -> Result<Vec<u8>> {
    match namespace_of(name)? {
        Namespace::Trusted if caller.uid != 0 => return Err(ErrorKind::NoAttribute.into()),
        Namespace::User => {
            let attr = mount.loaded(inode, Core::attr)?;
            if !has_user_attributes(&attr) {
                return Err(ErrorKind::NoAttribute.into());
            }
            mount.check_access(caller, inode, READ)?;
        }
        _ => {}
    }
    // Linux asks for capabilities before the first write of each file.
    let is_absent = |core: &Core| match name {
        ACL_ACCESS => !core.has_acl,
        ACL_DEFAULT => core.has_no_default_acl(),
        CAPABILITY_NAME => !core.has_xattrs || core.no_capability,
        _ => !core.has_xattrs,
    };
    if mount.loaded(inode, is_absent)? {
        return Err(ErrorKind::NoAttribute.into());
    }
    match mount.array.meta.query(&MetaQuery::GetXattr { ino: inode.ino, name: name.to_vec() })? {
        MetaReply::Bytes(bytes) => Ok(bytes),
        _ => Err(wrong_reply()),
    }
}

fn has_user_attributes(attr: &Attr) -> bool {
    matches!(attr.file_type, FileType::Regular | FileType::Directory)
}

/// Whether a file has capabilities. This is asked before each change of its contents, so the answer
/// is kept.
pub(crate) fn has_capability(mount: &Mount, inode: &InodeState) -> Result<bool> {
    let look = |core: &Core| (core.has_xattrs && !core.no_capability, core.epoch());
    let (is_possible, epoch) = mount.loaded(inode, look)?;
    if !is_possible {
        return Ok(false);
    }
    let query = MetaQuery::GetXattr { ino: inode.ino, name: CAPABILITY_NAME.to_vec() };
    match mount.array.meta.query(&query) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NoAttribute => {
            let mut core = inode.core.lock();
            core.no_capability = core.epoch() == epoch;
            Ok(false)
        }
        // The file is gone.
        Err(error) if error.kind() == ErrorKind::Stale => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a file's capabilities. Linux does so when the contents change, whoever changes them.
pub(crate) fn remove_capability(mount: &Mount, inode: &InodeState) -> Result<()> {
    if !has_capability(mount, inode)? {
        return Ok(());
    }
    match remove(mount, &Caller::ROOT, inode, CAPABILITY_NAME) {
        // Another thread has removed them.
        Err(error) if error.kind() == ErrorKind::NoAttribute => Ok(()),
        result => result,
    }
}

/// Whether an inode may have a default ACL, which only directories have. This is asked before
/// inodes are made in a directory, so the answer is kept. True also if it cannot be told.
pub(crate) fn may_have_default_acl(mount: &Mount, inode: &InodeState) -> Result<bool> {
    let epoch = {
        let core = inode.core.lock();
        if core.has_no_default_acl() {
            return Ok(false);
        }
        core.acl_epoch()
    };
    let query = MetaQuery::GetXattr { ino: inode.ino, name: ACL_DEFAULT.to_vec() };
    match mount.array.meta.query(&query) {
        Err(error) if error.kind() == ErrorKind::NoAttribute => {
            let mut core = inode.core.lock();
            core.no_default_acl = core.acl_epoch() == epoch;
            Ok(!core.no_default_acl)
        }
        Err(error) if error.kind() == ErrorKind::Io => Err(error),
        _ => Ok(true),
    }
}

/// See [`crate::Vfs::listxattr`].
pub(crate) fn list(mount: &Mount, caller: &Caller, inode: &InodeState) -> Result<Vec<Vec<u8>>> {
    // Programs that copy trees ask this of each file.
    let may_have_others = mount.loaded(inode, |core| core.has_xattrs || core.has_acl)?;
    if !may_have_others && !may_have_default_acl(mount, inode)? {
        return Ok(Vec::new());
    }
    let MetaReply::Names(mut names) =
        mount.array.meta.query(&MetaQuery::ListXattr { ino: inode.ino })?
    else {
        return Err(wrong_reply());
    };
    if caller.uid != 0 {
        names.retain(|name| !name.starts_with(b"trusted."));
    }
    if names.iter().map(|name| name.len() + 1).sum::<usize>() > XATTR_LIST_BYTES_MAX {
        return Err(ErrorKind::TooBig.into());
    }
    Ok(names)
}

/// Checks that the caller may change the attribute.
fn check_change(mount: &Mount, caller: &Caller, inode: &InodeState, name: &[u8]) -> Result<Attr> {
    let attr = mount.loaded(inode, Core::attr)?;
    let not_permitted = || Err(ErrorKind::NotPermitted.into());
    match namespace_of(name)? {
        Namespace::Trusted | Namespace::Security if caller.uid != 0 => return not_permitted(),
        Namespace::Trusted | Namespace::Security => {}
        Namespace::Acl => {
            if attr.file_type == FileType::Symlink {
                return Err(ErrorKind::NotSupported.into());
            }
            check_owner(caller, &attr)?;
            if name == ACL_DEFAULT && attr.file_type != FileType::Directory {
                return Err(ErrorKind::Access.into());
            }
        }
        Namespace::User => {
            if !has_user_attributes(&attr) {
                return not_permitted();
            }
            let sticky = attr.file_type == FileType::Directory && attr.permissions & 0o1000 != 0;
            if sticky {
                check_owner(caller, &attr)?;
            }
            mount.check_access(caller, inode, WRITE)?;
        }
    }
    Ok(attr)
}

/// See [`crate::Vfs::setxattr`].
pub(crate) fn set(
    mount: &Mount,
    caller: &Caller,
    inode: &InodeState,
    (name, value): (&[u8], &[u8]),
    mode: XattrMode,
    clear_setgid: bool,
) -> Result<()> {
    if value.len() > XATTR_VALUE_BYTES_MAX {
        return Err(ErrorKind::TooBig.into());
    }
    let attr = check_change(mount, caller, inode, name)?;
    let outside = name == ACL_ACCESS && caller.uid != 0 && !in_group(caller, attr.gid);
    // An ACL changes permissions.
    mount.tell_kept_of(inode)?;
    let result = mount.array.meta.apply(MetaOp::SetXattr {
        ino: inode.ino,
        name: name.to_vec(),
        value: value.to_vec(),
        mode,
        clear_setgid: clear_setgid || outside,
    });
    inode.core.lock().forget();
    result.map(|_| ())
}

/// See [`crate::Vfs::removexattr`].
pub(crate) fn remove(
    mount: &Mount,
    caller: &Caller,
    inode: &InodeState,
    name: &[u8],
) -> Result<()> {
    // Any caller may remove capabilities here: the kernel does it in the name of a program that
    // changes the contents. If a program asks for it directly, the kernel wants root's rights.
    if name != CAPABILITY_NAME {
        check_change(mount, caller, inode, name)?;
    }
    mount.tell_kept_of(inode)?;
    let result =
        mount.array.meta.apply(MetaOp::RemoveXattr { ino: inode.ino, name: name.to_vec() });
    inode.core.lock().forget();
    result.map(|_| ())
}
