//! Compares the state machine with the model: random operations, all replies, and the whole state.

use crate::memory::MemoryMeta;
use crate::model::Model;
use crate::testing::{configuration, entry};
use strake_env::Rng;
use strake_proto::acl::{ACCESS_NAME, Acl, AclEntry, AclTag, DEFAULT_NAME};
use strake_proto::meta::{
    AttrChange, Counts, FileData, HardenedUnit, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply,
    NewInode, RenameMode, XattrMode,
};
use strake_proto::{
    BlockIndex, ClientId, ErrorKind, FileType, GrantNumber, Ino, NsdId, ObjectId, Timestamp,
    Version,
};

const TYPES: [FileType; 8] = [
    FileType::Regular,
    FileType::Regular,
    FileType::Regular,
    FileType::Directory,
    FileType::Directory,
    FileType::Symlink,
    FileType::Fifo,
    FileType::CharDevice,
];

/// Makes operations that mostly succeed, and often collide.
struct Generator {
    rng: Rng,
    second: i64,
}

impl Generator {
    fn entry(&mut self, model: &Model) -> MetaEntry {
        self.second += 1;
        let client = ClientId(1 + self.rng.below(2));
        MetaEntry { client, ..entry(self.second, self.op(model)) }
    }

    fn ino(&mut self, model: &Model) -> Ino {
        let inos = model.inos();
        if self.rng.one_in(20) { Ino(9999) } else { inos[self.rng.index(inos.len())] }
    }

    fn dir(&mut self, model: &Model) -> Ino {
        if self.rng.one_in(20) {
            return self.ino(model);
        }
        let mut inos = model.inos();
        inos.retain(|ino| model.is_directory(*ino));
        inos[self.rng.index(inos.len())]
    }

    fn name(&mut self) -> Vec<u8> {
        vec![b'a' + self.rng.below(6) as u8]
    }

    fn chance(&mut self) -> bool {
        self.rng.one_in(2)
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.chance() { Some(make(self)) } else { None }
    }

    fn time(&mut self) -> Timestamp {
        Timestamp { seconds: self.rng.below(1000) as i64 - 500, nanos: 7 }
    }

    fn new_inode(&mut self, file_type: FileType) -> NewInode {
        let target = if file_type == FileType::Symlink { b"x".to_vec() } else { Vec::new() };
        NewInode {
            file_type,
            permissions: self.rng.below(0o10000) as u32,
            umask: self.rng.below(0o1000) as u32,
            uid: self.rng.below(3) as u32,
            gid: self.rng.below(3) as u32,
            rdev: 0,
            target,
        }
    }

    fn version(&mut self) -> Version {
        Version { grant: GrantNumber(1), counter: self.rng.below(100) }
    }

    fn delta(&mut self) -> i64 {
        self.rng.below(20_000) as i64 - 8_000
    }

    fn acl(&mut self) -> Vec<u8> {
        let mut entries = vec![(AclTag::Owner, 7)];
        let named = self.chance();
        if named {
            entries.push((AclTag::User(self.rng.below(4) as u32), self.rng.below(8) as u32));
        }
        entries.push((AclTag::OwningGroup, self.rng.below(8) as u32));
        if named {
            entries.push((AclTag::Mask, self.rng.below(8) as u32));
        }
        entries.push((AclTag::Others, self.rng.below(8) as u32));
        let entries =
            entries.into_iter().map(|(tag, permissions)| AclEntry { tag, permissions }).collect();
        match self.rng.below(10) {
            0 => Vec::new(),
            1 => vec![2, 0, 0, 0, 1],
            _ => Acl::new(entries).expect("valid").to_xattr(),
        }
    }

    fn xattr(&mut self, ino: Ino) -> MetaOp {
        let mut name = format!("user.{}", self.rng.below(3)).into_bytes();
        let mut value = vec![7; self.rng.index(100)];
        match self.rng.below(4) {
            0 => (name, value) = (ACCESS_NAME.to_vec(), self.acl()),
            1 => (name, value) = (DEFAULT_NAME.to_vec(), self.acl()),
            2 => name = b"security.capability".to_vec(),
            _ => {}
        }
        if self.rng.one_in(4) {
            return MetaOp::RemoveXattr { ino, name };
        }
        let modes = [XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace];
        let mode = modes[self.rng.index(4)];
        MetaOp::SetXattr { ino, name, value, mode, clear_setgid: self.chance() }
    }

    fn change(&mut self) -> AttrChange {
        AttrChange {
            permissions: self.maybe(|it| it.rng.below(0o10000) as u32),
            uid: self.maybe(|it| it.rng.below(3) as u32),
            gid: self.maybe(|it| it.rng.below(3) as u32),
            atime: self.maybe(Generator::time),
            mtime: self.maybe(Generator::time),
            ctime: self.maybe(Generator::time),
            quiet: self.chance(),
            kill_privileges: self.chance(),
        }
    }

    fn update(&mut self, model: &Model, ino: Ino) -> MetaOp {
        let size = self.rng.below(5000);
        let objects = match model.inos().contains(&ino).then(|| model.objects(ino)) {
            Some(mut objects) if !objects.is_empty() => {
                self.rng.shuffle(&mut objects);
                objects.truncate(1);
                FileData::Objects(objects)
            }
            _ => FileData::Empty,
        };
        let data = match self.rng.below(4) {
            0 => None,
            1 => Some(FileData::Inline(vec![self.rng.below(256) as u8; self.rng.index(4500)])),
            _ => Some(objects),
        };
        MetaOp::Update {
            ino,
            size,
            data,
            allocated_delta: self.delta(),
            mtime: self.maybe(Generator::time),
            ctime: self.maybe(Generator::time),
        }
    }

    fn harden(&mut self, model: &Model, ino: Ino) -> MetaOp {
        let known = model.inos().contains(&ino);
        let size = if known { model.show(ino).attr.size } else { 0 };
        let size = size.saturating_sub(self.rng.below(3) * 10) + self.rng.below(5000);
        let mut units = Vec::new();
        for unit in 0..=size / 4096 {
            let length = self.rng.below(4097).min(size - unit * 4096) as usize;
            if self.chance() {
                let bytes = vec![self.rng.below(256) as u8; length];
                units.push(HardenedUnit { unit, bytes });
            }
        }
        if self.rng.one_in(10) {
            units.reverse();
        }
        let (mtime, ctime) = (self.maybe(Generator::time), self.maybe(Generator::time));
        MetaOp::Harden { ino, size, allocated_delta: self.delta(), mtime, ctime, units }
    }

    fn op(&mut self, model: &Model) -> MetaOp {
        let ino = self.ino(model);
        let parent = self.dir(model);
        let name = self.name();
        let open = self.chance();
        match self.rng.below(27) {
            0..5 => {
                let file_type = TYPES[self.rng.index(TYPES.len())];
                let new = self.new_inode(file_type);
                if self.chance() {
                    return MetaOp::Create { parent, name, new };
                }
                // Mostly a number that is reserved, or was that of an inode.
                let last = Ino(model.next_ino - 1);
                let ino = match self.rng.below(4) {
                    0 => self.ino(model),
                    1 => Ino(self.rng.below(model.next_ino + 1)),
                    _ if model.nodes.contains_key(&last) => {
                        return MetaOp::ReserveInodes { count: 1 };
                    }
                    _ => last,
                };
                MetaOp::CreateAs { parent, name, new, ino }
            }
            5 => MetaOp::CreateOrphan { parent, new: self.new_inode(FileType::Regular) },
            6 | 7 => MetaOp::Link { ino, parent, name },
            8 if self.chance() => {
                let named = model.nodes.get(&parent).and_then(|node| node.names.get(&name));
                let ino = named.filter(|_| self.chance()).map_or(ino, |(ino, _)| *ino);
                MetaOp::Remove { parent, name, ino, open }
            }
            8 => MetaOp::Unlink { parent, name, open },
            9 => MetaOp::Rmdir { parent, name, open },
            10..14 => {
                let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
                let (new_parent, new_name) = (self.dir(model), self.name());
                let mode = modes[self.rng.index(3)];
                MetaOp::Rename { parent, name, new_parent, new_name, mode, open }
            }
            14 | 15 => MetaOp::SetAttr { ino, change: self.change() },
            16 if self.rng.one_in(3) => {
                let object = match model.nodes.get(&ino).map(|node| &node.inode.data) {
                    Some(FileData::Objects(objects)) => objects[0].object,
                    _ => ObjectId(1),
                };
                MetaOp::MoveData { ino, object, from: self.ino(model) }
            }
            16 if self.chance() => {
                // A number that was given, or an object that the file has.
                let spare = model.spare_objects.first().copied().map(|it| model.layout_of(it));
                let is_there = model.nodes.contains_key(&ino);
                let own = is_there.then(|| model.objects(ino).first().copied()).flatten();
                let known = if self.chance() { spare } else { own.or(spare) };
                let Some(mut layout) = known else {
                    return MetaOp::ReserveObjects { count: 2 };
                };
                if self.rng.one_in(8) {
                    layout.key += 1;
                }
                MetaOp::NewObjectAs { ino, layout }
            }
            16 => MetaOp::NewObject { ino },
            17 | 18 => self.update(model, ino),
            19 => MetaOp::Truncate {
                ino,
                size: if self.chance() { 0 } else { self.rng.below(5000) },
                from_block: self.maybe(|it| BlockIndex(it.rng.below(3))),
                version: self.version(),
                allocated_delta: self.delta(),
            },
            20 if self.rng.one_in(4) => {
                let (from, version) = (BlockIndex(self.rng.below(5)), self.version());
                MetaOp::DeleteBeyond { ino, from, version }
            }
            20 => {
                let from = BlockIndex(self.rng.below(5));
                let to = BlockIndex(self.rng.below(5));
                let (version, allocated_delta) = (self.version(), self.delta());
                MetaOp::DeleteBlocks { ino, from, to, version, allocated_delta }
            }
            21 | 22 => self.xattr(ino),
            23 | 24 => self.harden(model, ino),
            25 if self.chance() => {
                let mut units: Vec<u64> = (0..4).filter(|_| self.chance()).collect();
                if self.rng.one_in(10) {
                    units.reverse();
                }
                MetaOp::FoldedUnits { ino, units }
            }
            25 => MetaOp::Folded { ino },
            _ => match self.rng.below(4) {
                0 if self.rng.one_in(4) => MetaOp::Join,
                0 if self.rng.one_in(3) => MetaOp::Leave,
                1 if self.rng.one_in(4) => {
                    let count = [1, 1 << 20, u64::MAX][self.rng.index(3)];
                    MetaOp::ReserveGrants { count }
                }
                1 if self.rng.one_in(3) => {
                    let count = [0, 1, 7, 256, 257][self.rng.index(5)];
                    match self.chance() {
                        true => MetaOp::ReserveInodes { count },
                        false => MetaOp::ReserveObjects { count },
                    }
                }
                0 | 1 => MetaOp::Reap { ino },
                _ => {
                    let ids: Vec<u64> = model.pending.keys().copied().collect();
                    let id = ids.get(self.rng.index(ids.len() + 1)).copied().unwrap_or(0);
                    let nsds = vec![NsdId(1 + self.rng.below(3) as u32), NsdId(2)];
                    MetaOp::RangeApplied { id, nsds }
                }
            },
        }
    }
}

/// Compares the answers about names, and about an absent one behind each of them.
fn compare_following(meta: &MemoryMeta, model: &Model, parent: Ino) {
    let list = model.list(parent).into_iter().map(|entry| (entry.name, entry.ino));
    let names: std::collections::BTreeMap<Vec<u8>, Ino> = list.collect();
    let asked = std::iter::once(vec![1]).chain(names.keys().flat_map(|name| {
        let behind = name.iter().copied().chain([1]).collect();
        [name.clone(), behind]
    }));
    for name in asked.filter(|name| name.len() <= 255) {
        let query = MetaQuery::LookupOrNext { parent, name: name.clone(), limit: 2 };
        let answer = meta.query(&query).expect("answers");
        let mut rest = names.range(name.clone()..);
        let expected = match names.get(&name) {
            Some(ino) => MetaReply::Inode(Box::new(model.show(*ino))),
            None => MetaReply::Following {
                names: rest.by_ref().take(2).map(|(next, ino)| (next.clone(), *ino)).collect(),
                end: rest.next().is_none(),
            },
        };
        assert_eq!(answer, expected, "{name:?} in {parent}");
    }
}

/// Compares the answers to all questions.
fn compare(meta: &MemoryMeta, model: &Model, context: &str) {
    let ask = |query: MetaQuery| meta.query(&query).expect("answers");
    let mut shown = Vec::new();
    for ino in model.inos() {
        let inode = model.show(ino);
        if model.is_directory(ino) {
            let query = MetaQuery::ReadDir { dir: ino, after: 0, limit: 4096, with_inodes: false };
            let expected = MetaReply::Entries { entries: model.list(ino), end: true };
            assert_eq!(ask(query), expected, "directory {ino} {context}");
            compare_following(meta, model, ino);
            let query = MetaQuery::ReadDir { dir: ino, after: 0, limit: 4096, with_inodes: true };
            let mut entries = model.list(ino);
            for entry in &mut entries {
                let mut inode = model.show(entry.ino);
                if let FileData::Inline(bytes) = &mut inode.data {
                    bytes.clear();
                }
                entry.inode = Some(inode);
            }
            let expected = MetaReply::Entries { entries, end: true };
            assert_eq!(ask(query), expected, "directory {ino} with inodes {context}");
        }
        let xattrs = model.xattrs(ino);
        let names = xattrs.keys().cloned().collect();
        assert_eq!(ask(MetaQuery::ListXattr { ino }), MetaReply::Names(names), "{ino} {context}");
        for (name, value) in xattrs {
            let query = MetaQuery::GetXattr { ino, name: name.clone() };
            assert_eq!(ask(query), MetaReply::Bytes(value.clone()), "{ino} {context}");
        }
        shown.push(inode);
    }
    let query = MetaQuery::ScanInodes { after: Ino(0), limit: 4096 };
    assert_eq!(ask(query), MetaReply::Inodes(shown.clone()), "{context}");
    let query = MetaQuery::Orphans { after: Ino(0), limit: 4096 };
    assert_eq!(ask(query), MetaReply::Inos(model.orphans()), "{context}");
    let after = model.pending.keys().next().map_or(0, |first| first - 1);
    let query = MetaQuery::Hardened { ino: Ino(0), unit: 0, limit: 4096 };
    assert_eq!(ask(query), MetaReply::Hardened(model.hardened()), "{context}");
    let query = MetaQuery::PendingRanges { after, limit: 4096 };
    let ranges: Vec<_> = model.pending.values().cloned().collect();
    assert_eq!(ask(query), MetaReply::PendingRanges(ranges), "{context}");
    let inodes = shown.len() as u64;
    let (allocated, metadata_free) = (model.allocated(), u64::MAX);
    let counts = Counts { inodes, allocated, metadata_bytes: 0, metadata_free };
    assert_eq!(ask(MetaQuery::Counts), MetaReply::Counts(counts), "{context}");
    match ask(MetaQuery::Check) {
        MetaReply::Checked(reply) => {
            assert_eq!(reply.faults, Vec::<String>::new(), "{context}");
            assert_eq!(reply.inodes, inodes, "{context}");
        }
        other => panic!("{other:?}"),
    }
}

fn run(seed: u64, steps: usize) -> (MemoryMeta, usize) {
    let meta = MemoryMeta::new();
    let format = entry(1, MetaOp::Format(Box::new(configuration())));
    meta.apply(&format).expect("formats");
    let mut model = Model::new(configuration(), format.time);
    let mut generator = Generator { rng: Rng::new(seed), second: 1 };
    let mut succeeded = 0;
    for step in 0..steps {
        let entry = generator.entry(&model);
        let expected = model.apply(&entry);
        let got = meta.apply(&entry).map_err(|error| error.kind());
        let context = format!("seed {seed} step {step}: {entry:?}");
        assert_eq!(got, expected, "{context}");
        succeeded += usize::from(got.is_ok());
        compare(&meta, &model, &context);
    }
    (meta, succeeded)
}

#[test]
fn the_state_machine_does_what_the_model_does() {
    let mut succeeded = 0;
    for seed in strake_env::rng::test_seeds(0, 60) {
        succeeded += run(seed, 250).1;
    }
    assert!(succeeded > 6000, "only {succeeded} operations succeeded");
}

#[test]
fn equal_entries_give_equal_bytes() {
    let (first, _) = run(99, 200);
    let (second, _) = run(99, 200);
    assert!(first.snapshot() == second.snapshot());
    let (other, _) = run(98, 200);
    assert!(first.snapshot() != other.snapshot());
}

#[test]
fn each_life_gets_a_grant_of_its_own() {
    let meta = MemoryMeta::new();
    let join = entry(4, MetaOp::Join);
    let refused = meta.apply(&join).map_err(|error| error.kind());
    assert_eq!(refused, Err(ErrorKind::Invalid), "there is no file system yet");
    meta.apply(&entry(1, MetaOp::Format(Box::new(configuration())))).expect("formats");
    assert_ne!(meta.apply(&join), meta.apply(&join));
    let counted = MetaEntry { sequence: 1, ..join };
    assert_eq!(meta.apply(&counted).map_err(|error| error.kind()), Err(ErrorKind::Invalid));
}
