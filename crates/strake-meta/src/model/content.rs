//! How the model changes a file's contents: objects, sizes, hardened units.

use super::{Answer, Model, Node};
use std::collections::BTreeMap;
use strake_proto::limits::{FILE_BYTES_MAX, INLINE_BYTES_MAX};
use strake_proto::meta::{FileData, HardenedUnit, MetaOp, MetaReply};
use strake_proto::{BlockIndex, ErrorKind, Ino, ObjectId, ObjectLayout, Version};

impl Model {
    pub(super) fn new_object(&mut self, ino: Ino) -> Answer {
        let layout = self.layout_of(ObjectId(self.next_object));
        let client = self.client;
        let node = self.regular(ino)?;
        if node.reserved.len() == 16 {
            return Err(ErrorKind::Invalid);
        }
        node.reserved.push(layout);
        node.reserved_by.insert(layout.object, client);
        self.next_object += 1;
        Ok(MetaReply::Object(layout))
    }

    /// The layout of a new object.
    pub(crate) fn layout_of(&self, object: ObjectId) -> ObjectLayout {
        ObjectLayout {
            object,
            code: self.configuration.code,
            block_size: self.configuration.block_size,
            layout: self.configuration.pool.layouts[0].version,
            key: 0,
        }
    }

    pub(super) fn new_object_as(&mut self, ino: Ino, layout: ObjectLayout) -> Answer {
        let (client, expected) = (self.client, self.layout_of(layout.object));
        self.regular(ino)?;
        if self.objects(ino).contains(&layout) {
            return Ok(MetaReply::Object(layout));
        }
        let is_reserved = |node: &Node| node.reserved.iter().any(|it| it.object == layout.object);
        if self.nodes.values().any(is_reserved) {
            return Err(ErrorKind::Invalid);
        }
        let node = self.regular(ino)?;
        if node.reserved.len() == 16 || layout != expected {
            return Err(ErrorKind::Invalid);
        }
        node.reserved.push(layout);
        node.reserved_by.insert(layout.object, client);
        self.spare_objects.remove(&layout.object);
        Ok(MetaReply::Object(layout))
    }

    pub(super) fn add_allocated(&mut self, ino: Ino, delta: i64) {
        let attr = &mut self.nodes.get_mut(&ino).expect("exists").inode.attr;
        attr.allocated = (attr.allocated as i64 + delta).max(0) as u64;
    }

    pub(super) fn update(&mut self, op: &MetaOp) -> Answer {
        let MetaOp::Update { ino, size, data, allocated_delta, mtime, ctime } = op else {
            unreachable!("called for this alone")
        };
        if *size > FILE_BYTES_MAX {
            return Err(ErrorKind::FileTooBig);
        }
        let node = self.regular(*ino)?;
        let mut dropped = Vec::new();
        if let Some(data) = data {
            let mut named = Vec::new();
            match data {
                FileData::Inline(bytes)
                    if bytes.len() > INLINE_BYTES_MAX || bytes.len() as u64 > *size =>
                {
                    return Err(ErrorKind::Invalid);
                }
                FileData::Objects(objects) => named.clone_from(objects),
                _ => {}
            }
            let linked = match &node.inode.data {
                FileData::Objects(linked) => linked.clone(),
                _ => Vec::new(),
            };
            if !named.iter().all(|one| linked.contains(one) || node.reserved.contains(one)) {
                return Err(ErrorKind::Invalid);
            }
            node.reserved.retain(|layout| !named.contains(layout));
            dropped = linked.into_iter().filter(|layout| !named.contains(layout)).collect();
            node.inode.data = data.clone();
        }
        if data.is_some() && !matches!(&node.inode.data, FileData::Objects(_))
            || !dropped.is_empty()
        {
            node.hardened.clear();
        }
        cut_hardened(&mut node.hardened, *size);
        let inode = &mut node.inode;
        inode.attr.size = *size;
        if let FileData::Inline(bytes) = &mut inode.data {
            bytes.truncate(usize::try_from(*size).expect("small in tests"));
        }
        inode.attr.mtime = mtime.unwrap_or(inode.attr.mtime);
        inode.attr.ctime = ctime.unwrap_or(inode.attr.ctime).max(inode.attr.ctime);
        for layout in dropped {
            self.queue_object(layout);
        }
        self.add_allocated(*ino, *allocated_delta);
        self.inode_reply(*ino)
    }

    pub(super) fn move_data(&mut self, ino: Ino, object: ObjectId, from: Ino) -> Answer {
        let target = self.regular(ino)?.clone();
        let source = self.regular(from)?.clone();
        let old = match &target.inode.data {
            FileData::Objects(objects) if objects.len() == 1 && objects[0].object == object => {
                objects[0]
            }
            _ => return Err(ErrorKind::Stale),
        };
        let too_long = match &source.inode.data {
            FileData::Inline(bytes) => bytes.len() as u64 > target.inode.attr.size,
            _ => false,
        };
        if ino == from || too_long {
            return Err(ErrorKind::Invalid);
        }
        if !target.hardened.is_empty() || !source.hardened.is_empty() {
            return Err(ErrorKind::Busy);
        }
        let target = self.regular(ino)?;
        target.inode.data = source.inode.data;
        target.inode.attr.allocated = source.inode.attr.allocated;
        let emptied = self.regular(from)?;
        emptied.inode.data = FileData::Empty;
        (emptied.inode.attr.size, emptied.inode.attr.allocated) = (0, 0);
        self.queue_object(old);
        self.inode_reply(ino)
    }

    pub(super) fn harden(&mut self, op: &MetaOp) -> Answer {
        let MetaOp::Harden { ino, size, allocated_delta, mtime, ctime, units } = op else {
            unreachable!("called for this alone")
        };
        if *size > FILE_BYTES_MAX {
            return Err(ErrorKind::FileTooBig);
        }
        let node = self.regular(*ino)?;
        let attr = &mut node.inode.attr;
        let mut above = 0;
        let in_order = units.iter().all(|unit| {
            let ascends = unit.unit >= above;
            above = unit.unit + 1;
            ascends
        });
        let end = |unit: &HardenedUnit| unit.unit * 4096 + unit.bytes.len() as u64;
        let fit = units.iter().all(|unit| !unit.bytes.is_empty() && end(unit) <= *size);
        if !matches!(node.inode.data, FileData::Objects(_))
            || *size < attr.size
            || !in_order
            || !fit
        {
            return Err(ErrorKind::Invalid);
        }
        attr.size = *size;
        attr.mtime = mtime.unwrap_or(attr.mtime);
        attr.ctime = ctime.unwrap_or(attr.ctime).max(attr.ctime);
        node.hardened.extend(units.iter().map(|unit| (unit.unit, unit.bytes.clone())));
        self.add_allocated(*ino, *allocated_delta);
        self.inode_reply(*ino)
    }

    /// All hardened units, in order.
    pub(crate) fn hardened(&self) -> Vec<(Ino, HardenedUnit)> {
        let of = |(ino, node): (&Ino, &Node)| {
            let unit = |(unit, bytes): (&u64, &Vec<u8>)| HardenedUnit {
                unit: *unit,
                bytes: bytes.clone(),
            };
            node.hardened.iter().map(|pair| (*ino, unit(pair))).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(of).collect()
    }

    pub(super) fn truncate(
        &mut self,
        ino: Ino,
        size: u64,
        from_block: Option<BlockIndex>,
        version: Version,
        allocated_delta: i64,
    ) -> Answer {
        if size > FILE_BYTES_MAX {
            return Err(ErrorKind::FileTooBig);
        }
        let node = self.regular(ino)?;
        cut_hardened(&mut node.hardened, size);
        node.inode.attr.size = size;
        let mut dropped = Vec::new();
        if size == 0 {
            if let FileData::Objects(linked) =
                std::mem::replace(&mut node.inode.data, FileData::Empty)
            {
                dropped = linked;
            }
            node.inode.attr.allocated = 0;
        } else if let FileData::Inline(bytes) = &mut node.inode.data {
            bytes.truncate(usize::try_from(size).expect("small in tests"));
        }
        for layout in dropped {
            self.queue_object(layout);
        }
        if size > 0 {
            self.add_allocated(ino, allocated_delta);
        }
        self.touch(ino);
        if let Some(from) = from_block {
            for layout in self.objects(ino) {
                self.queue(layout, (from, BlockIndex::END), version, false);
            }
        }
        self.inode_reply(ino)
    }
}

/// Cuts hardened units at the size, because they never go beyond it.
fn cut_hardened(units: &mut BTreeMap<u64, Vec<u8>>, size: u64) {
    units.retain(|unit, bytes| {
        let room = usize::try_from(size.saturating_sub(unit * 4096)).expect("small in tests");
        bytes.truncate(room);
        room > 0
    });
}
