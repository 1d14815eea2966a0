//! Golden bytes of records and entries, and fuzzing of all code that reads them.

use super::*;
use crate::log_entry::{LogEntry, LogEntryRef, decode_entry, encode_entry, encode_goes_on};
use crate::memory::MemoryMeta;
use crate::testing::{TestFs, configuration, create, entry, link, new_inode, unlink};
use crate::{keys, machine, query};
use strake_env::Rng;
use strake_proto::layout::{NsdAvailability, NsdStatus};
use strake_proto::meta::{
    CountedEntry, DELETED_NSDS, MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply,
};
use strake_proto::{Code, LayoutVersion};
use strake_store::Batch;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn plain(entry: &MetaEntry) -> Vec<u8> {
    encode_entry(LogEntryRef::Plain(entry)).expect("fits")
}

fn counted_bytes(sequence: u64, life: u64, op: MetaOp) -> Vec<u8> {
    let entry = MetaEntry { sequence, ..entry(3, op) };
    encode_entry(LogEntryRef::Counted(&CountedEntry { life, oldest: 1, entry })).expect("fits")
}

fn time(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 5 }
}

fn layout() -> ObjectLayout {
    ObjectLayout {
        object: ObjectId(300),
        code: Code { data: 4, parity: 2 },
        block_size: 4 << 20,
        layout: LayoutVersion(1),
        key: 0,
    }
}

fn inode() -> InodeRecord {
    InodeRecord {
        generation: Generation(1),
        file_type: FileType::Regular,
        permissions: 0o644,
        links: 1,
        uid: 1000,
        gid: 100,
        rdev: 0,
        size: 5,
        allocated: 4096,
        atime: time(-1),
        mtime: time(2),
        ctime: time(3),
        btime: time(4),
        parent: Ino(0),
        next_cookie: 3,
        entries: 0,
        has_acl: true,
        has_default_acl: false,
        xattr_count: 2,
        xattr_name_bytes: 30,
        xattr_value_bytes: 40,
        hardened: 0,
        reserved: vec![ObjectId(7)],
        place: Place::Inline,
        tail: b"hello".to_vec(),
    }
}

/// The bytes on disks of today. A change of them needs a new version, and these must still be read.
#[test]
fn the_bytes_of_records_never_change() {
    let inode = inode();
    let golden = "010100a40301e8076400058020010504050605080500030001 00021e2800010701 68656c6c6f";
    assert_eq!(hex(&inode.encode()), golden.replace(' ', ""));
    assert_eq!(InodeRecord::decode(&inode.encode()), Ok(inode.clone()));
    let striped = InodeRecord { place: Place::Objects(vec![layout()]), tail: vec![], ..inode };
    assert!(
        hex(&striped.encode()).ends_with("0201ac02040280808002 0100".replace(' ', "").as_str())
    );
    assert_eq!(InodeRecord::decode(&striped.encode()), Ok(striped));
    let (ino, generation, file_type) = (Ino(300), Generation(1), FileType::Directory);
    let dentry = DentryRecord { ino, generation, file_type, cookie: 3 };
    assert_eq!(hex(&encode(&dentry)), "01ac02010103");
    let place = PlaceRecord { ino, file_type, name: b"ab".to_vec() };
    assert_eq!(hex(&encode(&place)), "01ac0201026162");
    let orphan = OrphanRecord { client: ClientId(7), linkable: true };
    assert_eq!(hex(&encode(&orphan)), "010701");
    let reserved = ReservedRecord { client: ClientId(7), ino, layout: layout() };
    assert_eq!(hex(&encode(&reserved)), "0107ac02ac020402808080020100");
    let counters = Counters {
        next_ino: 2,
        next_object: 1,
        next_pending: 1,
        next_grant: 3,
        inodes: 1,
        allocated: 0,
    };
    assert_eq!(hex(&encode(&counters)), "01020101030100");
    let entry = entry(3, unlink(Ino(1), "a", true));
    let bytes = encode_entry(LogEntryRef::Plain(&entry)).expect("fits");
    assert_eq!(hex(&bytes), "01070006000301016101");
}

/// The bytes of a client whose changes are not counted are those of version 0.1, which kept a
/// sequence and a whole reply.
#[test]
fn the_bytes_of_counted_changes_never_change() {
    assert_eq!(hex(&SessionRecord::default().encode()), "01000e");
    let old = (9_u64, MetaReply::Session { grant: strake_proto::GrantNumber(3) });
    assert_eq!(SessionRecord::decode(&encode(&old)), Ok(SessionRecord::default()));
    let session = SessionRecord::new(300, 7);
    assert_eq!(hex(&session.encode()), "02ac0207");
    assert_eq!(SessionRecord::decode(&session.encode()), Ok(session));
    let numbers = Numbers { inodes: (5, 300), objects: (1, 4), since: 9 };
    let session = SessionRecord { numbers, ..session };
    assert_eq!(hex(&session.encode()), "03ac020705ac02010409");
    assert_eq!(SessionRecord::decode(&session.encode()), Ok(session));
    let answer = |outcome| AnswerRecord { sequence: 9, position: 300, outcome };
    for (outcome, golden) in [
        (Outcome::Reply(MetaReply::Done), "0109ac02000e"),
        (Outcome::Configuration, "0109ac0201"),
        (Outcome::Refused(ErrorKind::Exists, "ab".to_owned()), "0109ac020201026162"),
        (Outcome::Refused(ErrorKind::Internal, String::new()), "0109ac02022300"),
    ] {
        let record = answer(outcome);
        assert_eq!(hex(&encode(&record)), golden);
        assert_eq!(decode(&encode(&record)), Ok(record));
    }
    let entry = MetaEntry { sequence: 9, ..entry(3, unlink(Ino(1), "a", true)) };
    let counted = CountedEntry { life: 300, oldest: 8, entry };
    let bytes = encode_entry(LogEntryRef::Counted(&counted)).expect("fits");
    assert_eq!(hex(&bytes), "03ac0208070906000301016101");
    assert_eq!(decode_entry(&bytes), Ok(LogEntry::Counted(counted.clone())));
    let before = [&[2], &bytes[1..]].concat();
    assert_eq!(decode_entry(&before), Ok(LogEntry::CountedBefore(counted)));
    let lost = [2, 300].map(strake_proto::NsdId).to_vec();
    let bytes = encode_goes_on(&lost);
    assert_eq!(hex(&bytes), "040202ac02");
    assert_eq!(decode_entry(&bytes), Ok(LogEntry::GoesOn(lost)));
}

/// The bytes of a pool map from before any NSD was deleted are still read. So are the bytes of a
/// map with a deleted NSD. Older programs do not know that variant and refuse it.
#[test]
fn the_bytes_of_configurations_never_change() {
    let mut configuration = configuration();
    configuration.cluster = strake_proto::ClusterId([0; 16]);
    let head = "01 00000000000000000000000000000000 057465737473 0101 80808002 01 03";
    let layouts = "01 01 03 0001 0102 0203";
    let bytes = encode(&configuration);
    let golden = format!("{head} 01010000 02020000 03030000 {layouts} 0200 00 00 00");
    assert_eq!(hex(&bytes), golden.replace(' ', ""));
    assert_eq!(decode(&bytes), Ok(configuration.clone()));
    configuration.pool.slots[1].state.status = NsdStatus::Deleted { order: 0 };
    configuration.pool.slots[1].state.availability = NsdAvailability::Down;
    configuration.incompat_flags = DELETED_NSDS;
    let bytes = encode(&configuration);
    let golden = format!("{head} 01010000 0202050001 03030000 {layouts} 0200 00 01 00");
    assert_eq!(hex(&bytes), golden.replace(' ', ""));
    assert_eq!(decode(&bytes), Ok(configuration));
}

#[test]
fn a_newer_version_is_refused_by_name() {
    let mut bytes = inode().encode();
    bytes[0] = 2;
    let error = InodeRecord::decode(&bytes).expect_err("refused").to_string();
    assert!(error.contains("version 2"), "{error}");
}

/// Bit flips, cuts and insertions.
fn mutate(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..=rng.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = rng.index(bytes.len());
        match rng.below(4) {
            0 => bytes[at] = rng.below(256) as u8,
            1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes.truncate(at),
            _ => bytes.insert(at, rng.below(256) as u8),
        }
    }
}

#[test]
fn malformed_records_and_entries_are_errors() {
    let mut rng = Rng::new(3);
    let good: Vec<Vec<u8>> = vec![
        inode().encode(),
        plain(&entry(1, MetaOp::Format(Box::new(configuration())))),
        plain(&entry(2, create(Ino(1), "a", new_inode(FileType::Symlink)))),
        counted_bytes(3, 1, link(Ino(2), Ino(1), "b")),
        SessionRecord::new(3, 2).encode(),
        encode(&AnswerRecord {
            sequence: 4,
            position: 9,
            outcome: Outcome::Refused(ErrorKind::NotFound, "b".to_owned()),
        }),
        encode(&configuration()),
    ];
    let mut decoded = 0;
    for _ in 0..100_000 {
        let mut bytes = good[rng.index(good.len())].clone();
        mutate(&mut rng, &mut bytes);
        if let Ok(record) = InodeRecord::decode(&bytes) {
            decoded += 1;
            assert_eq!(InodeRecord::decode(&record.encode()), Ok(record));
        }
        decoded += usize::from(decode_entry(&bytes).is_ok());
        decoded += usize::from(decode::<strake_proto::meta::Configuration>(&bytes).is_ok());
        decoded += usize::from(decode::<strake_proto::meta::PendingRange>(&bytes).is_ok());
        decoded += usize::from(SessionRecord::decode(&bytes).is_ok());
        decoded += usize::from(decode::<AnswerRecord>(&bytes).is_ok());
    }
    assert!(decoded > 1000, "the fuzzer reaches what decodes: {decoded}");
}

/// A mutated entry is refused or applied. The store is sound either way.
#[test]
fn entries_of_any_content_leave_the_store_sound() {
    let mut rng = Rng::new(4);
    let (mut applied, meta) = (0, MemoryMeta::new());
    meta.apply(&entry(1, MetaOp::Format(Box::new(configuration())))).expect("formats");
    let name = |rng: &mut Rng| format!("{}", rng.below(5));
    for step in 0..20_000 {
        let ino = Ino(1 + rng.below(30));
        let types = [FileType::Regular, FileType::Directory, FileType::Symlink, FileType::Fifo];
        let op = match rng.below(8) {
            0..3 => create(ino, &name(&mut rng), new_inode(types[rng.index(4)])),
            3 => link(ino, Ino::ROOT, &name(&mut rng)),
            4 => unlink(Ino::ROOT, &name(&mut rng), true),
            5 => MetaOp::NewObject { ino },
            6 => MetaOp::SetAttr { ino, change: Default::default() },
            _ => MetaOp::Truncate {
                ino,
                size: rng.next_u64() >> rng.below(64),
                from_block: None,
                version: strake_proto::Version::NONE,
                allocated_delta: rng.next_u64() as i64,
            },
        };
        let mut bytes = match rng.one_in(3) {
            true => counted_bytes(rng.below(20) + 1, rng.below(3), op),
            false => plain(&entry(step, op)),
        };
        if rng.one_in(2) {
            mutate(&mut rng, &mut bytes);
        }
        applied += usize::from(match decode_entry(&bytes) {
            Ok(LogEntry::Plain(entry)) => meta.apply(&entry).is_ok(),
            Ok(LogEntry::Counted(counted) | LogEntry::CountedBefore(counted)) => {
                meta.apply_counted(&counted).is_ok()
            }
            Ok(LogEntry::GoesOn(_)) | Err(_) => false,
        });
        if step % 500 == 0 {
            let faults = crate::check::check(&meta.snapshot()).expect("walks").faults;
            assert!(faults.is_empty(), "step {step}: {faults:?}");
        }
    }
    assert!(applied > 1000, "the fuzzer reaches what applies: {applied}");
}

/// A damaged store gives errors and faults, never a panic.
#[test]
fn a_damaged_store_is_an_error() {
    let mut fs = TestFs::new();
    let dir = fs.make(Ino::ROOT, "d", FileType::Directory);
    let file = fs.make(dir, "f", FileType::Regular);
    fs.apply(MetaOp::NewObject { ino: file }).expect("reserves");
    fs.apply(link(file, Ino::ROOT, "g")).expect("links");
    let sound = fs.meta.snapshot();
    let records: Vec<(Vec<u8>, Vec<u8>)> = {
        use strake_store::KvRead;
        let mut records = Vec::new();
        sound
            .scan(&[], &[0xff], &mut |key, value| {
                records.push((key.to_vec(), value.to_vec()));
                true
            })
            .expect("scans");
        records
    };
    assert!(records.iter().any(|(key, _)| *key == keys::inode(dir)));
    let mut rng = Rng::new(6);
    for step in 0..3000 {
        let (key, mut value) = records[rng.index(records.len())].clone();
        mutate(&mut rng, &mut value);
        let mut batch = Batch::new();
        if rng.one_in(5) {
            batch.delete(key)
        } else {
            batch.put(key, value)
        }
        let mut kv = sound.clone();
        kv.apply(&batch);
        for op in [
            create(dir, "new", new_inode(FileType::Directory)),
            unlink(dir, "f", false),
            unlink(Ino::ROOT, "g", true),
            crate::testing::rmdir(Ino::ROOT, "d", false),
            MetaOp::Join,
            MetaOp::NewObject { ino: file },
        ] {
            drop(machine::apply(&kv, &entry(step, op)));
        }
        for question in [
            MetaQuery::IsReserved { object: strake_proto::ObjectId(3) },
            MetaQuery::Check,
            MetaQuery::ScanInodes { after: Ino(0), limit: 100 },
            MetaQuery::ReadDir { dir, after: 0, limit: 10, with_inodes: true },
            MetaQuery::Configuration,
        ] {
            drop(query::query(&kv, &question));
        }
    }
}
