//! Measures what the metadata costs by itself. Run it with
//! `cargo run --release -p strake-meta --example meta_speed`.
//!
//! The program makes, looks up, lists and removes files in one directory: first in memory, then on
//! three copies on simulated disks. It prints microseconds for each operation.

use std::sync::Arc;
use std::time::Duration;
use strake_env::disk::sim::SimDisk;
use strake_env::{Clock, Disk, RealClock};
use strake_meta::{MemoryMeta, MetaOptions, MetaStore};
use strake_observe::Waiters;
use strake_proto::layout::PoolMap;
use strake_proto::meta::{
    Configuration, FileData, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply, NewInode,
};
use strake_proto::{ClientId, ClusterId, Code, FileType, FsId, Ino, NsdId, Timestamp};
use strake_store::{Container, FormatOptions, UnusedChunks};

fn main() {
    let count = std::env::args().nth(1).map_or(Ok(1_000_000), |text| text.parse::<u64>());
    let Ok(count) = count else {
        eprintln!("usage: meta_speed [FILES]");
        std::process::exit(2);
    };
    let memory = MemoryMeta::new();
    let format = MetaOp::Format(Box::new(configuration()));
    memory.apply(&entry(format)).expect("formats");
    run("in memory", &memory, count, &|| {});

    let disks: Vec<_> = (1..=3).map(|_| SimDisk::new(16 << 30)).collect();
    let source = UnusedChunks::shared();
    let containers: Vec<Container> = disks
        .iter()
        .zip(1..)
        .map(|(disk, nsd)| {
            let options = FormatOptions {
                cluster: ClusterId([1; 16]),
                nsd: NsdId(nsd),
                fs: FsId(1),
                failure_group: nsd,
                seed: 1,
            };
            let disk = Arc::clone(disk) as Arc<dyn Disk>;
            let container = Container::format(disk, &options).expect("formats");
            container.set_chunk_source(&source);
            container
        })
        .collect();
    let options = MetaOptions::new(Arc::new(Waiters::new(RealClock::shared())));
    let store = MetaStore::format(&containers, &configuration(), options).expect("formats");
    let store = Arc::new(store);
    let worker = store.start_worker().expect("starts");
    // The simulated disks keep a log of every write. The log must not grow without bound here.
    run("on three copies", &*store, count, &|| {
        disks.iter().for_each(|disk| disk.forget_log());
    });
    drop(worker);
}

fn run(title: &str, meta: &dyn MetaPort, count: u64, each_second: &dyn Fn()) {
    println!("{title}, {count} files in one directory, microseconds for each operation:");
    let name = |index: u64| format!("file.{:08}", index * 7919 % count).into_bytes();
    let timed = |what: &str, work: &mut dyn FnMut(u64)| {
        let mut worst = Duration::ZERO;
        let start = RealClock.monotonic();
        for index in 0..count {
            let before = RealClock.monotonic();
            work(index);
            worst = worst.max(RealClock.monotonic() - before);
            if index % 20_000 == 0 {
                each_second();
            }
        }
        let mean = (RealClock.monotonic() - start).as_secs_f64() * 1e6 / count as f64;
        println!("  {what:<10} {mean:8.2}   worst {:8} us", worst.as_micros());
    };
    timed("create", &mut |index| {
        let new = NewInode {
            file_type: FileType::Regular,
            permissions: 0o644,
            umask: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            target: Vec::new(),
        };
        let op = MetaOp::Create { parent: Ino::ROOT, name: name(index), new };
        meta.apply(&entry(op)).expect("creates");
    });
    timed("lookup", &mut |index| {
        let query = MetaQuery::Lookup { parent: Ino::ROOT, name: name(index) };
        meta.query(&query).expect("finds");
    });
    timed("update 4k", &mut |index| {
        let data = Some(FileData::Inline(vec![1; 4000]));
        let ino = Ino(2 + index % 10_000.min(count));
        let (mtime, ctime) = (None, None);
        let op = MetaOp::Update { ino, size: 4000, data, allocated_delta: 0, mtime, ctime };
        meta.apply(&entry(op)).expect("updates");
    });
    let mut after = 0;
    let start = RealClock.monotonic();
    loop {
        let query = MetaQuery::ReadDir { dir: Ino::ROOT, after, limit: 4096, with_inodes: false };
        match meta.query(&query).expect("lists") {
            MetaReply::Entries { entries, end } => {
                after = entries.last().map_or(after, |last| last.cookie);
                if end {
                    break;
                }
            }
            other => panic!("{other:?}"),
        }
    }
    let mean = (RealClock.monotonic() - start).as_secs_f64() * 1e6 / count as f64;
    println!("  {:<10} {mean:8.2}", "readdir");
    timed("unlink", &mut |index| {
        let op = MetaOp::Unlink { parent: Ino::ROOT, name: name(index), open: false };
        meta.apply(&entry(op)).expect("unlinks");
    });
}

fn entry(op: MetaOp) -> MetaEntry {
    let time = Timestamp { seconds: 1_700_000_000, nanos: 123_456_789 };
    MetaEntry { client: ClientId(1), sequence: 0, time, op }
}

fn configuration() -> Configuration {
    Configuration {
        cluster: ClusterId([1; 16]),
        name: "speed".to_owned(),
        code: Code { data: 1, parity: 2 },
        block_size: 4 << 20,
        pool: PoolMap::new((1..=3).map(|nsd| (NsdId(nsd), nsd))),
        created: Timestamp { seconds: 1, nanos: 0 },
        settings: Vec::new(),
        incompat_flags: 0,
        compat_flags: 0,
    }
}
