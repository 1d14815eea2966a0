//! Helpers that the tests of this crate share: a file system in memory with short calls.

use crate::memory::MemoryMeta;
use strake_proto::layout::PoolMap;
use strake_proto::meta::{
    AttrChange, Configuration, DirEntry, Inode, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply,
    NewInode, Removed,
};
use strake_proto::{ClientId, ClusterId, Code, ErrorKind, FileType, Ino, NsdId, Result, Timestamp};

pub(crate) const CLIENT: ClientId = ClientId(7);

pub(crate) fn configuration() -> Configuration {
    Configuration {
        cluster: ClusterId([5; 16]),
        name: "tests".to_owned(),
        code: Code { data: 1, parity: 1 },
        block_size: 4 << 20,
        pool: PoolMap::new((1..=3).map(|nsd| (NsdId(nsd), nsd))),
        created: Timestamp { seconds: 1, nanos: 0 },
        settings: Vec::new(),
        incompat_flags: 0,
        compat_flags: 0,
    }
}

pub(crate) fn entry(second: i64, op: MetaOp) -> MetaEntry {
    let time = Timestamp { seconds: second, nanos: 0 };
    MetaEntry { client: CLIENT, sequence: 0, time, op }
}

/// A file system whose clock is set by hand.
pub(crate) struct TestFs {
    pub(crate) meta: MemoryMeta,
    pub(crate) second: i64,
}

impl TestFs {
    pub(crate) fn new() -> TestFs {
        let meta = MemoryMeta::new();
        let format = MetaOp::Format(Box::new(configuration()));
        meta.apply(&entry(1, format)).expect("formats");
        TestFs { meta, second: 1 }
    }

    /// Applies a change at the next second.
    pub(crate) fn apply(&mut self, op: MetaOp) -> Result<MetaReply> {
        self.second += 1;
        self.meta.apply(&entry(self.second, op))
    }

    pub(crate) fn kind(&mut self, op: MetaOp) -> ErrorKind {
        let before = self.meta.snapshot();
        let kind = self.apply(op).expect_err("refused").kind();
        assert!(self.meta.snapshot() == before, "an error changes nothing");
        kind
    }

    pub(crate) fn query(&self, query: &MetaQuery) -> MetaReply {
        self.meta.query(query).expect("answers")
    }

    pub(crate) fn make(&mut self, parent: Ino, name: &str, file_type: FileType) -> Ino {
        let op = create(parent, name, new_inode(file_type));
        inode_of(self.apply(op).expect("creates")).attr.ino
    }

    pub(crate) fn inode(&self, ino: Ino) -> Inode {
        inode_of(self.query(&MetaQuery::GetInode { ino }))
    }

    pub(crate) fn is_gone(&self, ino: Ino) -> bool {
        self.meta.query(&MetaQuery::GetInode { ino }).map_err(|error| error.kind())
            == Err(ErrorKind::Stale)
    }

    pub(crate) fn lookup(&self, parent: Ino, name: &str) -> Result<Ino> {
        let name = name.as_bytes().to_vec();
        self.meta.query(&MetaQuery::Lookup { parent, name }).map(|reply| inode_of(reply).attr.ino)
    }

    pub(crate) fn list(&self, dir: Ino) -> Vec<DirEntry> {
        let query = MetaQuery::ReadDir { dir, after: 0, limit: 4096, with_inodes: false };
        match self.query(&query) {
            MetaReply::Entries { entries, end: true } => entries,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn set_attr(&mut self, ino: Ino, change: AttrChange) -> Inode {
        inode_of(self.apply(MetaOp::SetAttr { ino, change }).expect("changes"))
    }

    /// Checks the whole file system. Every test ends with this.
    pub(crate) fn check(&self) {
        match self.query(&MetaQuery::Check) {
            MetaReply::Checked(reply) => assert_eq!(reply.faults, Vec::<String>::new()),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn new_inode(file_type: FileType) -> NewInode {
    let is_symlink = file_type == FileType::Symlink;
    NewInode {
        file_type,
        permissions: 0o755,
        umask: 0o022,
        uid: 10,
        gid: 20,
        rdev: 0,
        target: if is_symlink { b"target".to_vec() } else { Vec::new() },
    }
}

pub(crate) fn create(parent: Ino, name: &str, new: NewInode) -> MetaOp {
    MetaOp::Create { parent, name: name.as_bytes().to_vec(), new }
}

pub(crate) fn unlink(parent: Ino, name: &str, open: bool) -> MetaOp {
    MetaOp::Unlink { parent, name: name.as_bytes().to_vec(), open }
}

pub(crate) fn rmdir(parent: Ino, name: &str, open: bool) -> MetaOp {
    MetaOp::Rmdir { parent, name: name.as_bytes().to_vec(), open }
}

pub(crate) fn link(ino: Ino, parent: Ino, name: &str) -> MetaOp {
    MetaOp::Link { ino, parent, name: name.as_bytes().to_vec() }
}

pub(crate) fn inode_of(reply: MetaReply) -> Inode {
    match reply {
        MetaReply::Inode(inode) => *inode,
        other => panic!("not an inode: {other:?}"),
    }
}

pub(crate) fn removed_of(reply: MetaReply) -> Option<Removed> {
    match reply {
        MetaReply::Removed(removed) => removed,
        other => panic!("not a removal: {other:?}"),
    }
}
