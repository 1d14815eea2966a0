//! Files of a lone mount that are removed between the lookup of a program and its open.

use crate::StrakeVfs;
use crate::flush::last_close::close_kept;
use crate::testing::{BLOCK_SIZE, Rig};
use crate::tokens::FOUND_KEPT;
use crate::vfs::vfs_test::{create, lookup, open, read, write};
use crate::vfs::{OpenFlags, Renamed, Vfs};
use std::time::Duration;
use strake_env::Rng;
use strake_env::rng::{test_scale, test_seeds};
use strake_proto::meta::RenameMode;
use strake_proto::{Caller, ErrorKind, Groups, Ino};

const BLOCK: usize = BLOCK_SIZE as usize;

/// The superuser's thread of this number.
fn thread(number: u32) -> Caller {
    Caller { uid: 0, gid: 0, pid: number, umask: 0, groups: Groups::Known(Vec::new()) }
}

/// Makes a file with these bytes.
fn make(vfs: &StrakeVfs, name: &str, bytes: &[u8]) -> Ino {
    let (ino, handle) = create(vfs, name);
    write(vfs, handle, 0, bytes);
    vfs.release(handle);
    ino
}

#[test]
fn a_file_that_another_thread_has_just_looked_up_can_be_opened_for_a_moment() {
    let (rig, long) = (Rig::new("2x", 2), vec![7; 3 * BLOCK]);
    let vfs = rig.start(0);
    let (reader, writer) = (thread(7), thread(8));
    let file = make(&vfs, "file", &long);
    let before = vfs.statfs().expect("told").inodes_used;
    vfs.lookup(&reader, Ino::ROOT, b"file").expect("found");
    let new = make(&vfs, "new", b"new");
    vfs.lookup(&writer, Ino::ROOT, b"file").expect("found");
    let (from, to) = ((Ino::ROOT, &b"new"[..]), (Ino::ROOT, &b"file"[..]));
    let renamed = vfs.rename(&writer, from, to, RenameMode::Replace).expect("replaced");
    assert_eq!(renamed, Renamed { moved: [Some(new), None] });

    let handle = vfs.open(&reader, file, OpenFlags::READ_WRITE).expect("opened").handle;
    assert_eq!(read(&vfs, handle, 0, 4 * BLOCK), long);
    let soon = vfs.mount.array.clock.monotonic() + FOUND_KEPT + Duration::from_secs(1);
    assert!(close_kept(&vfs.mount, soon));
    assert_eq!(read(&vfs, handle, 0, 4 * BLOCK), long, "it is open");
    vfs.release(handle);
    assert_eq!(vfs.statfs().expect("told").inodes_used, before, "it is gone");
    assert!(vfs.open(&reader, file, OpenFlags::READ_WRITE).is_err());
    vfs.shutdown().expect("ended");
}

#[test]
fn what_its_own_thread_has_looked_up_is_gone_at_once_and_what_is_kept_goes_with_the_mount() {
    let rig = Rig::new("2x", 2);
    let vfs = rig.start(0);
    let before = vfs.statfs().expect("told").inodes_used;
    let own = thread(7);
    let file = make(&vfs, "file", b"bytes");
    vfs.lookup(&own, Ino::ROOT, b"file").expect("found");
    vfs.unlink(&own, Ino::ROOT, b"file").expect("removed");
    assert_eq!(vfs.statfs().expect("told").inodes_used, before);
    let gone = vfs.open(&own, file, OpenFlags::READ_WRITE).expect_err("gone");
    assert_eq!(gone.kind(), ErrorKind::Stale);

    make(&vfs, "kept", b"bytes");
    vfs.lookup(&own, Ino::ROOT, b"kept").expect("found");
    vfs.unlink(&thread(8), Ino::ROOT, b"kept").expect("removed");
    assert_eq!(vfs.statfs().expect("told").inodes_used, before + 1);
    vfs.shutdown().expect("ended");
    let vfs = rig.start(1);
    assert_eq!(vfs.statfs().expect("told").inodes_used, before);
    vfs.shutdown().expect("ended");
}

#[test]
fn a_writer_that_finds_no_room_gets_that_of_kept_files() {
    let rig = Rig::new("1", 1);
    rig.nsds.iter().for_each(|nsd| nsd.set_capacity(12 << 20));
    let vfs = rig.start(0);
    let (long, handle) = create(&vfs, "long");
    let mut length = 0;
    while let Ok(count) = vfs.write(handle, length, &[7; 100_000]) {
        length += count as u64;
    }
    vfs.release(handle);
    vfs.lookup(&thread(7), Ino::ROOT, b"long").expect("found");
    vfs.unlink(&thread(8), Ino::ROOT, b"long").expect("removed");
    vfs.getattr(long).expect("it is there");
    let (_, handle) = create(&vfs, "next");
    write(&vfs, handle, 0, &vec![8; length as usize / 2]);
    vfs.fsync(handle).expect("there is room");
    vfs.shutdown().expect("ended");
}

/// A reader opens a file by its name, in two steps as a kernel does, while it is replaced and
/// removed. It sees all of one version.
#[test]
fn whoever_has_looked_a_file_up_opens_it() {
    for seed in test_seeds(1, 4 * test_scale()) {
        let rig = Rig::new("1", 1);
        let vfs = rig.start(0);
        make(&vfs, "file", &[0; 100]);
        let before = vfs.statfs().expect("told").inodes_used;
        strake_env::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut rng, writer) = (Rng::new(seed), thread(8));
                for version in 1..200 {
                    make(&vfs, "new", &vec![version; 100 + rng.index(2 * BLOCK)]);
                    if rng.one_in(3) {
                        vfs.lookup(&writer, Ino::ROOT, b"file").expect("found");
                    }
                    let (from, to) = ((Ino::ROOT, &b"new"[..]), (Ino::ROOT, &b"file"[..]));
                    vfs.rename(&writer, from, to, RenameMode::Replace).expect("replaced");
                }
            });
            let reader = thread(7);
            for _ in 0..400 {
                let found = vfs.lookup(&reader, Ino::ROOT, b"file").expect("always there").attr.ino;
                let opened = vfs.open(&reader, found, OpenFlags::READ_WRITE);
                let handle = opened.unwrap_or_else(|error| panic!("seed {seed}: {error}")).handle;
                let bytes = read(&vfs, handle, 0, 3 * BLOCK);
                assert!(bytes.len() >= 100 && bytes.iter().all(|byte| *byte == bytes[0]));
                vfs.release(handle);
                vfs.forget(found, 1);
            }
        });
        close_kept(&vfs.mount, Duration::MAX);
        assert_eq!(vfs.statfs().expect("told").inodes_used, before, "seed {seed}");
        assert_eq!(open(&vfs, "file").0.ino, lookup(&vfs, "file").attr.ino);
        vfs.shutdown().expect("ended");
    }
}
