//! Small files that are sent together: how many requests that takes, and that nothing of it is lost
//! where some of them cannot be sent so.

use super::*;
use crate::testing::{Mounted, Rig};
use crate::vfs::vfs_test::{create, open, pattern, read, write};
use crate::vfs::{Handle, Vfs};
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use strake_proto::nsd::NsdRequest;
use strake_proto::{ByteCount, Caller, ErrorKind, Ino};
use strake_testing::memory_nsd::{Faults, Moment};

const FILES: usize = 100;

fn rig(code: &str) -> Rig {
    let mut rig = Rig::new(code, 6);
    rig.settings.write_cache_threshold = ByteCount(0);
    rig.settings.sync_interval = Duration::from_secs(3600);
    rig
}

/// Small files of any length, and a few that are longer.
fn content(at: usize, salt: u8) -> Vec<u8> {
    let long = if at % 20 == 7 { SMALL_BLOCK_BYTES } else { 0 };
    pattern(long + 5000 + at * 577 % (SMALL_BLOCK_BYTES - 5000), salt + at as u8)
}

fn put(vfs: &Mounted) -> Vec<Handle> {
    let file = |at| {
        let (_, handle) = create(vfs, &format!("f{at}"));
        write(vfs, handle, 0, &content(at, 1));
        handle
    };
    (0..FILES).map(file).collect()
}

fn check(vfs: &Mounted, salt: u8) {
    for at in 0..FILES {
        let (handle, content) = (open(vfs, &format!("f{at}")).1, content(at, salt));
        assert!(read(vfs, handle, 0, 3 * SMALL_BLOCK_BYTES) == content, "f{at}");
        vfs.release(handle);
    }
}

/// Counts the requests that write, of all NSDs.
fn count_writes(rig: &Rig) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    for nsd in &rig.nsds {
        let count = Arc::clone(&count);
        nsd.set_watch(Some(Arc::new(move |moment, request| {
            let is_write =
                matches!(request, NsdRequest::Write { .. } | NsdRequest::WriteMany { .. });
            count.fetch_add(u64::from(is_write && moment == Moment::Before), Ordering::Relaxed);
        })));
    }
    count
}

#[test]
fn small_files_of_a_sync_take_few_requests_and_each_is_there_afterwards() {
    for code in ["1", "2x", "4+2p"] {
        let rig = rig(code);
        let vfs = rig.start(0);
        put(&vfs);
        let count = count_writes(&rig);
        vfs.sync().expect("synced");
        let (long, strips) = (5, 6);
        let most = 6 * (FILES as u64).div_ceil(TOGETHER_MAX as u64) + long * strips;
        let writes = count.load(Ordering::Relaxed);
        assert!(writes <= most, "{code}: {writes} requests");
        drop(vfs);
        rig.crash();
        check(&rig.start(0), 1);
    }
}

#[test]
fn small_files_that_are_written_behind_are_sent_together() {
    let rig = rig("2x");
    let vfs = rig.start(0);
    put(&vfs);
    let count = count_writes(&rig);
    while !vfs
        .mount
        .dirty
        .lock()
        .values()
        .all(|it| it.core.lock().file.as_ref().is_none_or(|file| !file.has_dirty_blocks()))
    {
        vfs.mount.kick();
        strake_env::thread::yield_now();
    }
    let writes = count.load(Ordering::Relaxed);
    assert!(writes < FILES as u64, "{writes} requests for {FILES} files with two strips each");
    vfs.sync().expect("synced");
    drop(vfs);
    rig.crash();
    check(&rig.start(0), 1);
}

/// Files that were written again, cut, or that nobody has room for, beside others.
#[test]
fn what_cannot_be_sent_together_is_sent_alone() {
    let rig = rig("2x");
    let vfs = rig.start(0);
    let handles = put(&vfs);
    vfs.sync().expect("synced");
    // Some are stored already, and some are new.
    for (at, handle) in handles.into_iter().enumerate() {
        let (name, mut handle) = (format!("f{at}"), handle);
        if at % 3 == 0 {
            vfs.release(handle);
            vfs.unlink(&Caller::ROOT, Ino::ROOT, name.as_bytes()).expect("removed");
            handle = create(&vfs, &name).1;
        }
        write(&vfs, handle, 0, &content(at, 2));
    }
    let full = Faults { write: Some(ErrorKind::NoSpace), ..Faults::default() };
    rig.nsds[1].set_faults(full);
    vfs.sync().expect_err("an NSD has no room");
    rig.nsds[1].set_faults(Faults::default());
    vfs.sync().ok();
    vfs.sync().expect("synced");
    drop(vfs);
    rig.crash();
    check(&rig.start(0), 2);
}
