//! The operations end to end, one by one.

use crate::StrakeVfs;
use crate::testing::{BLOCK_SIZE, Rig};
use crate::vfs::{Entry, FallocateMode, Handle, OpenFlags, SeekFor, SetAttr, SetTime, Vfs};
use std::sync::Arc;
use std::time::Duration;
use strake_proto::meta::{MetaPort, MetaQuery, MetaReply, RenameMode, XattrMode};
use strake_proto::{Attr, ByteCount, Caller, ErrorKind, Groups, Ino, Timestamp};

const RW: OpenFlags = OpenFlags::READ_WRITE;
const ROOT: &Caller = &Caller::ROOT;
const BLOCK: u64 = BLOCK_SIZE as u64;

fn user(uid: u32) -> Caller {
    Caller { uid, gid: uid, pid: 0, umask: 0o022, groups: Groups::Known(Vec::new()) }
}

pub(crate) fn create(vfs: &StrakeVfs, name: &str) -> (Ino, Handle) {
    let (entry, opened) =
        vfs.create(ROOT, Ino::ROOT, name.as_bytes(), 0o644, RW, true).expect("created");
    (entry.attr.ino, opened.handle)
}

pub(crate) fn lookup(vfs: &StrakeVfs, name: &str) -> Entry {
    vfs.lookup(ROOT, Ino::ROOT, name.as_bytes()).expect("found")
}

pub(crate) fn open(vfs: &StrakeVfs, name: &str) -> (Attr, Handle) {
    let attr = lookup(vfs, name).attr;
    (attr, vfs.open(ROOT, attr.ino, RW).expect("opened").handle)
}

pub(crate) fn read(vfs: &StrakeVfs, handle: Handle, offset: u64, length: usize) -> Vec<u8> {
    let mut out = vec![0xee; length];
    let count = vfs.read(handle, offset, &mut out).expect("read");
    out.truncate(count);
    out
}

pub(crate) fn write(vfs: &StrakeVfs, handle: Handle, offset: u64, bytes: &[u8]) {
    assert_eq!(vfs.write(handle, offset, bytes).expect("written"), bytes.len());
}

pub(crate) fn pattern(length: usize, salt: u8) -> Vec<u8> {
    (0..length).map(|at| (at / 13) as u8 ^ (at >> 8) as u8 ^ salt).collect()
}

fn names(vfs: &StrakeVfs, dir: Ino) -> Vec<String> {
    let mut names = Vec::new();
    vfs.readdir(dir, 0, false, &mut |item| {
        names.push(String::from_utf8_lossy(&item.name).into_owned());
        true
    })
    .expect("listed");
    names.retain(|name| name != "." && name != "..");
    names
}

#[test]
fn files_of_all_lengths_are_read_back_before_and_after_a_restart() {
    let lengths = [0, 1, 4000, 4001, 100_000, 262_144, 262_145, 1_000_000, 3 * BLOCK as usize + 17];
    for code in ["1", "2x", "4+2p", "8+2p"] {
        let rig = Rig::new(code, 10);
        let vfs = rig.start(0);
        for (at, length) in lengths.iter().enumerate() {
            let (ino, handle) = create(&vfs, &format!("f{at}"));
            let bytes = pattern(*length, at as u8);
            for (index, part) in bytes.chunks(100_000).enumerate() {
                write(&vfs, handle, index as u64 * 100_000, part);
            }
            assert_eq!(vfs.getattr(ino).expect("attr").size, *length as u64);
            assert!(read(&vfs, handle, 0, length + 10) == bytes, "{code} {length}");
            vfs.release(handle);
            vfs.forget(ino, 1);
        }
        vfs.shutdown().expect("flushed");
        drop(vfs);
        assert_eq!(rig.unsettled(), 0, "{code}: a clean end leaves nothing to recover");
        let vfs = rig.start(0);
        for (at, length) in lengths.iter().enumerate() {
            let (attr, handle) = open(&vfs, &format!("f{at}"));
            assert_eq!(attr.size, *length as u64);
            assert!(read(&vfs, handle, 0, length + 10) == pattern(*length, at as u8), "{code}");
            let held = if *length <= 4000 { 0 } else { (*length as u64).next_multiple_of(4096) };
            assert_eq!(attr.allocated, held, "{code} {length}");
            vfs.release(handle);
        }
        vfs.shutdown().expect("ended");
    }
}

#[test]
fn fsync_survives_a_power_cut_and_the_loss_of_what_the_code_tolerates() {
    for (code, away) in [("1", 0), ("2x", 0b1), ("4+2p", 0b101), ("8+2p", 0b11)] {
        let rig = Rig::new(code, 10);
        let vfs = rig.start(0);
        let (_, handle) = create(&vfs, "big");
        let (_, small) = create(&vfs, "small");
        write(&vfs, handle, 0, &pattern(700_000, 1));
        write(&vfs, small, 0, b"in the inode");
        vfs.fsync(handle).expect("synced");
        vfs.fsync(small).expect("synced");
        write(&vfs, handle, 600_000, &pattern(700_000, 2));
        drop(vfs);
        rig.crash();
        let vfs = rig.start(away);
        let (attr, handle) = open(&vfs, "big");
        assert!(attr.size >= 700_000);
        assert!(read(&vfs, handle, 0, 600_000) == pattern(700_000, 1)[..600_000], "{code}");
        let (_, small) = open(&vfs, "small");
        assert_eq!(read(&vfs, small, 0, 100), b"in the inode");
        write(&vfs, handle, 0, &pattern(1_000_000, 3));
        vfs.fsync(handle).expect("degraded");
        drop(vfs);
        rig.crash();
        let vfs = rig.start(away);
        let (_, handle) = open(&vfs, "big");
        assert!(read(&vfs, handle, 0, 1_000_000) == pattern(1_000_000, 3), "{code}");
        vfs.shutdown().expect("ended");
    }
}

#[test]
fn an_nsd_that_returns_is_brought_up_to_date_and_can_then_stand_in_for_others() {
    for code in ["2x", "4+2p"] {
        let rig = Rig::new(code, 7);
        let vfs = rig.start(0);
        let (_, handle) = create(&vfs, "before");
        write(&vfs, handle, 0, &pattern(1_000_000, 1));
        let (_, gone) = create(&vfs, "gone");
        write(&vfs, gone, 0, &pattern(1_000_000, 9));
        vfs.sync().expect("synced");
        vfs.array().attach_nsd(strake_proto::SlotIndex(2), None);
        write(&vfs, handle, 300_000, &pattern(300_000, 2));
        let (_, during) = create(&vfs, "during");
        write(&vfs, during, 0, &pattern(2_000_000, 3));
        vfs.unlink(ROOT, Ino::ROOT, b"gone").expect("unlinked");
        vfs.release(gone);
        vfs.sync().expect("synced");
        vfs.array().attach_nsd(strake_proto::SlotIndex(2), rig.port(2));
        vfs.manager.recover_nsds();
        let up = vfs.array().nsds().iter().all(|nsd| nsd.state.availability.readable());
        assert!(up, "{code}: {:?}", vfs.array().nsds());
        vfs.shutdown().expect("ended");
        drop(vfs);
        // Now others are away: the returned one must have everything.
        let away = if code == "2x" { 0b1 } else { 0b11 };
        let vfs = rig.start(away);
        let mut expected = pattern(1_000_000, 1);
        expected[300_000..600_000].copy_from_slice(&pattern(300_000, 2));
        let (_, handle) = open(&vfs, "before");
        assert!(read(&vfs, handle, 0, 1_000_000) == expected, "{code}");
        let (_, during) = open(&vfs, "during");
        assert!(read(&vfs, during, 0, 2_000_000) == pattern(2_000_000, 3), "{code}");
        vfs.shutdown().expect("ended");
    }
}

#[test]
fn what_was_cut_off_never_comes_back() {
    let rig = Rig::new("4+2p", 6);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, &pattern(3 * BLOCK as usize, 1));
    vfs.fsync(handle).expect("synced");
    let cut = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    for size in [2 * BLOCK + 5000, BLOCK + 1, 100, 5000, 3 * BLOCK] {
        let attr = vfs.setattr(ROOT, ino, Some(handle), &cut(size)).expect("cut");
        assert_eq!(attr.size, size);
    }
    let mut expected = pattern(100, 1);
    expected.resize(3 * BLOCK as usize, 0);
    assert!(read(&vfs, handle, 0, 3 * BLOCK as usize) == expected);
    vfs.fsync(handle).expect("synced");
    drop(vfs);
    rig.crash();
    let vfs = rig.start(0);
    let (attr, handle) = open(&vfs, "f");
    assert_eq!(attr.size, 3 * BLOCK);
    assert!(read(&vfs, handle, 0, 3 * BLOCK as usize) == expected);
    vfs.shutdown().expect("ended");
}

#[test]
fn a_truncation_that_was_not_synced_leaves_the_synced_bytes_alone() {
    let rig = Rig::new("4+2p", 6);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    let bytes = pattern(3 * BLOCK as usize, 1);
    write(&vfs, handle, 0, &bytes);
    vfs.fsync(handle).expect("synced");
    let cut = SetAttr { size: Some(10), ..SetAttr::default() };
    vfs.setattr(ROOT, ino, None, &cut).expect("cut");
    drop(vfs);
    rig.crash();
    let vfs = rig.start(0);
    let (attr, handle) = open(&vfs, "f");
    let expected = &bytes[..attr.size as usize];
    assert!(attr.size == 10 || attr.size == bytes.len() as u64);
    assert!(read(&vfs, handle, 0, bytes.len()) == expected);
    vfs.shutdown().expect("ended");
}

#[test]
fn unlinked_files_live_until_the_last_close_and_leave_nothing() {
    let rig = Rig::new("4+2p", 6);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, &pattern(600_000, 1));
    vfs.unlink(ROOT, Ino::ROOT, b"f").expect("unlinked");
    assert_eq!(vfs.getattr(ino).expect("still there").links, 0);
    assert!(read(&vfs, handle, 0, 600_000) == pattern(600_000, 1));
    write(&vfs, handle, 600_000, b"more");
    vfs.fsync(handle).expect("synced");
    let mode = SetAttr { permissions: Some(0o600), ..SetAttr::default() };
    assert_eq!(vfs.setattr(ROOT, ino, None, &mode).expect("changed").permissions, 0o600);
    vfs.release(handle);
    vfs.forget(ino, 1);
    let (tmp, opened) = vfs.tmpfile(ROOT, Ino::ROOT, 0o600, RW).expect("made");
    write(&vfs, opened.handle, 0, b"nameless");
    assert_eq!(tmp.attr.links, 0);
    let linked = vfs.link(ROOT, tmp.attr.ino, Ino::ROOT, b"named").expect("linked");
    assert_eq!(linked.attr.links, 1);
    vfs.release(opened.handle);
    vfs.shutdown().expect("ended");
    assert_eq!(vfs.getattr(ino).expect_err("gone").kind(), ErrorKind::Stale);
    assert_eq!(rig.nsds.iter().map(|nsd| nsd.strips()).sum::<usize>(), 0);
    let vfs = rig.start(0);
    let (_, handle) = open(&vfs, "named");
    assert_eq!(read(&vfs, handle, 0, 100), b"nameless");
    vfs.shutdown().expect("ended");
}

#[test]
fn names_can_be_made_linked_renamed_exchanged_and_removed() {
    let rig = Rig::new("1", 1);
    let vfs = rig.start(0);
    let dir = vfs.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).expect("made").attr.ino;
    let (a, handle) = create(&vfs, "a");
    write(&vfs, handle, 0, b"a");
    vfs.release(handle);
    vfs.link(ROOT, a, dir, b"b").expect("linked");
    assert_eq!(vfs.getattr(a).expect("attr").links, 2);
    let same = vfs.rename(ROOT, (Ino::ROOT, b"a"), (dir, b"b"), RenameMode::Replace);
    same.expect("two names of one file");
    vfs.symlink(ROOT, Ino::ROOT, b"link", b"dir/b").expect("made");
    let link = lookup(&vfs, "link").attr.ino;
    assert_eq!(vfs.readlink(link).expect("target"), b"dir/b");
    let kind = |result: strake_proto::Result<()>| result.expect_err("refused").kind();
    let no = vfs.rename(ROOT, (Ino::ROOT, b"a"), (dir, b"b"), RenameMode::NoReplace).map(drop);
    assert_eq!(kind(no), ErrorKind::Exists);
    vfs.rename(ROOT, (Ino::ROOT, b"link"), (dir, b"b"), RenameMode::Exchange).expect("exchanged");
    assert_eq!(
        vfs.readlink(vfs.lookup(ROOT, dir, b"b").expect("found").attr.ino).expect("link"),
        b"dir/b"
    );
    assert_eq!(kind(vfs.rmdir(ROOT, Ino::ROOT, b"dir")), ErrorKind::NotEmpty);
    assert_eq!(kind(vfs.unlink(ROOT, Ino::ROOT, b"dir")), ErrorKind::IsDirectory);
    let into = vfs.rename(ROOT, (Ino::ROOT, b"dir"), (dir, b"x"), RenameMode::Replace).map(drop);
    assert_eq!(kind(into), ErrorKind::Invalid);
    vfs.unlink(ROOT, dir, b"b").expect("removed");
    vfs.rmdir(ROOT, Ino::ROOT, b"dir").expect("removed");
    assert_eq!(vfs.getattr(dir).expect("still looked up").links, 0);
    assert_eq!(names(&vfs, dir), [""; 0]);
    let mut left = names(&vfs, Ino::ROOT);
    left.sort();
    assert_eq!(left, ["a", "link"]);
    vfs.shutdown().expect("ended");
}

#[test]
fn listings_go_on_after_a_cookie_and_show_sizes_not_yet_committed() {
    let rig = Rig::new("1", 1);
    let vfs = rig.start(0);
    for at in 0..1000 {
        let (ino, handle) = create(&vfs, &format!("file{at:04}"));
        if at == 500 {
            write(&vfs, handle, 0, &[1; 12345]);
        }
        vfs.release(handle);
        vfs.forget(ino, 1);
    }
    let (mut cookie, mut seen, mut sizes) = (0, Vec::new(), 0);
    loop {
        let mut taken = 0;
        vfs.readdir(Ino::ROOT, cookie, true, &mut |item| {
            if taken == 37 {
                return false;
            }
            taken += 1;
            cookie = item.cookie;
            sizes += item.attr.map_or(0, |attr| attr.size);
            seen.push(item.name.clone());
            true
        })
        .expect("listed");
        if taken == 0 {
            break;
        }
    }
    assert_eq!(seen.len(), 1002);
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 1002);
    assert!(sizes >= 12345);
    vfs.shutdown().expect("ended");
}

#[test]
fn what_a_file_handle_names_is_found_by_its_number_whatever_it_is() {
    let rig = Rig::new("1", 1);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, &[1; 12345]);
    let directory = vfs.mkdir(ROOT, Ino::ROOT, b"d", 0o700).expect("made").attr.ino;
    let link = vfs.symlink(ROOT, Ino::ROOT, b"l", b"target").expect("made").attr.ino;
    for found in [ino, directory, link, Ino::ROOT] {
        let entry = vfs.lookup(&user(1000), found, b".").expect("found");
        assert_eq!(entry.attr, vfs.getattr(found).expect("attr"));
        vfs.forget(found, 1);
    }
    let upward = vfs.lookup(&user(1000), directory, b"..").expect_err("not for all to search");
    assert_eq!(upward.kind(), ErrorKind::Access);
    vfs.unlink(ROOT, Ino::ROOT, b"l").expect("unlinked");
    vfs.forget(link, 1);
    let gone = vfs.lookup(ROOT, link, b".").expect_err("gone");
    assert_eq!(gone.kind(), ErrorKind::Stale);
    vfs.shutdown().expect("ended");
}

#[test]
fn holes_are_found_punched_and_counted() {
    let rig = Rig::new("4+2p", 6);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    write(&vfs, handle, 10 * BLOCK, &pattern(BLOCK as usize * 3, 1));
    let data = |offset| vfs.seek(handle, offset, SeekFor::Data);
    let hole = |offset| vfs.seek(handle, offset, SeekFor::Hole);
    for synced in [false, true] {
        if synced {
            vfs.fsync(handle).expect("synced");
        }
        assert_eq!(data(5).expect("data"), 10 * BLOCK);
        assert_eq!(hole(5).expect("hole"), 5);
        assert_eq!(hole(11 * BLOCK + 3).expect("hole"), 13 * BLOCK);
        assert_eq!(data(13 * BLOCK).expect_err("the end").kind(), ErrorKind::NoDevice);
        assert_eq!(vfs.getattr(ino).expect("attr").allocated, 3 * BLOCK, "{synced}");
    }
    let hole_in = 10 * BLOCK + 1000..12 * BLOCK + 1000;
    vfs.fallocate(handle, hole_in.clone(), FallocateMode::PunchHole).expect("punched");
    let mut expected = pattern(BLOCK as usize * 3, 1);
    expected[1000..2 * BLOCK as usize + 1000].fill(0);
    assert!(read(&vfs, handle, 10 * BLOCK, 3 * BLOCK as usize) == expected);
    assert_eq!(hole(10 * BLOCK).expect("hole"), 11 * BLOCK);
    assert_eq!(data(11 * BLOCK).expect("data"), 12 * BLOCK);
    vfs.fsync(handle).expect("synced");
    assert_eq!(vfs.getattr(ino).expect("attr").allocated, 2 * BLOCK);
    vfs.shutdown().expect("ended");
    let vfs = rig.start(0b100_001);
    let (attr, handle) = open(&vfs, "f");
    assert_eq!((attr.size, attr.allocated), (13 * BLOCK, 2 * BLOCK));
    assert!(read(&vfs, handle, 10 * BLOCK, 3 * BLOCK as usize) == expected);
    assert!(read(&vfs, handle, 0, 1 << 20).iter().all(|byte| *byte == 0));
    vfs.shutdown().expect("ended");
}

#[test]
fn sparse_files_to_the_largest_size_cost_nothing() {
    let rig = Rig::new("4+2p", 6);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    let last = i64::MAX as u64 - 1;
    write(&vfs, handle, last, b"x");
    assert_eq!(vfs.getattr(ino).expect("attr").size, last + 1);
    let refused = vfs.write(handle, last + 1, b"y").expect_err("too far");
    assert_eq!(refused.kind(), ErrorKind::FileTooBig);
    assert_eq!(vfs.seek(handle, 0, SeekFor::Data).expect("data"), last / BLOCK * BLOCK);
    assert_eq!(vfs.seek(handle, 0, SeekFor::Hole).expect("hole"), 0);
    let whole = 0..i64::MAX as u64;
    vfs.fallocate(handle, whole, FallocateMode::PunchHole).expect("punched");
    vfs.fsync(handle).expect("synced");
    assert_eq!(read(&vfs, handle, last, 10), [0]);
    let cut = SetAttr { size: Some(1), ..SetAttr::default() };
    assert_eq!(vfs.setattr(ROOT, ino, None, &cut).expect("cut").size, 1);
    vfs.shutdown().expect("ended");
}

#[test]
fn appending_handles_write_at_the_end_whoever_else_does() {
    let rig = Rig::new("4+2p", 6);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "log");
    vfs.release(handle);
    strake_env::thread::scope(|scope| {
        for thread in 0..4u8 {
            let vfs = Arc::clone(&vfs.vfs);
            scope.spawn(move || {
                let flags = OpenFlags { append: true, ..RW };
                let handle = vfs.open(ROOT, ino, flags).expect("opened").handle;
                for _ in 0..200 {
                    write(&vfs, handle, 0, &[b'a' + thread; 1000]);
                }
                vfs.release(handle);
            });
        }
    });
    let (attr, handle) = open(&vfs, "log");
    assert_eq!(attr.size, 800_000);
    let bytes = read(&vfs, handle, 0, 800_000);
    for record in bytes.chunks(1000) {
        assert!(record.iter().all(|byte| *byte == record[0]) && record[0] >= b'a');
    }
    vfs.shutdown().expect("ended");
}

#[test]
fn a_full_file_system_refuses_at_write_and_works_again_after_a_deletion() {
    let rig = Rig::new("4+2p", 6);
    rig.nsds.iter().for_each(|nsd| nsd.set_capacity(4 << 20));
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    let mut written = 0;
    let error = loop {
        match vfs.write(handle, written, &[7; 100_000]) {
            Ok(count) => written += count as u64,
            Err(error) => break error,
        }
        assert!(written < 32 << 20, "more than there is");
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(written > 4 << 20, "{written}");
    vfs.fsync(handle).expect("what was accepted fits");
    let (_, other) = create(&vfs, "g");
    let full = vfs.write(other, 0, &[1; 600_000]);
    assert!(full.map_or(true, |count| count < 600_000));
    vfs.release(handle);
    vfs.unlink(ROOT, Ino::ROOT, b"f").expect("deleting works");
    vfs.sync().expect("synced");
    strake_array::reaper::apply_pending(&vfs.mount.array).expect("reaped");
    vfs.mount.array.rounds.run(true).expect("committed");
    write(&vfs, other, 0, &[1; 600_000]);
    vfs.fsync(other).expect("there is room");
    vfs.shutdown().expect("ended");
}

#[test]
fn a_failed_write_behind_is_told_once_to_each_handle_and_the_data_is_kept() {
    let rig = Rig::new("1", 1);
    let vfs = rig.start(0);
    let (ino, first) = create(&vfs, "f");
    let second = vfs.open(ROOT, ino, RW).expect("opened").handle;
    // Less than a block, which waits for the fsync: nobody else meets the fault, and later.
    write(&vfs, first, 0, &pattern(200_000, 1));
    rig.nsds[0].set_faults(strake_testing::memory_nsd::Faults {
        write: Some(ErrorKind::Io),
        ..Default::default()
    });
    assert_eq!(vfs.fsync(first).expect_err("fails").kind(), ErrorKind::Io);
    let third = vfs.open(ROOT, ino, RW).expect("opened").handle;
    assert_eq!(vfs.flush(second).expect_err("told").kind(), ErrorKind::Io);
    vfs.flush(second).expect("told once");
    vfs.flush(third).expect("opened later");
    rig.nsds[0].set_faults(Default::default());
    vfs.manager.recover_nsds();
    vfs.fsync(first).expect("works again");
    assert!(read(&vfs, third, 0, 200_000) == pattern(200_000, 1));
    drop(vfs);
    rig.crash();
    let vfs = rig.start(0);
    let (_, handle) = open(&vfs, "f");
    assert!(read(&vfs, handle, 0, 200_000) == pattern(200_000, 1));
    vfs.shutdown().expect("ended");
}

#[test]
fn no_fsync_succeeds_while_nothing_can_be_written() {
    let rig = Rig::new("1", 1);
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, &pattern(2 * BLOCK as usize, 1));
    vfs.fsync(handle).expect("works");
    rig.nsds[0].set_faults(strake_testing::memory_nsd::Faults {
        write: Some(ErrorKind::Io),
        ..Default::default()
    });
    write(&vfs, handle, 0, &pattern(2 * BLOCK as usize, 2));
    // Several send the same blocks, and the threads that write behind do as well.
    strake_env::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..500 {
                    assert!(vfs.fsync(handle).is_err(), "nothing was stored");
                }
            });
        }
    });
    rig.nsds[0].set_faults(Default::default());
    let works = || {
        vfs.manager.recover_nsds();
        vfs.fsync(handle).is_ok()
    };
    // Somebody who met the fault late may take the NSD away once more.
    assert!((0..100).any(|_| works()));
    drop(vfs);
    rig.crash();
    let vfs = rig.start(0);
    let (_, handle) = open(&vfs, "f");
    assert!(read(&vfs, handle, 0, 2 * BLOCK as usize) == pattern(2 * BLOCK as usize, 2));
    vfs.shutdown().expect("ended");
}

#[test]
fn permissions_are_checked_for_everybody_but_root() {
    let rig = Rig::new("1", 1);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    vfs.release(handle);
    let (alice, bob) = (user(1000), user(1001));
    let kind = |error: strake_proto::Error| error.kind();
    assert_eq!(kind(vfs.open(&alice, ino, RW).expect_err("0644")), ErrorKind::Access);
    let ro = OpenFlags { write: false, ..RW };
    vfs.open(&alice, ino, ro).expect("readable by all");
    let made = vfs.mkdir(&alice, Ino::ROOT, b"x", 0o755).expect_err("root's directory");
    assert_eq!(made.kind(), ErrorKind::Access);
    let tmp = vfs.mkdir(ROOT, Ino::ROOT, b"tmp", 0o1777).expect("made").attr;
    let wide = SetAttr { permissions: Some(0o1777), ..SetAttr::default() };
    vfs.setattr(ROOT, tmp.ino, None, &wide).expect("chmod");
    let (own, _) = vfs.create(&alice, tmp.ino, b"own", 0o666, RW, true).expect("made");
    assert_eq!((own.attr.uid, own.attr.permissions), (1000, 0o644));
    let removed = vfs.unlink(&bob, tmp.ino, b"own").expect_err("sticky");
    assert_eq!(removed.kind(), ErrorKind::NotPermitted);
    let chown = SetAttr { uid: Some(1001), ..SetAttr::default() };
    let given = vfs.setattr(&alice, own.attr.ino, None, &chown).expect_err("only root");
    assert_eq!(given.kind(), ErrorKind::NotPermitted);
    let chmod = SetAttr { permissions: Some(0o6755), ..SetAttr::default() };
    let foreign = vfs.setattr(&bob, own.attr.ino, None, &chmod).expect_err("not the owner");
    assert_eq!(foreign.kind(), ErrorKind::NotPermitted);
    let attr = vfs.setattr(&alice, own.attr.ino, None, &chmod).expect("chmod");
    assert_eq!(attr.permissions, 0o6755);
    let flags = OpenFlags { read: false, ..RW };
    let handle = vfs.open(&alice, own.attr.ino, flags).expect("opened").handle;
    let kill = SetAttr { kill_privileges: true, ..SetAttr::default() };
    vfs.setattr(&alice, own.attr.ino, Some(handle), &kill).expect("cleared");
    assert_eq!(vfs.getattr(own.attr.ino).expect("attr").permissions, 0o755);
    let then = Timestamp { seconds: 5, nanos: 6 };
    let at = SetAttr { mtime: Some(SetTime::At(then)), ..SetAttr::default() };
    assert!(vfs.setattr(&bob, own.attr.ino, None, &at).is_err());
    assert_eq!(vfs.setattr(&alice, own.attr.ino, None, &at).expect("set").mtime, then);
    vfs.fsync(handle).expect("synced");
    assert_eq!(vfs.getattr(own.attr.ino).expect("attr").mtime, then, "not moved by the commit");
    vfs.shutdown().expect("ended");
}

#[test]
fn extended_attributes_follow_their_name_spaces() {
    let rig = Rig::new("1", 1);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    let alice = user(1000);
    let set = |caller: &Caller, name: &[u8]| {
        vfs.setxattr(caller, ino, name, b"value", XattrMode::Set, false)
    };
    for name in [&b"user.a"[..], b"trusted.b", b"security.c"] {
        set(ROOT, name).expect("root may");
        assert_eq!(vfs.getxattr(ROOT, ino, name).expect("value"), b"value");
    }
    assert_eq!(set(&alice, b"trusted.x").expect_err("root's").kind(), ErrorKind::NotPermitted);
    assert_eq!(set(&alice, b"user.x").expect_err("0644").kind(), ErrorKind::Access);
    assert_eq!(set(ROOT, b"bad.x").expect_err("unknown").kind(), ErrorKind::NotSupported);
    assert_eq!(vfs.listxattr(ROOT, ino).expect("names").len(), 3);
    assert_eq!(vfs.listxattr(&alice, ino).expect("names").len(), 2);
    let hidden = vfs.getxattr(&alice, ino, b"trusted.b").expect_err("hidden");
    assert_eq!(hidden.kind(), ErrorKind::NoAttribute);
    let refused = vfs.removexattr(&alice, ino, b"security.c").expect_err("root's");
    assert_eq!(refused.kind(), ErrorKind::NotPermitted);
    // What a change of the contents takes away, whoever makes it.
    set(ROOT, b"security.capability").expect("root may");
    vfs.removexattr(&alice, ino, b"security.capability").expect("removed");
    for again in 0..2 {
        set(ROOT, b"security.capability").expect("root may");
        write(&vfs, handle, again, b"changed");
        let gone = vfs.getxattr(ROOT, ino, b"security.capability").expect_err("taken away");
        assert_eq!(gone.kind(), ErrorKind::NoAttribute);
        write(&vfs, handle, again, b"changed");
        vfs.getxattr(ROOT, ino, b"trusted.b").expect("stays");
    }
    vfs.removexattr(ROOT, ino, b"user.a").expect("removed");
    let gone = vfs.getxattr(ROOT, ino, b"user.a").expect_err("gone");
    assert_eq!(gone.kind(), ErrorKind::NoAttribute);
    vfs.shutdown().expect("ended");
}

#[test]
fn access_times_move_as_relatime_has_it() {
    let rig = Rig::new("1", 1);
    let vfs = rig.start(0);
    let (ino, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, b"bytes");
    let written = vfs.getattr(ino).expect("attr");
    read(&vfs, handle, 0, 5);
    let first = vfs.getattr(ino).expect("attr");
    assert!(first.atime > written.mtime);
    read(&vfs, handle, 0, 5);
    assert_eq!(vfs.getattr(ino).expect("attr").atime, first.atime, "not again within a day");
    vfs.fsync(handle).expect("synced");
    let synced = vfs.getattr(ino).expect("attr");
    assert_eq!((synced.atime, synced.mtime, synced.ctime), (first.atime, first.mtime, first.ctime));
    vfs.shutdown().expect("ended");
    let vfs = rig.start(0);
    assert_eq!(lookup(&vfs, "f").attr.atime, first.atime);
    vfs.shutdown().expect("ended");
}

#[test]
fn a_bad_strip_met_by_a_reader_is_mended_on_disk() {
    let rig = Rig::new("4+2p", 6);
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, &pattern(BLOCK as usize, 1));
    vfs.shutdown().expect("ended");
    drop(vfs);
    let flipped = rig
        .nsds
        .iter()
        .filter(|nsd| nsd.flip_bit(strake_proto::ObjectId(1), strake_proto::BlockIndex(0), 2, 777));
    assert_eq!(flipped.count(), 1);
    let vfs = rig.start(0);
    let (_, handle) = open(&vfs, "f");
    assert!(read(&vfs, handle, 140_000, 5000) == pattern(BLOCK as usize, 1)[140_000..145_000]);
    assert!(read(&vfs, handle, 0, BLOCK as usize) == pattern(BLOCK as usize, 1));
    assert_eq!(vfs.view().mended, 1);
    vfs.shutdown().expect("ended");
    assert_eq!(rig.unsettled(), 0);
    // Two others may be away now.
    let vfs = rig.start(0b11);
    let (_, handle) = open(&vfs, "f");
    assert!(read(&vfs, handle, 0, BLOCK as usize) == pattern(BLOCK as usize, 1));
    vfs.shutdown().expect("ended");
}

#[test]
fn an_nsd_that_starts_anew_is_sent_again_what_it_had_only_accepted() {
    for code in ["1", "4+2p"] {
        let rig = Rig::new(code, 6);
        let vfs = rig.start(0);
        let (_, handle) = create(&vfs, "f");
        write(&vfs, handle, 0, &pattern(5 * BLOCK as usize, 1));
        let inode = vfs.mount.table.pin(lookup(&vfs, "f").attr.ino);
        let file = vfs.mount.file(&inode).expect("a file");
        for index in file.dirty_blocks() {
            let Some(block) = file.find_block(index) else { continue };
            crate::block_io::send::flush_block(&vfs.mount, &inode, &file, &block)
                .expect("accepted");
        }
        assert!(!file.has_dirty_blocks());
        let claimed = vfs.mount.array.room.claimed();
        rig.nsds.iter().for_each(|nsd| nsd.crash());
        vfs.fsync(handle).expect("sent again");
        let now = vfs.mount.array.room.claimed();
        let room = "all is sent, and its room given back";
        assert!(now.bytes <= claimed.bytes, "{room}: {now:?} of {claimed:?}");
        drop((file, inode, vfs));
        rig.crash();
        let vfs = rig.start(0);
        let (_, handle) = open(&vfs, "f");
        assert!(read(&vfs, handle, 0, 5 * BLOCK as usize) == pattern(5 * BLOCK as usize, 1));
        vfs.shutdown().expect("ended");
    }
}

#[test]
fn more_nsds_away_than_tolerated_are_no_reason_to_distrust_them_when_they_return() {
    let mut rig = Rig::new("4+2p", 6);
    rig.settings.write_cache_threshold = ByteCount(0);
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, &pattern(3 * BLOCK as usize, 1));
    vfs.shutdown().expect("ended");
    drop(vfs);
    let vfs = rig.start(0b111);
    let (_, handle) = open(&vfs, "f");
    let mut out = vec![0; BLOCK as usize];
    assert_eq!(vfs.read(handle, 0, &mut out).expect_err("lost").kind(), ErrorKind::Io);
    write(&vfs, handle, 0, b"this cannot be written");
    assert_eq!(vfs.fsync(handle).expect_err("lost").kind(), ErrorKind::Io);
    drop(vfs);
    rig.crash();
    let vfs = rig.start(0);
    let (_, handle) = open(&vfs, "f");
    assert!(read(&vfs, handle, 0, 3 * BLOCK as usize) == pattern(3 * BLOCK as usize, 1));
    vfs.shutdown().expect("ended");
}

#[test]
fn what_is_closed_and_committed_holds_no_memory_but_its_attributes() {
    let rig = Rig::new("1", 1);
    let vfs = rig.start(0);
    for at in 0..50 {
        let (_, handle) = create(&vfs, &format!("f{at}"));
        write(&vfs, handle, 0, &[1; 3000]);
        vfs.release(handle);
    }
    assert_eq!(vfs.view().dirty_inodes, 50);
    vfs.sync().expect("synced");
    assert_eq!(vfs.view().dirty_inodes, 0);
    for at in 0..50 {
        let ino = lookup(&vfs, &format!("f{at}")).attr.ino;
        let inode = vfs.mount.table.find(ino).expect("looked up");
        assert!(inode.core.lock().file.is_none(), "its contents are let go");
        drop(inode);
        vfs.forget(ino, 2);
    }
    assert_eq!(vfs.view().inodes, 1, "the root");
    vfs.shutdown().expect("ended");
}

#[test]
fn access_control_lists_decide_for_those_they_name() {
    let rig = Rig::new("1", 1);
    let vfs = rig.start(0);
    let (ino, _) = create(&vfs, "f");
    // user::rw- user:1000:rw- group::--- mask::rw- other::---
    let entry = |tag: u16, bits: u16, id: u32| {
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend(bits.to_le_bytes());
        bytes.extend(id.to_le_bytes());
        bytes
    };
    let mut acl = 2u32.to_le_bytes().to_vec();
    let none = u32::MAX;
    for (tag, bits, id) in [(1, 6, none), (2, 6, 1000), (4, 0, none), (16, 6, none), (32, 0, none)]
    {
        acl.extend(entry(tag, bits, id));
    }
    let name = b"system.posix_acl_access";
    vfs.setxattr(ROOT, ino, name, &acl, XattrMode::Set, false).expect("set");
    assert_eq!(vfs.getattr(ino).expect("attr").permissions, 0o660);
    vfs.access(&user(1000), ino, 6).expect("named");
    assert_eq!(vfs.access(&user(1001), ino, 4).expect_err("not named").kind(), ErrorKind::Access);
    let mask = SetAttr { permissions: Some(0o640), ..SetAttr::default() };
    vfs.setattr(ROOT, ino, None, &mask).expect("masked");
    assert_eq!(vfs.access(&user(1000), ino, 2).expect_err("masked").kind(), ErrorKind::Access);
    vfs.access(&user(1000), ino, 4).expect("left");
    let stranger = vfs.setxattr(&user(1000), ino, name, &acl, XattrMode::Set, false);
    assert_eq!(stranger.expect_err("not the owner").kind(), ErrorKind::NotPermitted);
    vfs.shutdown().expect("ended");
}

/// Units that the metadata keeps for its files.
fn kept(rig: &Rig) -> usize {
    let query = MetaQuery::Hardened { ino: Ino(0), unit: 0, limit: 4096 };
    match rig.meta.query(&query).expect("answers") {
        MetaReply::Hardened(units) => units.len(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_small_fsync_goes_to_the_metadata_and_survives_there() {
    let mut rig = Rig::new("4+2p", 6);
    // Nothing is committed unasked, nor for lack of memory.
    rig.settings.sync_interval = Duration::from_secs(3600);
    rig.settings.page_pool = ByteCount::mib(64);
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    let (_, gone) = create(&vfs, "gone");
    let (ino, cut) = create(&vfs, "cut");
    for handle in [handle, gone, cut] {
        write(&vfs, handle, 0, &pattern(2 * BLOCK as usize, 1));
        vfs.fsync(handle).expect("synced");
    }
    assert_eq!(kept(&rig), 0, "much is committed the long way");
    for handle in [handle, gone, cut] {
        write(&vfs, handle, 5000, &pattern(100, 2));
        write(&vfs, handle, 2 * BLOCK, &pattern(5000, 3));
        vfs.fsync(handle).expect("synced");
    }
    assert_eq!(kept(&rig), 9);
    vfs.unlink(ROOT, Ino::ROOT, b"gone").expect("unlinked");
    vfs.release(gone);
    assert_eq!(kept(&rig), 6);
    let change = SetAttr { size: Some(2 * BLOCK + 7), ..SetAttr::default() };
    vfs.setattr(ROOT, ino, Some(cut), &change).expect("cut");
    assert_eq!(kept(&rig), 5);
    vfs.fsync(handle).expect("synced");
    // More than the threshold: stripes, and nothing is kept any more.
    let (_, large) = create(&vfs, "large");
    write(&vfs, large, 0, &pattern(5000, 4));
    vfs.fsync(large).expect("synced");
    write(&vfs, large, 0, &pattern(100, 5));
    vfs.fsync(large).expect("synced");
    assert_eq!(kept(&rig), 7);
    write(&vfs, large, 0, &pattern(BLOCK as usize, 6));
    vfs.fsync(large).expect("synced");
    assert_eq!(kept(&rig), 5);
    drop(vfs);
    rig.crash();
    let vfs = rig.start(0b11);
    assert_eq!(kept(&rig), 0, "all is in stripes before anything is served");
    for (name, end) in [("f", 5000), ("cut", 7)] {
        let (attr, handle) = open(&vfs, name);
        assert_eq!(attr.size, 2 * BLOCK + end as u64, "{name}");
        assert_eq!(read(&vfs, handle, 5000, 100), pattern(100, 2), "{name}");
        assert!(read(&vfs, handle, 0, 5000) == pattern(2 * BLOCK as usize, 1)[..5000], "{name}");
        assert!(read(&vfs, handle, 2 * BLOCK, end) == pattern(5000, 3)[..end], "{name}");
    }
    vfs.shutdown().expect("ended");
}

#[test]
fn a_scrub_mends_every_bad_or_missing_strip_also_of_parity() {
    let rig = Rig::new("4+2p", 7);
    let vfs = rig.start(0);
    for at in 0..5u8 {
        let (_, handle) = create(&vfs, &format!("f{at}"));
        write(&vfs, handle, 0, &pattern(2 * BLOCK as usize + 5000, at));
        vfs.release(handle);
    }
    vfs.sync().expect("synced");
    let (object, block) = (strake_proto::ObjectId, strake_proto::BlockIndex);
    let flip = |of: u64, at: u64, strip: u8| {
        let hit = rig.nsds.iter().filter(|nsd| nsd.flip_bit(object(of), block(at), strip, 99));
        assert_eq!(hit.count(), 1);
    };
    // Data, parity, two of one block, and the short last block's copy.
    flip(1, 0, 1);
    flip(2, 1, 5);
    flip(3, 1, 0);
    flip(3, 1, 4);
    flip(4, 2, 5);
    assert_eq!(rig.nsds.iter().filter(|nsd| nsd.lose_strip(object(5), block(0), 4)).count(), 1);
    let scrub = || {
        vfs.manager.start_scrub(0).expect("starts");
        while vfs.manager.scrub().running {
            strake_env::thread::yield_now();
        }
        vfs.manager.scrub()
    };
    let first = scrub();
    assert_eq!((first.found.bad, first.found.mended, first.found.failed), (6, 5, 0), "{first:?}");
    assert!(first.complete && first.done == first.total, "{first:?}");
    assert_eq!(vfs.array().nsds().iter().map(|nsd| nsd.repaired).sum::<u64>(), 6);
    // Whoever sees that one has ended may start the next.
    for _ in 0..100 {
        let next = scrub();
        assert_eq!((next.found.bad, next.found.strips), (0, first.found.strips), "{next:?}");
    }
    for at in 0..5u8 {
        let (_, handle) = open(&vfs, &format!("f{at}"));
        let length = 2 * BLOCK as usize + 5000;
        assert!(read(&vfs, handle, 0, length) == pattern(length, at));
    }
    vfs.shutdown().expect("ended");
}

#[test]
fn a_scrub_that_cannot_mend_says_so_and_one_that_is_stopped_ends() {
    let rig = Rig::new("4+2p", 6);
    let vfs = rig.start(0);
    let (_, handle) = create(&vfs, "f");
    write(&vfs, handle, 0, &pattern(4 * BLOCK as usize, 1));
    vfs.sync().expect("synced");
    for strip in 0..3 {
        rig.nsds.iter().for_each(|nsd| {
            nsd.flip_bit(strake_proto::ObjectId(1), strake_proto::BlockIndex(1), strip, 7);
        });
    }
    vfs.release(handle);
    vfs.shutdown().expect("ended");
    let vfs = rig.start(0);
    vfs.manager.start_scrub(0).expect("starts");
    while vfs.manager.scrub().running {
        strake_env::thread::yield_now();
    }
    let view = vfs.manager.scrub();
    assert_eq!((view.found.bad, view.found.mended, view.found.failed), (3, 0, 1), "{view:?}");
    // A byte a second: it would take weeks.
    vfs.manager.start_scrub(1).expect("starts");
    assert_eq!(vfs.manager.start_scrub(1).expect_err("one at a time").kind(), ErrorKind::Busy);
    vfs.manager.stop_scrub();
    assert!(!vfs.manager.scrub().running && !vfs.manager.scrub().complete);
    vfs.shutdown().expect("ended");
}

#[test]
fn what_the_kernel_keeps_is_not_kept_twice_unless_several_have_the_file_open() {
    let rig = Rig::new("4+2p", 6);
    let vfs = rig.start(0);
    let bytes = pattern(4 * BLOCK as usize, 3);
    for (name, readers) in [("alone", 1), ("together", 2)] {
        let (_, writer) = create(&vfs, name);
        write(&vfs, writer, 0, &bytes);
        vfs.sync().expect("synced");
        vfs.release(writer);
        let before = vfs.view().page_pool.used;
        let handles: Vec<Handle> = (0..readers).map(|_| open(&vfs, name).1).collect();
        for handle in &handles {
            vfs.pages_are_kept(*handle);
        }
        for (index, part) in (0u64..).zip(bytes.chunks(BLOCK as usize)) {
            let handle = handles[index as usize % readers];
            assert!(read(&vfs, handle, index * BLOCK, part.len()) == part);
        }
        let given_up = before.saturating_sub(vfs.view().page_pool.used);
        assert_eq!(given_up > 0, readers == 1, "{name}: {given_up} of {before}");
        handles.into_iter().for_each(|handle| vfs.release(handle));
    }
    vfs.shutdown().expect("ended");
}
