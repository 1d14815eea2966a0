//! A slow and obvious file system: a map of nodes, with each directory as a map of names. It counts
//! links, parents and sums anew for each question. The tests compare the state machine with it.

mod content;

use crate::ops::xattr::XATTR_TOTAL_BYTES_MAX;
use std::collections::{BTreeMap, BTreeSet};
use strake_proto::acl::{ACCESS_NAME, Acl, DEFAULT_NAME};
use strake_proto::limits::LINK_COUNT_MAX;
use strake_proto::meta::{
    AttrChange, Configuration, DirEntry, FileData, Inode, MetaEntry, MetaOp, MetaReply, NewInode,
    PendingRange, Removed, RenameMode, XattrMode,
};
use strake_proto::{
    Attr, BlockIndex, ClientId, ErrorKind, FileType, Generation, GrantNumber, Ino, NsdId, ObjectId,
    ObjectLayout, Timestamp, Version,
};

type Answer<T = MetaReply> = Result<T, ErrorKind>;

#[derive(Clone)]
struct Node {
    inode: Inode,
    /// A directory's names: inode and cookie.
    names: BTreeMap<Vec<u8>, (Ino, u64)>,
    next_cookie: u64,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    reserved: Vec<ObjectLayout>,
    /// Hardened units by number.
    hardened: BTreeMap<u64, Vec<u8>>,
    /// Set while the inode has no name: the client that has the inode open, and whether the inode
    /// may still get a name.
    orphan: Option<(ClientId, bool)>,
    /// The client that reserved each reserved object.
    reserved_by: BTreeMap<ObjectId, ClientId>,
}

/// The slow and obvious file system; see the module.
pub(crate) struct Model {
    nodes: BTreeMap<Ino, Node>,
    configuration: Configuration,
    next_ino: u64,
    next_object: u64,
    /// Object numbers that were given to clients, and that no object has yet.
    pub(crate) spare_objects: BTreeSet<ObjectId>,
    next_pending: u64,
    next_grant: u64,
    pub(crate) pending: BTreeMap<u64, PendingRange>,
    time: Timestamp,
    client: ClientId,
}

impl Model {
    pub(crate) fn new(configuration: Configuration, time: Timestamp) -> Model {
        let mut model = Model {
            nodes: BTreeMap::new(),
            configuration,
            next_ino: 1,
            next_object: 1,
            spare_objects: BTreeSet::new(),
            next_pending: 1,
            next_grant: 1,
            pending: BTreeMap::new(),
            time,
            client: ClientId(0),
        };
        let root = model.insert(FileType::Directory, 0o755, 0, 0);
        model.nodes.get_mut(&root).expect("just made").inode.parent = root;
        model
    }

    pub(crate) fn inos(&self) -> Vec<Ino> {
        self.nodes.keys().copied().collect()
    }

    pub(crate) fn orphans(&self) -> Vec<Ino> {
        self.nodes.iter().filter(|(_, node)| node.orphan.is_some()).map(|(ino, _)| *ino).collect()
    }

    pub(crate) fn allocated(&self) -> u64 {
        self.nodes.values().map(|node| node.inode.attr.allocated).sum()
    }

    pub(crate) fn xattrs(&self, ino: Ino) -> &BTreeMap<Vec<u8>, Vec<u8>> {
        &self.nodes[&ino].xattrs
    }

    /// An inode as a client should see it.
    pub(crate) fn show(&self, ino: Ino) -> Inode {
        let node = &self.nodes[&ino];
        let mut inode = node.inode.clone();
        inode.attr.links = self.links(ino);
        if inode.attr.file_type == FileType::Directory {
            inode.attr.size = node.names.len() as u64 * 32;
            if let Some(parent) = self.parent(ino) {
                inode.parent = parent;
            }
        }
        inode.has_acl = node.xattrs.contains_key(ACCESS_NAME);
        let is_acl = |name: &Vec<u8>| name == ACCESS_NAME || name == DEFAULT_NAME;
        inode.has_xattrs = node.xattrs.keys().any(|name| !is_acl(name));
        inode
    }

    pub(crate) fn list(&self, ino: Ino) -> Vec<DirEntry> {
        let mut entries: Vec<DirEntry> = self.nodes[&ino]
            .names
            .iter()
            .map(|(name, (ino, cookie))| DirEntry {
                cookie: *cookie,
                name: name.clone(),
                ino: *ino,
                file_type: self.file_type(*ino),
                inode: None,
            })
            .collect();
        entries.sort_by_key(|entry| entry.cookie);
        entries
    }

    pub(crate) fn is_directory(&self, ino: Ino) -> bool {
        self.nodes.get(&ino).is_some_and(|node| is_dir(node.inode.attr.file_type))
    }

    fn file_type(&self, ino: Ino) -> FileType {
        self.nodes[&ino].inode.attr.file_type
    }

    fn names_of(&self, ino: Ino) -> u32 {
        let all = self.nodes.values().flat_map(|node| node.names.values());
        all.filter(|(target, _)| *target == ino).count() as u32
    }

    fn links(&self, ino: Ino) -> u32 {
        if !self.is_directory(ino) {
            return self.names_of(ino);
        }
        if self.nodes[&ino].orphan.is_some() {
            return 0;
        }
        let inside = self.nodes[&ino].names.values();
        2 + inside.filter(|(child, _)| self.is_directory(*child)).count() as u32
    }

    fn parent(&self, ino: Ino) -> Option<Ino> {
        let holds = |node: &Node| node.names.values().any(|(child, _)| *child == ino);
        self.nodes.iter().find(|(_, node)| holds(node)).map(|(parent, _)| *parent)
    }

    fn insert(&mut self, file_type: FileType, permissions: u32, uid: u32, gid: u32) -> Ino {
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        let time = self.time;
        let attr = Attr {
            ino,
            generation: Generation(1),
            file_type,
            permissions,
            links: 0,
            uid,
            gid,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        };
        let inode = Inode {
            attr,
            data: FileData::Empty,
            parent: Ino(0),
            has_acl: false,
            has_xattrs: false,
        };
        let node = Node {
            inode,
            names: BTreeMap::new(),
            next_cookie: 3,
            xattrs: BTreeMap::new(),
            reserved: Vec::new(),
            hardened: BTreeMap::new(),
            orphan: None,
            reserved_by: BTreeMap::new(),
        };
        self.nodes.insert(ino, node);
        ino
    }

    /// Applies an entry. An error changes nothing.
    pub(crate) fn apply(&mut self, entry: &MetaEntry) -> Answer {
        let kept = (self.nodes.clone(), self.pending.clone(), self.configuration.clone());
        let numbers = (self.next_ino, self.next_object, self.next_pending, self.next_grant);
        self.time = entry.time;
        self.client = entry.client;
        let answer = self.dispatch(&entry.op);
        if answer.is_err() {
            (self.nodes, self.pending, self.configuration) = kept;
            (self.next_ino, self.next_object, self.next_pending, self.next_grant) = numbers;
        }
        answer
    }

    fn dispatch(&mut self, op: &MetaOp) -> Answer {
        match op {
            MetaOp::Create { parent, name, new } => {
                self.free_name(*parent, name)?;
                let ino = self.make(*parent, new);
                self.add_name(*parent, name, ino);
                self.inode_reply(ino)
            }
            MetaOp::CreateAs { parent, name, new, ino } => {
                if self.existing(*parent, name) == Ok(*ino) {
                    return self.inode_reply(*ino);
                }
                self.free_name(*parent, name)?;
                let is_free = *ino > Ino::ROOT && ino.0 < self.next_ino;
                if !is_free || self.nodes.contains_key(ino) {
                    return Err(ErrorKind::Invalid);
                }
                let next = std::mem::replace(&mut self.next_ino, ino.0);
                let is_symlink = new.file_type == FileType::Symlink;
                let permissions = if is_symlink { 0o777 } else { new.permissions };
                self.insert(new.file_type, permissions, new.uid, new.gid);
                self.next_ino = next;
                let attr = &mut self.nodes.get_mut(ino).expect("just made").inode.attr;
                (attr.size, attr.rdev) = (new.target.len() as u64, new.rdev);
                self.add_name(*parent, name, *ino);
                self.inode_reply(*ino)
            }
            MetaOp::CreateOrphan { parent, new } => {
                self.directory(*parent)?;
                let ino = self.make(*parent, new);
                self.node(ino)?.orphan = Some((self.client, true));
                self.inode_reply(ino)
            }
            MetaOp::Link { ino, parent, name } => self.link(*ino, *parent, name),
            MetaOp::Unlink { parent, name, open } => {
                let ino = self.existing(*parent, name)?;
                if self.is_directory(ino) {
                    return Err(ErrorKind::IsDirectory);
                }
                self.remove_name(*parent, name);
                Ok(MetaReply::Removed(Some(self.drop_link(ino, *open))))
            }
            MetaOp::Remove { parent, name, ino, open } => {
                if self.existing(*parent, name) != Ok(*ino) {
                    return Ok(MetaReply::Removed(None));
                }
                let (parent, name) = (*parent, name.clone());
                self.dispatch(&MetaOp::Unlink { parent, name, open: *open })
            }
            MetaOp::Rmdir { parent, name, open } => {
                let ino = self.existing(*parent, name)?;
                if !self.is_directory(ino) {
                    return Err(ErrorKind::NotDirectory);
                }
                if !self.nodes[&ino].names.is_empty() {
                    return Err(ErrorKind::NotEmpty);
                }
                self.remove_name(*parent, name);
                self.nodes.get_mut(&ino).expect("exists").inode.parent = *parent;
                Ok(MetaReply::Removed(Some(self.drop_link(ino, *open))))
            }
            MetaOp::Rename { parent, name, new_parent, new_name, mode, open } => {
                self.rename((*parent, name), (*new_parent, new_name), *mode, *open)
            }
            _ => self.dispatch_inode(op),
        }
    }

    fn folded(&mut self, ino: Ino, units: Option<&[u64]>) -> Answer {
        let kept = &mut self.regular(ino)?.hardened;
        let Some(units) = units else {
            kept.clear();
            return self.inode_reply(ino);
        };
        if units.len() > 1024 || units.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(ErrorKind::Invalid);
        }
        kept.retain(|unit, _| !units.contains(unit));
        self.inode_reply(ino)
    }

    fn delete_beyond(&mut self, ino: Ino, from: BlockIndex, version: Version) -> Answer {
        self.regular(ino)?;
        for layout in self.objects(ino) {
            self.queue(layout, (from, BlockIndex::END), version, false);
        }
        self.inode_reply(ino)
    }

    /// The operations on an inode, whatever its names are.
    fn dispatch_inode(&mut self, op: &MetaOp) -> Answer {
        match op {
            MetaOp::SetAttr { ino, change } => self.set_attr(*ino, change),
            MetaOp::NewObject { ino } => self.new_object(*ino),
            MetaOp::NewObjectAs { ino, layout } => self.new_object_as(*ino, *layout),
            MetaOp::Update { .. } => self.update(op),
            MetaOp::Harden { .. } => self.harden(op),
            MetaOp::MoveData { ino, object, from } => self.move_data(*ino, *object, *from),
            MetaOp::Folded { ino } => self.folded(*ino, None),
            MetaOp::FoldedUnits { ino, units } => self.folded(*ino, Some(units)),
            MetaOp::Truncate { ino, size, from_block, version, allocated_delta } => {
                self.truncate(*ino, *size, *from_block, *version, *allocated_delta)
            }
            MetaOp::DeleteBlocks { ino, from, to, version, allocated_delta } => {
                if from > to {
                    return Err(ErrorKind::Invalid);
                }
                self.regular(*ino)?;
                self.touch(*ino);
                self.add_allocated(*ino, *allocated_delta);
                let units = u64::from(self.configuration.block_size) / 4096;
                let hole = from.0..to.0;
                self.regular(*ino)?.hardened.retain(|unit, _| !hole.contains(&(unit / units)));
                for layout in self.objects(*ino) {
                    self.queue(layout, (*from, *to), *version, false);
                }
                self.inode_reply(*ino)
            }
            MetaOp::DeleteBeyond { ino, from, version } => {
                self.delete_beyond(*ino, *from, *version)
            }
            MetaOp::RangeApplied { id, nsds } => {
                if let Some(range) = self.pending.get_mut(id) {
                    range.waiting.retain(|nsd| !nsds.contains(nsd));
                }
                self.pending.retain(|_, range| !range.waiting.is_empty());
                Ok(MetaReply::Done)
            }
            MetaOp::SetXattr { ino, name, value, mode, clear_setgid } => {
                self.set_xattr(*ino, name, value, *mode, *clear_setgid)
            }
            MetaOp::RemoveXattr { ino, name } => {
                let time = self.time;
                let node = self.node(*ino)?;
                let removed = node.xattrs.remove(name).is_some();
                if removed {
                    node.inode.attr.ctime = time;
                } else if name != ACCESS_NAME && name != DEFAULT_NAME {
                    return Err(ErrorKind::NoAttribute);
                }
                Ok(MetaReply::Done)
            }
            MetaOp::Reap { ino } => {
                self.node(*ino)?;
                if self.links(*ino) > 0 {
                    return Err(ErrorKind::Busy);
                }
                self.delete(*ino);
                Ok(MetaReply::Done)
            }
            MetaOp::Join => self.join(),
            MetaOp::Leave => self.leave(),
            MetaOp::ReserveGrants { count } => self.reserve_grants(*count),
            MetaOp::ReserveInodes { count } => self.reserve_inodes(*count),
            MetaOp::ReserveObjects { count } => self.reserve_objects(*count),
            _ => unreachable!("the generator makes no other"),
        }
    }

    fn node(&mut self, ino: Ino) -> Answer<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(ErrorKind::Stale)
    }

    fn regular(&mut self, ino: Ino) -> Answer<&mut Node> {
        let node = self.node(ino)?;
        match node.inode.attr.file_type {
            FileType::Regular => Ok(node),
            FileType::Directory => Err(ErrorKind::IsDirectory),
            _ => Err(ErrorKind::Invalid),
        }
    }

    fn directory(&mut self, ino: Ino) -> Answer<&mut Node> {
        let node = self.node(ino)?;
        if !is_dir(node.inode.attr.file_type) {
            return Err(ErrorKind::NotDirectory);
        }
        if node.orphan.is_some() { Err(ErrorKind::NotFound) } else { Ok(node) }
    }

    fn free_name(&mut self, parent: Ino, name: &[u8]) -> Answer<()> {
        let taken = self.directory(parent)?.names.contains_key(name);
        if taken { Err(ErrorKind::Exists) } else { Ok(()) }
    }

    fn existing(&mut self, parent: Ino, name: &[u8]) -> Answer<Ino> {
        let found = self.directory(parent)?.names.get(name);
        found.map(|(ino, _)| *ino).ok_or(ErrorKind::NotFound)
    }

    fn inode_reply(&self, ino: Ino) -> Answer {
        Ok(MetaReply::Inode(Box::new(self.show(ino))))
    }

    fn touch(&mut self, ino: Ino) {
        let time = self.time;
        let attr = &mut self.nodes.get_mut(&ino).expect("exists").inode.attr;
        attr.mtime = time;
        attr.ctime = time;
    }

    fn touch_ctime(&mut self, ino: Ino) {
        self.nodes.get_mut(&ino).expect("exists").inode.attr.ctime = self.time;
    }

    fn add_name(&mut self, parent: Ino, name: &[u8], ino: Ino) {
        self.touch(parent);
        let node = self.nodes.get_mut(&parent).expect("exists");
        node.names.insert(name.to_vec(), (ino, node.next_cookie));
        node.next_cookie += 1;
    }

    fn remove_name(&mut self, parent: Ino, name: &[u8]) {
        self.touch(parent);
        self.nodes.get_mut(&parent).expect("exists").names.remove(name);
    }

    fn make(&mut self, parent: Ino, new: &NewInode) -> Ino {
        let directory = self.nodes[&parent].clone();
        let mut permissions = new.permissions;
        let mut gid = new.gid;
        if directory.inode.attr.permissions & 0o2000 != 0 {
            gid = directory.inode.attr.gid;
            if is_dir(new.file_type) {
                permissions |= 0o2000;
            }
        }
        let mut xattrs = BTreeMap::new();
        let default = directory.xattrs.get(DEFAULT_NAME);
        match default.map(|value| Acl::from_xattr(value)) {
            _ if new.file_type == FileType::Symlink => permissions = 0o777,
            Some(acl) => {
                let (mode, access) = acl.expect("valid").expect("some").inherit(permissions);
                permissions = mode;
                if let Some(access) = access {
                    xattrs.insert(ACCESS_NAME.to_vec(), access.to_xattr());
                }
                if is_dir(new.file_type) {
                    xattrs.insert(DEFAULT_NAME.to_vec(), default.expect("seen").clone());
                }
            }
            None => permissions &= !new.umask,
        }
        let ino = self.insert(new.file_type, permissions, new.uid, gid);
        let node = self.nodes.get_mut(&ino).expect("just made");
        node.xattrs = xattrs;
        node.inode.attr.size = new.target.len() as u64;
        node.inode.attr.rdev = new.rdev;
        ino
    }

    fn drop_link(&mut self, ino: Ino, open: bool) -> Removed {
        self.touch_ctime(ino);
        let attr = self.nodes[&ino].inode.attr;
        let links = if is_dir(attr.file_type) { 0 } else { self.names_of(ino) };
        let removed =
            Removed { ino, generation: attr.generation, file_type: attr.file_type, links };
        if links == 0 && open {
            self.nodes.get_mut(&ino).expect("exists").orphan = Some((self.client, false));
        } else if links == 0 {
            self.delete(ino);
        }
        removed
    }

    fn delete(&mut self, ino: Ino) {
        for layout in self.objects(ino) {
            self.queue_object(layout);
        }
        self.nodes.remove(&ino);
    }

    /// All objects of an inode: reserved ones first, then linked ones. Deletions are queued in this
    /// order.
    pub(crate) fn objects(&self, ino: Ino) -> Vec<ObjectLayout> {
        let node = &self.nodes[&ino];
        let mut layouts = node.reserved.clone();
        if let FileData::Objects(linked) = &node.inode.data {
            layouts.extend(linked);
        }
        layouts
    }

    fn queue_object(&mut self, layout: ObjectLayout) {
        let version = Version { grant: GrantNumber(u64::MAX), counter: u64::MAX };
        self.queue(layout, (BlockIndex(0), BlockIndex::END), version, true);
    }

    fn queue(
        &mut self,
        layout: ObjectLayout,
        (from, to): (BlockIndex, BlockIndex),
        version: Version,
        object_gone: bool,
    ) {
        if from == to {
            return;
        }
        let id = self.next_pending;
        self.next_pending += 1;
        let waiting = vec![NsdId(1), NsdId(2), NsdId(3)];
        let range = PendingRange { id, layout, from, to, version, waiting, object_gone };
        self.pending.insert(id, range);
    }

    fn link(&mut self, ino: Ino, parent: Ino, name: &[u8]) -> Answer {
        self.free_name(parent, name)?;
        let node = self.node(ino)?;
        if is_dir(node.inode.attr.file_type) {
            return Err(ErrorKind::NotPermitted);
        }
        match node.orphan {
            Some((_, false)) => return Err(ErrorKind::NotFound),
            _ => node.orphan = None,
        }
        if self.names_of(ino) >= LINK_COUNT_MAX {
            return Err(ErrorKind::TooManyLinks);
        }
        self.touch_ctime(ino);
        self.add_name(parent, name, ino);
        self.inode_reply(ino)
    }

    fn below(&self, ino: Ino) -> BTreeSet<Ino> {
        let mut found = BTreeSet::from([ino]);
        for (child, _) in self.nodes[&ino].names.values() {
            if self.is_directory(*child) {
                found.extend(self.below(*child));
            }
        }
        found
    }

    fn rename(
        &mut self,
        source: (Ino, &[u8]),
        target: (Ino, &[u8]),
        mode: RenameMode,
        open: bool,
    ) -> Answer {
        self.directory(source.0)?;
        self.directory(target.0)?;
        let moved = self.existing(source.0, source.1)?;
        let old = self.existing(target.0, target.1).ok();
        match (mode, old) {
            (RenameMode::NoReplace, Some(_)) => return Err(ErrorKind::Exists),
            (RenameMode::Exchange, None) => return Err(ErrorKind::NotFound),
            _ => {}
        }
        if self.is_directory(moved) && self.below(moved).contains(&target.0) {
            return Err(ErrorKind::Invalid);
        }
        if let Some(old) = old.filter(|old| self.is_directory(*old))
            && self.below(old).contains(&source.0)
        {
            let exchange = mode == RenameMode::Exchange;
            return Err(if exchange { ErrorKind::Invalid } else { ErrorKind::NotEmpty });
        }
        if old == Some(moved) {
            return Ok(MetaReply::Removed(None));
        }
        let mut removed = None;
        match old {
            Some(old) if mode == RenameMode::Exchange => {
                self.point(target, moved);
                self.point(source, old);
                self.touch_ctime(old);
            }
            Some(old) => {
                match (self.is_directory(moved), self.is_directory(old)) {
                    (true, false) => return Err(ErrorKind::NotDirectory),
                    (false, true) => return Err(ErrorKind::IsDirectory),
                    (true, true) if !self.nodes[&old].names.is_empty() => {
                        return Err(ErrorKind::NotEmpty);
                    }
                    _ => {}
                }
                self.remove_name(source.0, source.1);
                self.point(target, moved);
                self.nodes.get_mut(&old).expect("exists").inode.parent =
                    if self.is_directory(old) { target.0 } else { Ino(0) };
                removed = Some(self.drop_link(old, open));
            }
            None if source.0 == target.0 => {
                self.touch(source.0);
                let names = &mut self.nodes.get_mut(&source.0).expect("exists").names;
                let at = names.remove(source.1).expect("exists");
                names.insert(target.1.to_vec(), at);
            }
            None => {
                self.remove_name(source.0, source.1);
                self.add_name(target.0, target.1, moved);
            }
        }
        self.touch_ctime(moved);
        Ok(MetaReply::Removed(removed))
    }

    /// Makes an existing name lead to another inode. The name keeps its place.
    fn point(&mut self, (parent, name): (Ino, &[u8]), ino: Ino) {
        self.touch(parent);
        let node = self.nodes.get_mut(&parent).expect("exists");
        node.names.get_mut(name).expect("exists").0 = ino;
    }

    fn set_attr(&mut self, ino: Ino, change: &AttrChange) -> Answer {
        let time = self.time;
        let node = self.node(ino)?;
        let attr = &mut node.inode.attr;
        if change.kill_privileges && !is_dir(attr.file_type) {
            let setgid = if attr.permissions & 0o010 != 0 { 0o2000 } else { 0 };
            attr.permissions &= !(0o4000 | setgid);
            node.xattrs.remove(&b"security.capability"[..]);
        }
        if let Some(permissions) = change.permissions {
            attr.permissions = permissions;
            if let Some(value) = node.xattrs.get_mut(ACCESS_NAME) {
                let mut acl = Acl::from_xattr(value).expect("valid").expect("some");
                acl.change_mode(permissions);
                *value = acl.to_xattr();
            }
        }
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        attr.atime = change.atime.unwrap_or(attr.atime);
        attr.mtime = change.mtime.unwrap_or(attr.mtime);
        if !change.quiet {
            attr.ctime = change.ctime.unwrap_or(time);
        }
        self.inode_reply(ino)
    }

    fn set_xattr(
        &mut self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        clear_setgid: bool,
    ) -> Answer {
        let acl = if name == ACCESS_NAME || name == DEFAULT_NAME {
            Acl::from_xattr(value).map_err(|error| error.kind())?
        } else {
            None
        };
        let time = self.time;
        let node = self.node(ino)?;
        let file_type = node.inode.attr.file_type;
        let mut stored = Some(value.to_vec());
        if name == ACCESS_NAME || name == DEFAULT_NAME {
            if file_type == FileType::Symlink {
                return Err(ErrorKind::NotSupported);
            }
            stored = acl.as_ref().map(Acl::to_xattr);
        }
        if name == DEFAULT_NAME && acl.is_some() && !is_dir(file_type) {
            return Err(ErrorKind::Access);
        }
        if let Some(acl) = acl.filter(|_| name == ACCESS_NAME) {
            let attr = &mut node.inode.attr;
            attr.permissions = (attr.permissions & !0o777) | acl.mode();
            if clear_setgid {
                attr.permissions &= !0o2000;
            }
            if acl.is_mode_alone() {
                stored = None;
            }
        }
        if name != ACCESS_NAME && name != DEFAULT_NAME {
            match (mode, node.xattrs.contains_key(name)) {
                (XattrMode::Create, true) => return Err(ErrorKind::Exists),
                (XattrMode::Replace, false) => return Err(ErrorKind::NoAttribute),
                _ => {}
            }
        }
        match stored {
            Some(stored) => node.xattrs.insert(name.to_vec(), stored),
            None => node.xattrs.remove(name),
        };
        let bytes: usize = node.xattrs.values().map(Vec::len).sum();
        if bytes > XATTR_TOTAL_BYTES_MAX as usize {
            return Err(ErrorKind::NoSpace);
        }
        node.inode.attr.ctime = time;
        Ok(MetaReply::Done)
    }

    fn join(&mut self) -> Answer {
        let client = self.client;
        let is_mine = |node: &Node| node.orphan.is_some_and(|(owner, _)| owner == client);
        let orphans: Vec<Ino> =
            self.nodes.iter().filter(|(_, node)| is_mine(node)).map(|(ino, _)| *ino).collect();
        for ino in orphans {
            self.delete(ino);
        }
        self.leave()?;
        self.reserve_grants(1)
    }

    fn leave(&mut self) -> Answer {
        let client = self.client;
        let mut gone = Vec::new();
        for node in self.nodes.values_mut() {
            let reserved_by = &node.reserved_by;
            gone.extend(
                node.reserved
                    .extract_if(.., |layout| reserved_by.get(&layout.object) == Some(&client)),
            );
        }
        gone.sort_by_key(|layout| layout.object);
        for layout in gone {
            self.queue_object(layout);
        }
        Ok(MetaReply::Done)
    }

    fn reserve_inodes(&mut self, count: u32) -> Answer {
        let first = self.next_ino;
        self.next_ino += u64::from(count);
        let is_valid = (1..=256).contains(&count);
        let numbers = (first..self.next_ino).map(Ino).collect();
        if is_valid { Ok(MetaReply::Inos(numbers)) } else { Err(ErrorKind::Invalid) }
    }

    fn reserve_objects(&mut self, count: u32) -> Answer {
        let first = self.next_object;
        self.next_object += u64::from(count);
        let is_valid = (1..=256).contains(&count);
        let numbers: Vec<ObjectId> = (first..self.next_object).map(ObjectId).collect();
        if !is_valid {
            return Err(ErrorKind::Invalid);
        }
        self.spare_objects.extend(&numbers);
        Ok(MetaReply::Objects(numbers))
    }

    fn reserve_grants(&mut self, count: u64) -> Answer {
        let grant = GrantNumber(self.next_grant);
        let next = self.next_grant.checked_add(count).ok_or(ErrorKind::Invalid)?;
        self.next_grant = next;
        Ok(MetaReply::Session { grant })
    }
}

fn is_dir(file_type: FileType) -> bool {
    file_type == FileType::Directory
}

#[cfg(test)]
#[path = "model_test.rs"]
mod model_test;
