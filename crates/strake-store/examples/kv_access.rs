//! Measures key-value engines on the metadata's access pattern (docs/decisions/0001-kv-engine.md).
//!
//! `cargo run --release -p strake-store --example kv_access -- DIR [FILES]` creates FILES files
//! (default 200,000) in 200 directories, as the state machine would: one negative lookup per file,
//! then one batch of five records. Then it looks names up, lists directories, makes a checkpoint
//! and opens the store again. It makes its containers in DIR. Figures are per operation, on one
//! thread.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use strake_env::disk::file::Allocation;
use strake_env::{Clock, FileDisk, RealClock, Rng};
use strake_proto::{ClusterId, FsId, NsdId, Result};
use strake_store::{
    Batch, Container, FormatOptions, Journal, Kv, KvRead, KvRole, Lsn, UnusedChunks,
};

const DIRECTORIES: u64 = 200;
const CACHE_BYTES: usize = 64 << 20;
const TABLE: redb::TableDefinition<&[u8], &[u8]> = redb::TableDefinition::new("pairs");

type Pair = (Vec<u8>, Vec<u8>);

/// The name that a create looks up, and the pairs that it writes.
struct Create {
    dentry: Vec<u8>,
    pairs: [Pair; 5],
}

fn key(table: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut key = vec![table, 0, 0];
    parts.iter().for_each(|part| key.extend_from_slice(part));
    key
}

fn name(file: u64) -> String {
    format!("file-{file:08}.dat")
}

fn create(file: u64) -> Create {
    let (directory, ino) = ((file % DIRECTORIES).to_be_bytes(), (1000 + file).to_be_bytes());
    let cookie = (file / DIRECTORIES).to_be_bytes();
    let name = name(file);
    let dentry = key(b'D', &[&directory, name.as_bytes()]);
    let inode = |seed: u64| vec![seed as u8; 120];
    let pairs = [
        (key(b'I', &[&ino]), inode(file)),
        (dentry.clone(), vec![1; 26]),
        (key(b'C', &[&directory, &cookie]), vec![2; 18 + name.len()]),
        (key(b'I', &[&directory]), inode(file + 1)),
        (key(b'R', &[&[7; 8]]), vec![3; 40]),
    ];
    Create { dentry, pairs }
}

struct Timer(RealClock, Duration);

impl Timer {
    fn start() -> Timer {
        Timer(RealClock, RealClock.monotonic())
    }

    fn report(self, engine: &str, what: &str, count: u64) {
        let elapsed = self.0.monotonic() - self.1;
        let micros = elapsed.as_secs_f64() * 1e6 / count as f64;
        println!("{engine:<28} {what:<34} {micros:>10.2} µs  ({count} in {elapsed:.2?})");
    }
}

fn container(directory: &Path, name: &str) -> Result<(Container, PathBuf)> {
    let path = directory.join(format!("kv_access-{name}"));
    let _ = std::fs::remove_file(&path);
    let disk = FileDisk::create(&path, 16 << 30, Allocation::Sparse)?;
    let options = FormatOptions {
        cluster: ClusterId([1; 16]),
        nsd: NsdId(1),
        fs: FsId(1),
        failure_group: 1,
        seed: 1,
    };
    Ok((Container::format(Arc::new(disk), &options)?, path))
}

/// Our store with its journal, as `strake-meta` uses them.
fn overlay_over_redb(directory: &Path, files: u64) -> Result<()> {
    const ENGINE: &str = "overlay over redb + journal";
    let (container, path) = container(directory, "overlay")?;
    let source = UnusedChunks::shared();
    container.set_chunk_source(&source);
    let kv = Kv::open(container.kv_region(KvRole::Metadata), CACHE_BYTES)?;
    let (journal, _) = Journal::open(container.metadata_log())?;
    for half in 0..2 {
        let timer = Timer::start();
        for file in half * files / 2..(half + 1) * files / 2 {
            let create = create(file);
            assert!(kv.get(&create.dentry)?.is_none(), "the name is free");
            let mut batch = Batch::new();
            for (key, value) in create.pairs {
                batch.put(key, value);
            }
            let lsn = journal.append(&[0; 160])?;
            kv.apply(batch, lsn);
            if file % 20_000 == 19_999 {
                journal.sync()?;
                let upto = Lsn(journal.last().0 + 1);
                journal.trim(upto)?;
            }
        }
        let what = ["create, base empty", "create, half in the base"][half as usize];
        timer.report(ENGINE, what, files / 2);
        let timer = Timer::start();
        journal.sync()?;
        kv.checkpoint()?;
        timer.report(ENGINE, "checkpoint, per create", files / 2);
    }
    read_all(ENGINE, &kv, files)?;
    let timer = Timer::start();
    for file in files..files + 200 {
        kv.apply(Batch::new(), journal.append(&[file as u8; 160])?);
        journal.sync()?;
    }
    timer.report(ENGINE, "journal sync of one entry", 200);
    drop((kv, journal));
    let timer = Timer::start();
    let kv = Kv::open(container.kv_region(KvRole::Metadata), CACHE_BYTES)?;
    Journal::open(container.metadata_log())?;
    timer.report(ENGINE, "open store and journal", 1);
    read_all("… after opening", &kv, files)?;
    println!("{ENGINE:<28} base on disk: {} MiB", kv.stats().base_bytes >> 20);
    let _ = std::fs::remove_file(path);
    Ok(())
}

fn read_all(engine: &str, kv: &dyn KvRead, files: u64) -> Result<()> {
    let mut rng = Rng::new(1);
    let timer = Timer::start();
    for _ in 0..files {
        assert!(kv.get(&create(rng.below(files)).dentry)?.is_some(), "the name is there");
    }
    timer.report(engine, "lookup of a random name", files);
    let timer = Timer::start();
    let mut listed = 0;
    for directory in 0..DIRECTORIES {
        let mut from = key(b'C', &[&directory.to_be_bytes()]);
        let to = key(b'C', &[&(directory + 1).to_be_bytes()]);
        loop {
            let (mut count, mut last) = (0, Vec::new());
            kv.scan(&from, &to, &mut |key, _| {
                last = key.to_vec();
                count += 1;
                count < 100
            })?;
            listed += count;
            if count < 100 {
                break;
            }
            from = last;
            from.push(0);
        }
    }
    assert_eq!(listed, files, "every name is listed");
    timer.report(engine, "listing, 100 names a call, per name", files);
    Ok(())
}

/// Measures redb alone, with one commit for every `batch` creates.
fn redb_alone(directory: &Path, files: u64, batch: u64, is_durable: bool) -> Result<()> {
    let path = directory.join("kv_access-redb");
    let _ = std::fs::remove_file(&path);
    run_redb(&path, files, batch, is_durable).map_err(|error| {
        strake_proto::Error::new(strake_proto::ErrorKind::Io, error.to_string())
    })?;
    let _ = std::fs::remove_file(&path);
    Ok(())
}

fn run_redb(
    path: &Path,
    files: u64,
    batch: u64,
    is_durable: bool,
) -> std::result::Result<(), redb::Error> {
    use redb::{ReadableDatabase, ReadableTable};
    let how = if is_durable { "durable" } else { "not durable" };
    let engine = format!("redb, {batch}/commit, {how}");
    let database = redb::Builder::new().set_cache_size(CACHE_BYTES).create(path)?;
    let timer = Timer::start();
    for first in (0..files).step_by(batch as usize) {
        let mut transaction = database.begin_write()?;
        if is_durable {
            transaction.set_quick_repair(true);
        } else {
            transaction.set_durability(redb::Durability::None)?;
        }
        {
            let mut table = transaction.open_table(TABLE)?;
            for file in first..(first + batch).min(files) {
                let create = create(file);
                assert!(table.get(&create.dentry[..])?.is_none(), "the name is free");
                for (key, value) in &create.pairs {
                    table.insert(&key[..], &value[..])?;
                }
            }
        }
        transaction.commit()?;
    }
    timer.report(&engine, "create", files);
    let transaction = database.begin_read()?;
    let table = transaction.open_table(TABLE)?;
    let mut rng = Rng::new(1);
    let timer = Timer::start();
    for _ in 0..files {
        let found = table.get(&create(rng.below(files)).dentry[..])?;
        assert!(found.is_some(), "the name is there");
    }
    timer.report(&engine, "lookup of a random name", files);
    Ok(())
}

fn map_alone(files: u64) {
    const ENGINE: &str = "BTreeMap, nothing durable";
    let mut map: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let timer = Timer::start();
    for file in 0..files {
        let create = create(file);
        assert!(!map.contains_key(&create.dentry), "the name is free");
        map.extend(create.pairs);
    }
    timer.report(ENGINE, "create", files);
    let mut rng = Rng::new(1);
    let timer = Timer::start();
    for _ in 0..files {
        assert!(map.contains_key(&create(rng.below(files)).dentry), "the name is there");
    }
    timer.report(ENGINE, "lookup of a random name", files);
    let timer = Timer::start();
    for file in 0..files {
        std::hint::black_box(create(file));
    }
    timer.report("(making keys and values)", "create", files);
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let Some(directory) = arguments.next() else {
        eprintln!("usage: kv_access DIR [FILES]");
        std::process::exit(2);
    };
    let files = arguments.next().and_then(|count| count.parse().ok()).unwrap_or(200_000);
    let directory = Path::new(&directory);
    map_alone(files);
    overlay_over_redb(directory, files)?;
    redb_alone(directory, files, 1000, true)?;
    redb_alone(directory, files, 1, false)?;
    redb_alone(directory, (files / 100).max(1), 1, true)
}
