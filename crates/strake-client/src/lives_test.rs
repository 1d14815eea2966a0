//! A mount dies and goes on: what its programs, its kernel and other mounts see.

use super::*;
use crate::coherence_test::{File, World, client};
use crate::invalidate::{Dropping, Found, Outdated};
use std::sync::atomic::Ordering;
use strake_env::sync::Mutex;
use strake_env::thread;
use strake_proto::{ClientId, ErrorKind};
use strake_token::Mode;
use strake_token::port::ToClient;

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags::READ_WRITE;

/// A kernel that remembers what it was told.
#[derive(Default)]
struct Kernel(Mutex<Vec<Outdated>>);

impl Invalidate for Kernel {
    fn invalidate(&self, what: Outdated) -> Result<Dropping> {
        self.0.lock().push(what.clone());
        let (dropping, dropped) = Dropping::begin(what);
        dropped.tell(Ok(Found::Something));
        Ok(dropping)
    }

    fn can_drop_all_names(&self) -> bool {
        true
    }
}

/// The first of three mounts, with a file that all have open, and a kernel above.
struct Rigged {
    world: World,
    file: File,
    lives: Lives,
    kernel: Arc<Kernel>,
    handle: Handle,
}

impl Rigged {
    fn new() -> Rigged {
        let world = World::new("1", 1);
        let kernel = Arc::new(Kernel::default());
        let lives = Lives::new(Arc::clone(&world.mounts[0]));
        lives.attach_adapter(Arc::clone(&kernel) as Arc<dyn Invalidate>);
        let file = File::new(&world, "file".into());
        let handle = lives.open(ROOT, file.ino, RW).expect("opened").handle;
        Rigged { world, file, lives, kernel, handle }
    }

    /// The mount is declared dead, and what it held goes to others.
    fn die(&self) {
        self.world.tokens[0].declared_dead();
        assert!(self.world.tokens[0].bury(), "no operation is under way");
        self.world.leader.service().gone(client(0));
    }

    /// It begins the next life.
    fn go_on(&self) -> ClientId {
        let next = ClientId(client(0).0 + 100);
        let (vfs, _) = self.world.rig.start_beside(&self.world.leader, next);
        assert!(self.lives.begin(&vfs));
        next
    }

    fn end(self, last: ClientId) {
        self.lives.now().shutdown().expect("ends");
        self.world.leader.service().gone(last);
        for at in [1, 2] {
            self.world.mounts[at].shutdown().expect("ends");
            self.world.leader.service().gone(client(at));
        }
        self.world.leader.service().stop();
    }
}

#[track_caller]
fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("it is of an earlier life").kind()
}

#[test]
fn a_dead_mount_goes_on_and_only_files_that_were_open_are_lost() {
    let rigged = Rigged::new();
    let Rigged { world, file, lives, kernel, handle } = &rigged;
    let (ino, handle, mut out) = (file.ino, *handle, [0; 5]);
    lives.write(handle, 0, b"first").expect("there is room");
    lives.fsync(handle).expect("durable");
    lives.write(handle, 0, b"never").expect("there is room");
    rigged.die();
    assert_eq!(kind(lives.fsync(handle)), ErrorKind::Io);
    assert_eq!(kind(lives.fsyncdir(Ino::ROOT)), ErrorKind::Io);
    assert_eq!(kind(lives.sync()), ErrorKind::Io);
    let dropped =
        |what: &Outdated| matches!(what, Outdated::Contents { ino: it, .. } if *it == ino);
    assert!(kernel.0.lock().iter().any(dropped), "the kernel has its bytes no more");
    assert!(kernel.0.lock().contains(&Outdated::AllNames));
    let other = &world.mounts[1];
    other.write(file.handles[1], 5, b" other").expect("there is room");

    let last = rigged.go_on();
    assert_eq!(lives.getattr(ino).expect("by its number").size, 11);
    assert_eq!(kind(lives.read(handle, 0, &mut out)), ErrorKind::Io);
    assert_eq!(kind(lives.write(handle, 0, b"late")), ErrorKind::Io);
    assert_eq!(kind(lives.fsync(handle)), ErrorKind::Io);
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(kind(lives.setattr(ROOT, ino, Some(handle), &size)), ErrorKind::Io);
    let again = lives.open(ROOT, ino, RW).expect("opened again").handle;
    assert_eq!(kind(lives.copy_range((handle, 0), (again, 0), 1)), ErrorKind::Io);
    lives.release(handle);
    assert_eq!(lives.read(again, 0, &mut out).expect("readable"), 5);
    assert_eq!(&out, b"first", "what was synced, and nothing that was not");
    lives.fsync(again).expect("the handle of before has told what is lost");
    lives.write(again, 0, b"again").expect("there is room");
    assert_eq!(other.read(file.handles[1], 0, &mut out).expect("readable"), 5);
    assert_eq!(&out, b"again");
    lives.release(again);
    rigged.end(last);
}

/// The kernel knows inodes from before. It is told of what others change of them, and not any more
/// once it has forgotten them.
#[test]
fn what_the_kernel_looked_up_before_is_counted_in_the_next_life() {
    let rigged = Rigged::new();
    let Rigged { file, lives, .. } = &rigged;
    lives.lookup(ROOT, Ino::ROOT, file.name.as_bytes()).expect("there");
    rigged.die();
    let last = rigged.go_on();
    let table = &lives.now().mount.table;
    assert!(table.is_looked_up(file.ino));
    // Once when it was made, and once by its name.
    lives.forget(file.ino, 2);
    assert!(!table.is_looked_up(file.ino));
    rigged.end(last);
}

/// The kernel must not keep a name that an earlier life has answered.
#[test]
fn a_name_that_was_asked_for_in_an_earlier_life_is_not_kept() {
    let rigged = Rigged::new();
    let Rigged { file, lives, .. } = &rigged;
    let look = || lives.lookup(ROOT, Ino::ROOT, file.name.as_bytes()).expect("there");
    let mark = lives.show_name(Ino::ROOT);
    look();
    assert!(lives.name_holds(Ino::ROOT, mark) > Some(Duration::ZERO));
    rigged.die();
    let last = rigged.go_on();
    let before = lives.show_name(Ino::ROOT);
    look();
    assert!(lives.name_holds(Ino::ROOT, before) > Some(Duration::ZERO));
    assert_eq!(lives.name_holds(Ino::ROOT, mark), Some(Duration::ZERO));
    rigged.end(last);
}

/// A program mapped the file in an earlier life, and may store to its pages still.
#[test]
fn pages_are_had_exclusively_while_a_handle_of_an_earlier_life_may_store_to_them() {
    let rigged = Rigged::new();
    let Rigged { world, file, lives, handle, .. } = &rigged;
    lives.write(*handle, 0, &[1; 4096]).expect("there is room");
    lives.fsync(*handle).expect("durable");
    rigged.die();
    let last = rigged.go_on();
    let (ino, read_only) = (file.ino, OpenFlags { write: false, ..RW });
    let reader = lives.open(ROOT, ino, read_only).expect("opened").handle;
    let fills = || {
        world.mounts[1].read(file.handles[1], 0, &mut [0; 10]).expect("readable");
        lives.fill(reader, 0, &mut [0; 4096]).expect("readable");
        lives.now().mount.tokens.as_ref().and_then(|tokens| tokens.held(ino))
    };
    assert_eq!(fills(), Some(Mode::Exclusive));
    // The test's own handle, and that of the file on the first mount.
    lives.release(*handle);
    lives.release(file.handles[0]);
    assert_eq!(fills(), Some(Mode::Shared));
    lives.release(reader);
    rigged.end(last);
}

/// A program has closed a file and did not sync it. When it opens the file again to do so, the
/// bytes are gone. The same holds for names, of which the metadata was not told.
#[test]
fn a_sync_in_the_next_life_tells_of_what_the_last_one_lost() {
    let rigged = Rigged::new();
    let Rigged { world, file, lives, .. } = &rigged;
    let dir = |name: &[u8]| lives.mkdir(ROOT, Ino::ROOT, name, 0o755).expect("made").attr.ino;
    let (changed, untouched) = (dir(b"changed"), dir(b"untouched"));
    let make = |name: &[u8]| {
        let (entry, opened) = lives.create(ROOT, changed, name, 0o644, RW, true).expect("made");
        (entry.attr.ino, opened.handle)
    };
    let (durable, handle) = make(b"durable");
    lives.release(handle);
    lives.sync().expect("synced");
    let opened = |ino| lives.open(ROOT, ino, RW).expect("opened").handle;
    let (written, read) = (opened(file.ino), opened(durable));
    lives.write(written, 0, b"never").expect("there is room");
    lives.read(read, 0, &mut [0; 5]).expect("readable");
    [written, read].into_iter().for_each(|handle| lives.release(handle));
    world.leader.refuses_later.store(true, Ordering::SeqCst);
    lives.release(make(b"lost").1);
    rigged.die();
    let last = rigged.go_on();
    assert_eq!(kind(lives.lookup(ROOT, changed, b"lost")), ErrorKind::NotFound);
    let (written, read) = (opened(file.ino), opened(durable));
    lives.fsync(read).expect("nothing of it is lost");
    lives.fsyncdir(untouched).expect("nothing of it is lost");
    assert_eq!(kind(lives.fsync(written)), ErrorKind::Io);
    assert_eq!(kind(lives.fsyncdir(changed)), ErrorKind::Io);
    assert_eq!(kind(lives.sync()), ErrorKind::Io);
    lives.write(written, 0, b"again").expect("there is room");
    lives.fsync(written).expect("it was told");
    lives.fsyncdir(changed).expect("it was told");
    lives.sync().expect("it was told");
    [written, read].into_iter().for_each(|handle| lives.release(handle));
    rigged.end(last);
}

/// The leader has taken a change, and would lose it if it died as well.
#[test]
fn what_the_leader_has_taken_is_not_durable_yet() {
    let rigged = Rigged::new();
    let lives = &rigged.lives;
    let dir = lives.mkdir(ROOT, Ino::ROOT, b"dir", 0o755).expect("made").attr.ino;
    lives.sync().expect("synced");
    assert!(lives.now().mount.array.meta.unsynced_inodes().is_empty());
    lives.symlink(ROOT, dir, b"taken", b"target").expect("made");
    lives.statfs().expect("asks the metadata, which is told of all before");
    rigged.die();
    let last = rigged.go_on();
    assert_eq!(kind(lives.fsyncdir(dir)), ErrorKind::Io);
    lives.fsyncdir(dir).expect("it was told");
    lives.lookup(ROOT, dir, b"taken").expect("this leader lives");
    rigged.end(last);
}

/// Waits until somebody waits for the next life.
fn await_waiter(lives: &Lives) {
    let waiters = &lives.now().mount.array.observe.waiters;
    while !waiters.snapshot().iter().any(|wait| wait.reason == "a new life of this mount") {
        thread::yield_now();
    }
}

#[test]
fn operations_that_need_no_open_file_wait_for_the_next_life() {
    let rigged = Rigged::new();
    let Rigged { file, lives, handle, .. } = &rigged;
    rigged.die();
    let last = thread::scope(|scope| {
        let looks = scope.spawn(|| lives.lookup(ROOT, Ino::ROOT, file.name.as_bytes()));
        let makes = scope.spawn(|| {
            let made = lives.create(ROOT, Ino::ROOT, b"new", 0o644, RW, true);
            made.map(|(_, opened)| opened.handle)
        });
        await_waiter(lives);
        assert_eq!(kind(lives.fsync(*handle)), ErrorKind::Io);
        assert!(!looks.is_finished() && !makes.is_finished());
        let last = rigged.go_on();
        let found = looks.join().expect("no panic").expect("there");
        assert_eq!(found.attr.ino, file.ino);
        let new = makes.join().expect("no panic").expect("made");
        lives.write(new, 0, b"bytes").expect("it is open in this life");
        lives.release(new);
        last
    });
    rigged.end(last);
}

/// An open that has begun in the last life goes on in the next one, and so does its handle.
#[test]
fn what_changes_nothing_is_done_again_if_its_life_dies_in_the_midst() {
    let rigged = Rigged::new();
    let Rigged { file, lives, .. } = &rigged;
    let last = thread::scope(|scope| {
        let open = scope.spawn(|| {
            lives.looked_in(|vfs| match vfs.mount.is_dead() {
                true => unreachable!("a dead life is not asked"),
                false if lives.now.read().number == 0 => {
                    rigged.world.tokens[0].declared_dead();
                    Err::<Opened, _>(dead())
                }
                false => vfs.open(ROOT, file.ino, RW),
            })
        });
        await_waiter(lives);
        assert!(rigged.world.tokens[0].bury(), "no operation is under way");
        rigged.world.leader.service().gone(client(0));
        let last = rigged.go_on();
        let (opened, life) = open.join().expect("no panic");
        assert_eq!((opened.is_ok(), life), (true, 1));
        lives.now().release(opened.expect("opened").handle);
        last
    });
    let again = lives.open(ROOT, file.ino, RW).expect("opened").handle;
    assert_eq!(again.0 >> LIFE_SHIFT, 1, "a handle carries the number of its life");
    lives.write(again, 0, b"again").expect("there is room");
    lives.release(again);
    rigged.end(last);
}

/// They wait for `standstill_max` after the death, however many there are.
#[test]
fn operations_do_not_wait_for_long_for_a_life_that_does_not_come() {
    let rigged = Rigged::new();
    let Rigged { file, lives, .. } = &rigged;
    rigged.die();
    let (clock, limit) = {
        let mount = &lives.now().mount;
        (Arc::clone(&mount.array.clock), mount.settings.standstill_max)
    };
    let start = clock.monotonic();
    for _ in 0..20 {
        assert_eq!(kind(lives.getattr(file.ino)), ErrorKind::Io);
    }
    assert!((limit..limit * 20).contains(&(clock.monotonic() - start)), "all wait together");
    let last = rigged.go_on();
    lives.getattr(file.ino).expect("it goes on");
    rigged.end(last);
}

#[test]
fn nobody_waits_for_a_life_after_the_end() {
    let rigged = Rigged::new();
    let Rigged { file, lives, .. } = &rigged;
    rigged.die();
    thread::scope(|scope| {
        let looks = scope.spawn(|| lives.getattr(file.ino));
        await_waiter(lives);
        lives.end();
        assert_eq!(kind(looks.join().expect("no panic")), ErrorKind::Io);
    });
    let last = rigged.go_on();
    rigged.end(last);
}
