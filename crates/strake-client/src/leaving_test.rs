//! Mounts go on while a leader puts right what others have left. One that lives gives its files
//! up, when the leader has read what the metadata knew of these files before. One that is gone has
//! sent a change that comes late.

use crate::StrakeVfs;
use crate::coherence_test::{File, MOUNTS, World, client};
use crate::testing::{BLOCK_SIZE, CREW, Crew, Rig, assert_whole, send_block};
use crate::vfs::Vfs;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_env::thread;
use strake_manager::{TokenService, after_crash};
use strake_proto::meta::{MetaEntry, MetaOp, MetaPort, MetaQuery, MetaReply};
use strake_proto::{ClientId, ErrorKind, GrantNumber, Ino, Result, Timestamp};
use strake_testing::CrashMeta;
use strake_token::authority::Times;
use strake_token::port::ToClient;

const BLOCK: usize = BLOCK_SIZE as usize;
/// So that a test that fails ends.
const TRIES_MAX: u32 = 1_000_000;

/// Another leader has begun, and the mounts have said what they hold. The manager's client has not,
/// as after each start: so whatever no living mount holds exclusively is looked at.
pub(crate) fn next_leader(world: &World) -> Arc<TokenService> {
    let clients: Vec<ClientId> = (0..MOUNTS).map(client).chain([CREW]).collect();
    let old = world.leader.service();
    let next = world.rig.tokens(&clients);
    world.leader.change(Arc::clone(&next));
    old.stop();
    for (at, tokens) in world.tokens.iter().enumerate() {
        next.came_back(client(at), Arc::clone(tokens) as Arc<dyn ToClient>);
    }
    next
}

/// The parts of a recovery.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    Stripes,
    SmallWrites,
}

/// Puts right what was left. `leave` is called once in that part of it, just before it is asked
/// whether the file belongs to what is put right.
fn recover(
    service: &TokenService,
    vfs: &StrakeVfs,
    (ino, part): (Ino, Part),
    leave: impl FnOnce(),
) {
    let leave = RefCell::new(Some(leave));
    let heal = |number: GrantNumber, of: &dyn Fn(Ino) -> bool| {
        vfs.array().io.versions().raise(number);
        let of_late = |now: Part| {
            let leave = &leave;
            move |asked: Ino| {
                if (asked, now) == (ino, part)
                    && let Some(leave) = leave.borrow_mut().take()
                {
                    assert!(!of(ino), "a living mount holds the file");
                    leave();
                    assert!(!of(ino), "the one that is gone had nothing of it");
                }
                of(asked)
            }
        };
        after_crash::recover_files(vfs.array(), &of_late(Part::Stripes))?;
        vfs.fold(&of_late(Part::SmallWrites)).map(drop)
    };
    service.bury(&[CREW].into(), &heal).expect("buried");
    assert!(leave.borrow().is_none(), "the file was looked at");
}

/// The first mount ends in order.
fn end_first(world: &World) {
    world.mounts[0].shutdown().expect("ends");
    world.leader.service().gone(client(0));
}

fn end(world: World, crew: Crew) {
    for (at, mount) in world.mounts.iter().enumerate().skip(1) {
        mount.shutdown().expect("ends");
        world.leader.service().gone(client(at));
    }
    crew.vfs.shutdown().expect("ends");
    world.leader.service().stop();
}

fn assert_reads(world: &World, file: &File) {
    let mut out = vec![0; file.bytes.len() + 1];
    let count = world.mounts[1].read(file.handles[1], 0, &mut out).expect("readable");
    let wrong = (0..count).find(|at| out[*at] != file.bytes[*at]);
    assert_eq!((count, wrong), (file.bytes.len(), None), "{}", file.name);
    assert_whole(&world.mounts[1], file.ino, &file.name);
    let attr = world.mounts[1].getattr(file.ino).expect("attributes");
    assert_eq!(attr.allocated, file.bytes.len() as u64, "{}: counted bytes", file.name);
}

/// R5: blocks beyond the end are deleted by the size that the file has while nobody can change it,
/// and its bytes are counted then.
#[test]
fn blocks_beyond_a_size_of_before_are_not_deleted_and_not_counted_twice() {
    let (world, crew) = World::with_crew("2x", 3);
    crew.manager.stop();
    let mut file = File::new(&world, "grows".to_owned());
    file.bytes = (0..4 * BLOCK).map(|at| (at / 11) as u8).collect();
    let mount = &world.mounts[0];
    mount.write(file.handles[0], 0, &file.bytes[..BLOCK]).expect("there is room");
    mount.fsync(file.handles[0]).expect("synced");
    // The metadata hears of these blocks later.
    mount.write(file.handles[0], BLOCK as u64, &file.bytes[BLOCK..]).expect("there is room");
    (1..4).for_each(|block| send_block(mount, file.ino, block));
    let next = next_leader(&world);
    recover(&next, &crew.vfs, (file.ino, Part::Stripes), || end_first(&world));
    assert_reads(&world, &file);
    end(world, crew);
}

/// The metadata has small synchronous writes that are older than those which the mount made before
/// it gave the file up.
#[test]
fn small_writes_of_before_do_not_come_back_over_newer_ones() {
    let (world, crew) = World::with_crew("2x", 3);
    crew.manager.stop();
    let mut file = File::new(&world, "overwritten".to_owned());
    file.bytes = vec![1; 2 * BLOCK];
    let (mount, handle) = (&world.mounts[0], file.handles[0]);
    mount.write(handle, 0, &file.bytes).expect("there is room");
    mount.fsync(handle).expect("synced");
    let mut put = |byte: u8| {
        for offset in [5000, BLOCK + 9000] {
            mount.write(handle, offset as u64, &[byte; 100]).expect("there is room");
            file.bytes[offset..offset + 100].fill(byte);
        }
        mount.fsync(handle).expect("synced");
    };
    put(2);
    let next = next_leader(&world);
    recover(&next, &crew.vfs, (file.ino, Part::SmallWrites), || {
        put(3);
        end_first(&world);
    });
    assert_reads(&world, &file);
    end(world, crew);
}

fn update(client: ClientId, ino: Ino, blocks: usize) -> MetaEntry {
    let (size, allocated_delta) = ((blocks * BLOCK) as u64, ((blocks - 1) * BLOCK) as i64);
    let op = MetaOp::Update { ino, size, data: None, allocated_delta, mtime: None, ctime: None };
    let time = Timestamp { seconds: 2_000, nanos: 0 };
    MetaEntry { client, sequence: 0, time, op }
}

/// A mount that is gone was paused in the middle of a sync, and tells its size while its file is
/// put right by the size of before.
#[test]
fn what_a_mount_that_is_gone_tells_late_is_refused() {
    let (mut world, crew) = World::with_crew("2x", 3);
    let mut file = File::new(&world, "late".to_owned());
    file.bytes = vec![7; BLOCK];
    let (mount, handle) = (&world.mounts[0], file.handles[0]);
    mount.write(handle, 0, &file.bytes).expect("there is room");
    mount.fsync(handle).expect("synced");
    mount.write(handle, BLOCK as u64, &[8; 3 * BLOCK]).expect("there is room");
    (1..4).for_each(|block| send_block(mount, file.ino, block));
    drop((world.mounts.remove(0), world.tokens.remove(0)));
    let service = world.leader.service();
    let late = || service.metadata().apply(&update(client(0), file.ino, 4));
    service.close(&[client(0)].into()).expect("closed");
    let heal = |number: GrantNumber, of: &dyn Fn(Ino) -> bool| {
        crew.vfs.array().io.versions().raise(number);
        let tells = |ino: Ino| {
            let is_meant = of(ino);
            if ino == file.ino {
                assert_eq!(late().expect_err("it is gone").kind(), ErrorKind::Fenced);
            }
            is_meant
        };
        after_crash::recover_files(crew.vfs.array(), &tells)?;
        assert_eq!(late().expect_err("it is gone").kind(), ErrorKind::Fenced);
        crew.vfs.fold(of).map(drop)
    };
    service.bury(&[client(0)].into(), &heal).expect("buried");
    let mut out = vec![0; BLOCK + 1];
    let count = world.mounts[0].read(file.handles[1], 0, &mut out).expect("readable");
    assert!(out[..count] == file.bytes);
    let attr = world.mounts[0].getattr(file.ino).expect("attributes");
    assert_eq!((attr.size, attr.allocated), (BLOCK as u64, BLOCK as u64));
    for (at, mount) in world.mounts.iter().enumerate() {
        mount.shutdown().expect("ends");
        service.gone(client(at + 1));
    }
    crew.end();
}

/// Metadata that is slow with the change of a size.
struct Slow {
    inner: Arc<CrashMeta>,
    /// The change has come; it may go on; it is done.
    has_come: AtomicBool,
    may_go_on: AtomicBool,
    is_done: AtomicBool,
}

impl MetaPort for Slow {
    fn query(&self, query: &MetaQuery) -> Result<MetaReply> {
        self.inner.query(query)
    }

    fn apply(&self, entry: &MetaEntry) -> Result<MetaReply> {
        let is_slow = matches!(entry.op, MetaOp::Update { .. });
        if is_slow {
            self.has_come.store(true, Ordering::Release);
            while !self.may_go_on.load(Ordering::Acquire) {
                thread::yield_now();
            }
        }
        let reply = self.inner.apply(entry);
        self.is_done.fetch_or(is_slow, Ordering::AcqRel);
        reply
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
}

#[test]
fn a_client_is_closed_when_its_last_change_has_ended() {
    let rig = Rig::new("1", 1);
    let [has_come, may_go_on, is_done] = [(); 3].map(|()| AtomicBool::new(false));
    let slow = Arc::new(Slow { inner: Arc::clone(&rig.meta), has_come, may_go_on, is_done });
    let times = Times { hold_min: Duration::ZERO, repeat: Duration::from_secs(1) };
    let meta = Arc::clone(&slow) as Arc<dyn MetaPort>;
    let service = TokenService::start(&[], times, meta, Arc::clone(&rig.clock), Arc::new(()));
    let service = service.expect("starts");
    let (ino, names) = (Ino::ROOT, service.metadata());
    let tell = |of: ClientId| names.apply(&update(of, ino, 1));
    thread::scope(|scope| {
        let telling = scope.spawn(|| tell(client(0)));
        while !slow.has_come.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let closing = scope.spawn(|| {
            service.close(&[client(0)].into()).expect("closed");
            assert!(slow.is_done.load(Ordering::Acquire), "a change is under way");
        });
        // From the moment when it is being closed its changes are refused, and end at once.
        let refused =
            |it: &Result<MetaReply>| matches!(it, Err(error) if error.kind() == ErrorKind::Fenced);
        let is_closing = || refused(&names.apply(&quick(client(0))));
        for _ in 0..TRIES_MAX {
            if closing.is_finished() || is_closing() {
                break;
            }
            thread::yield_now();
        }
        names.apply(&quick(client(1))).expect("others go on");
        slow.may_go_on.store(true, Ordering::Release);
        closing.join().expect("it waits");
        telling.join().expect("no panic").expect_err("the root is no file");
    });
    assert_eq!(tell(client(0)).expect_err("it is gone").kind(), ErrorKind::Fenced);
    let leave = MetaEntry { op: MetaOp::Leave, ..update(client(0), ino, 1) };
    names.apply(&leave).expect("it may leave");
    service.stop();
}

/// A change that is not held up.
fn quick(client: ClientId) -> MetaEntry {
    MetaEntry { op: MetaOp::Join, ..update(client, Ino::ROOT, 1) }
}
