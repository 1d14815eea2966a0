//! Locks of programs on three mounts over one leader.

use crate::StrakeVfs;
use crate::coherence_test::{World, client};
use crate::vfs::{ByteRange, Handle, LockHeld, LockKind, LockMode, LockOwner, LockWant};
use crate::vfs::{OpenFlags, Vfs};
use std::sync::Arc;
use std::time::Duration;
use strake_env::channel::{Receiver, channel};
use strake_env::thread;
use strake_proto::{Caller, ErrorKind, Ino, Result};
use strake_token::port::ToClient;

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;
const READ: Option<LockMode> = Some(LockMode::Shared);
const WRITE: Option<LockMode> = Some(LockMode::Exclusive);
/// Nothing lasts longer, unless it hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// One file, open on every mount.
struct File {
    world: World,
    ino: Ino,
    handles: Vec<Handle>,
    tickets: u64,
}

fn posix(id: u64, from: u64, to: u64, mode: Option<LockMode>) -> LockWant {
    let range = ByteRange { from, to };
    LockWant { ino: Ino(0), owner: LockOwner { kind: LockKind::Posix, id }, range, mode, pid: 77 }
}

fn flock(id: u64, mode: Option<LockMode>) -> LockWant {
    let owner = LockOwner { kind: LockKind::Flock, id };
    LockWant { owner, range: ByteRange::ALL, ..posix(id, 0, 1, mode) }
}

impl File {
    fn new() -> File {
        let world = World::new("1", 1);
        let made = world.mounts[0].create(ROOT, Ino::ROOT, b"file", 0o644, RW, true);
        let (entry, opened) = made.expect("created");
        let ino = entry.attr.ino;
        let open = |mount: &Arc<StrakeVfs>| mount.open(ROOT, ino, RW).expect("opened").handle;
        let others: Vec<Handle> = world.mounts[1..].iter().map(open).collect();
        let handles = [vec![opened.handle], others].concat();
        File { world, ino, handles, tickets: 0 }
    }

    fn set(&self, at: usize, want: LockWant) -> Result<()> {
        self.world.mounts[at].set_lock(self.handles[at], &want)
    }

    fn test(&self, at: usize, want: LockWant) -> Option<LockHeld> {
        self.world.mounts[at].test_lock(self.handles[at], &want).expect("answered")
    }

    /// Asks for a lock that may have to wait. Returns its ticket, and where the outcome arrives.
    fn later(&mut self, at: usize, want: LockWant) -> (u64, Receiver<Result<()>>) {
        self.tickets += 1;
        let (tell, outcome) = channel();
        let then = Box::new(move |result| drop(tell.send(result)));
        self.world.mounts[at].set_lock_later(self.handles[at], &want, self.tickets, then);
        (self.tickets, outcome)
    }

    fn is_refused(&self, at: usize, want: LockWant) -> bool {
        match self.set(at, want) {
            Ok(()) => false,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                true
            }
        }
    }
}

/// The outcome of a lock that waits no more.
fn outcome(of: &Receiver<Result<()>>) -> std::result::Result<(), ErrorKind> {
    of.recv_timeout(LIMIT).expect("it came").map_err(|error| error.kind())
}

fn waits(of: &Receiver<Result<()>>) -> bool {
    of.try_recv().is_err()
}

#[test]
fn a_lock_on_one_mount_is_in_the_way_on_all() {
    let mut file = File::new();
    file.set(0, posix(5, 10, 20, WRITE)).expect("free");
    assert!(file.is_refused(1, posix(5, 19, 30, READ)), "another mount's owner of that number");
    assert!(file.is_refused(0, posix(6, 0, 11, READ)));
    file.set(1, posix(5, 20, 30, WRITE)).expect("beside it");
    let range = ByteRange { from: 10, to: 20 };
    let held = |pid| Some(LockHeld { range, mode: LockMode::Exclusive, pid });
    assert_eq!(file.test(2, posix(1, 0, 100, READ)), held(0), "of another mount");
    assert_eq!(file.test(0, posix(6, 0, 20, READ)), held(77));
    assert_eq!(file.test(0, posix(5, 0, 20, WRITE)), None, "its own");
    let (_, waiting) = file.later(2, posix(1, 15, 25, WRITE));
    assert!(waits(&waiting));
    file.set(0, posix(5, 0, 18, None)).expect("unlocks");
    file.set(1, posix(5, 0, 100, None)).expect("unlocks");
    assert!(waits(&waiting), "two bytes are still locked");
    file.set(0, posix(5, 18, 19, None)).expect("unlocks");
    file.set(0, posix(5, 19, 20, READ)).expect("lowered");
    assert!(waits(&waiting));
    file.set(0, posix(5, 19, 20, None)).expect("unlocks");
    assert_eq!(outcome(&waiting), Ok(()));
    assert_eq!(file.world.leader.service().locks().files(), 1);
    file.world.end();
}

#[test]
fn a_wait_says_who_holds_the_lock() {
    let mut file = File::new();
    file.set(0, flock(5, WRITE)).expect("free");
    let (_, waiting) = file.later(1, flock(5, READ));
    let listed = file.world.mounts[1].array().observe.waiters.snapshot();
    let wait = listed.iter().find(|wait| wait.reason == "lock").expect("listed");
    assert_eq!(wait.thread, "process 77");
    assert_eq!(wait.detail, format!("inode {}, held by client {}", file.ino, client(0)));
    file.set(0, flock(5, None)).expect("unlocks");
    assert_eq!(outcome(&waiting), Ok(()));
    assert!(file.world.mounts[1].array().observe.waiters.snapshot().is_empty());
    file.world.end();
}

#[test]
fn closing_releases_what_it_must_and_no_more() {
    let file = File::new();
    let vfs = &file.world.mounts[0];
    let second = vfs.open(ROOT, file.ino, RW).expect("opened").handle;
    // A process (5), an open file description (6) and a `flock` (7), all through one handle.
    file.set(0, posix(5, 0, 10, WRITE)).expect("free");
    file.set(0, posix(6, 10, 20, WRITE)).expect("free");
    file.set(0, flock(7, WRITE)).expect("free");
    let held = |file: &File| {
        [posix(1, 0, 10, READ), posix(1, 10, 20, READ), flock(1, READ)].map(|want| {
            let is_refused = file.is_refused(1, want);
            file.set(1, LockWant { mode: None, ..want }).expect("unlocks");
            is_refused
        })
    };
    assert_eq!(held(&file), [true, true, true]);
    vfs.unlock_at_close(file.handles[0], 4).expect("nothing to do");
    assert_eq!(held(&file), [true, true, true]);
    // Any close of the file by the process, also through another handle.
    vfs.unlock_at_close(second, 5).expect("unlocks");
    assert_eq!(held(&file), [false, true, true]);
    // The process locks again through the second one: the first one's last close leaves that.
    vfs.set_lock(second, &posix(5, 0, 10, WRITE)).expect("free");
    vfs.unlock_at_release(file.handles[0], None);
    assert_eq!(held(&file), [true, false, true]);
    vfs.unlock_at_release(file.handles[0], Some(7));
    assert_eq!(held(&file), [true, false, false]);
    vfs.unlock_at_close(second, 5).expect("unlocks");
    assert_eq!(held(&file), [false, false, false]);
    vfs.release(second);
    assert_eq!(file.world.leader.service().locks().files(), 0);
    file.world.end();
}

#[test]
fn a_wait_is_cancelled_before_it_begins_while_it_lasts_and_never_after() {
    let mut file = File::new();
    file.set(0, posix(5, 0, 10, WRITE)).expect("free");
    file.world.mounts[1].cancel_lock(1);
    let (_, early) = file.later(1, posix(5, 0, 10, WRITE));
    assert_eq!(outcome(&early), Err(ErrorKind::Interrupted));
    let (ticket, waiting) = file.later(1, posix(5, 0, 10, WRITE));
    assert!(waits(&waiting));
    file.world.mounts[1].cancel_lock(ticket);
    assert_eq!(outcome(&waiting), Err(ErrorKind::Interrupted));
    file.set(0, posix(5, 0, 10, None)).expect("unlocks");
    file.set(2, posix(5, 0, 10, WRITE)).expect("nobody has it");
    file.set(2, posix(5, 0, 10, None)).expect("unlocks");
    let (ticket, granted) = file.later(1, posix(5, 0, 10, WRITE));
    file.world.mounts[1].cancel_lock(ticket);
    assert_eq!(outcome(&granted), Ok(()));
    assert!(file.is_refused(2, posix(5, 0, 10, READ)));
    file.world.end();
}

/// A cancel and an unlock at the same time: whoever was first, both ends agree on it.
#[test]
fn a_cancel_that_races_the_grant_leaves_no_lock_behind() {
    let mut file = File::new();
    for round in 0..200 {
        file.set(0, posix(5, 0, 10, WRITE)).expect("free");
        let (ticket, waiting) = file.later(1, posix(5, 0, 10, WRITE));
        thread::scope(|scope| {
            let (mounts, handles) = (&file.world.mounts, &file.handles);
            scope.spawn(move || mounts[1].cancel_lock(ticket));
            scope.spawn(move || mounts[0].set_lock(handles[0], &posix(5, 0, 10, None)));
        });
        match outcome(&waiting) {
            Ok(()) => {
                assert!(file.is_refused(2, posix(5, 0, 10, READ)), "round {round}");
                file.set(1, posix(5, 0, 10, None)).expect("unlocks");
            }
            Err(kind) => assert_eq!(kind, ErrorKind::Interrupted),
        }
        assert_eq!(file.world.leader.service().locks().files(), 0, "round {round}");
    }
    file.world.end();
}

#[test]
fn a_circle_of_waits_over_three_mounts_is_refused() {
    let mut file = File::new();
    for at in 0..3 {
        file.set(at, posix(5, at as u64, at as u64 + 1, WRITE)).expect("free");
    }
    let (_, first) = file.later(0, posix(5, 1, 2, WRITE));
    let (_, second) = file.later(1, posix(5, 2, 3, WRITE));
    let (_, third) = file.later(2, posix(5, 0, 1, WRITE));
    assert_eq!(outcome(&third), Err(ErrorKind::Deadlock));
    file.set(2, posix(5, 2, 3, None)).expect("unlocks");
    assert_eq!(outcome(&second), Ok(()));
    assert!(waits(&first));
    file.set(1, posix(5, 0, 3, None)).expect("unlocks");
    assert_eq!(outcome(&first), Ok(()));
    file.world.end();
}

#[test]
fn the_death_of_a_client_frees_its_locks() {
    let mut file = File::new();
    file.set(0, posix(5, 0, 10, WRITE)).expect("free");
    file.set(0, flock(5, WRITE)).expect("free");
    let (_, one) = file.later(1, posix(5, 0, 10, WRITE));
    let (_, two) = file.later(2, flock(5, WRITE));
    assert!(waits(&one) && waits(&two));
    file.world.leader.service().gone(client(0));
    assert_eq!((outcome(&one), outcome(&two)), (Ok(()), Ok(())));
}

#[test]
fn a_client_that_hears_of_its_death_has_no_locks_and_takes_none() {
    let mut file = File::new();
    file.set(0, posix(5, 0, 10, WRITE)).expect("free");
    file.set(1, flock(5, WRITE)).expect("free");
    let (_, waiting) = file.later(0, flock(5, WRITE));
    file.world.leader.service().gone(client(0));
    file.world.tokens[0].declared_dead();
    assert_eq!(outcome(&waiting), Err(ErrorKind::Io));
    let refused = file.set(0, posix(6, 20, 30, WRITE)).expect_err("it is dead");
    assert_eq!(refused.kind(), ErrorKind::Io);
    file.world.mounts[0].unlock_at_close(file.handles[0], 5).expect("there is nothing");
    file.set(2, posix(5, 0, 10, WRITE)).expect("free since");
}

#[test]
fn locks_and_waits_outlive_a_change_of_the_leader() {
    let mut file = File::new();
    file.set(0, posix(5, 0, 10, WRITE)).expect("free");
    file.set(2, flock(5, READ)).expect("free");
    let (_, waiting) = file.later(1, posix(5, 5, 6, READ));
    let (ticket, cancelled) = file.later(1, flock(5, WRITE));
    for _ in 0..3 {
        file.world.change_leader();
        assert!(file.is_refused(2, posix(5, 0, 1, READ)));
        assert!(file.is_refused(0, flock(5, WRITE)));
        assert!(waits(&waiting) && waits(&cancelled));
    }
    file.world.mounts[1].cancel_lock(ticket);
    assert_eq!(outcome(&cancelled), Err(ErrorKind::Interrupted));
    file.world.mounts[0].unlock_at_close(file.handles[0], 5).expect("unlocks");
    assert_eq!(outcome(&waiting), Ok(()));
    file.world.end();
}

/// Three mounts count under a lock, while leaders come and go.
#[test]
fn whoever_has_the_lock_sees_what_was_written_under_it_before() {
    const EACH: u64 = 60;
    let file = File::new();
    file.world.mounts[0].write(file.handles[0], 0, &[0; 8]).expect("there is room");
    thread::scope(|scope| {
        for (at, (vfs, handle)) in file.world.mounts.iter().zip(&file.handles).enumerate() {
            scope.spawn(move || {
                for number in 0..EACH {
                    let want = posix(5, 100, 101, WRITE);
                    let (tell, told) = channel();
                    let then = Box::new(move |result| drop(tell.send(result)));
                    vfs.set_lock_later(*handle, &want, at as u64 * EACH + number, then);
                    assert_eq!(outcome(&told), Ok(()));
                    let mut bytes = [0; 8];
                    assert_eq!(vfs.read(*handle, 0, &mut bytes).expect("readable"), 8);
                    let next = u64::from_le_bytes(bytes) + 1;
                    vfs.write(*handle, 0, &next.to_le_bytes()).expect("there is room");
                    vfs.set_lock(*handle, &posix(5, 0, 200, None)).expect("unlocks");
                }
            });
        }
        for _ in 0..3 {
            file.world.rig.clock.sleep(Duration::from_millis(30));
            file.world.change_leader();
        }
    });
    let mut bytes = [0; 8];
    file.world.mounts[1].read(file.handles[1], 0, &mut bytes).expect("readable");
    assert_eq!(u64::from_le_bytes(bytes), 3 * EACH);
    assert_eq!(file.world.leader.service().locks().files(), 0);
    file.world.end();
}
