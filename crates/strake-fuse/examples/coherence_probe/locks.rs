//! Probes of locks: programs on several mounts lock one file with `fcntl`, `flock` and locks of
//! open file descriptions.

use crate::peer::Peer;
use crate::world::World;
use crate::{MOUNTS, Outcome};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use strake_env::thread;

const KINDS: [&str; 3] = ["posix", "ofd", "flock"];

/// A process that locks a file.
fn locker(world: &World, mount: usize, name: &str) -> Result<Peer, Box<dyn std::error::Error>> {
    Peer::start("peer-locks", world, mount, name)
}

impl Peer {
    /// Tells it to wait for a lock, and returns once it does.
    fn waits(&mut self, world: &World, mount: usize, order: &str) -> Outcome {
        self.tell(order)?;
        let who = format!("process {}", self.child.id());
        let is_it = |(thread, detail): &(String, String)| {
            *thread == who && detail.contains("held by client")
        };
        // The limit of the whole probe ends this if it never waits.
        while !world.waits(mount).iter().any(is_it) {
            thread::yield_now();
        }
        Ok(())
    }

    fn signal(&self, signal: i32) {
        // SAFETY: no memory is involved; the process is a child that was not waited for.
        let _ = unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }
}

extern "C" fn nothing(_: i32) {}

/// The other process: see `peer.rs`.
pub(crate) fn peer(path: &Path) -> Outcome {
    // SAFETY: the handler does nothing, and the struct is zeroed but for it, so that system calls
    // are not begun anew after the signal.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGINT, &raw const action, std::ptr::null_mut());
    }
    let open = || OpenOptions::new().read(true).write(true).open(path);
    let mut file = Some(open()?);
    let mut heir = None;
    for order in std::io::stdin().lines() {
        let order = order?;
        let words: Vec<&str> = order.split(' ').collect();
        let answer = match (&words[..], &file) {
            (["open-and-close"], _) => open().map(|_| "ok".to_owned())?,
            (["close"], Some(_)) => {
                file = None;
                "ok".to_owned()
            }
            (["hand-over"], Some(own)) => {
                heir = Some(hand_over(own)?);
                file = None;
                "ok".to_owned()
            }
            (["end-heir"], _) => {
                let mut heir: Child = heir.take().ok_or("no heir")?;
                heir.kill()?;
                heir.wait()?;
                "ok".to_owned()
            }
            (["write", text], Some(file)) => {
                file.write_all_at(text.as_bytes(), 0)?;
                "ok".to_owned()
            }
            (["read"], Some(file)) => {
                let mut bytes = [0; 3];
                file.read_exact_at(&mut bytes, 0)?;
                String::from_utf8_lossy(&bytes).into_owned()
            }
            ([kind, act, mode, from, to], Some(file)) => {
                locks(file, kind, act, mode, (from.parse()?, to.parse()?))
            }
            _ => return Err(format!("no such order: {order}").into()),
        };
        println!("{answer}");
    }
    Ok(())
}

/// Starts a process that does nothing but hold the file open.
fn hand_over(file: &File) -> std::io::Result<Child> {
    // SAFETY: the flags of a descriptor that is ours; no memory is involved.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) };
    Command::new("sleep").arg("60").stdin(Stdio::null()).stdout(Stdio::null()).spawn()
}

fn locks(file: &File, kind: &str, act: &str, mode: &str, range: (i64, i64)) -> String {
    let result = match kind {
        "flock" => {
            let operation = match mode {
                "read" => libc::LOCK_SH,
                "write" => libc::LOCK_EX,
                _ => libc::LOCK_UN,
            };
            let waits = if act == "wait" { 0 } else { libc::LOCK_NB };
            // SAFETY: no memory is involved.
            unsafe { libc::flock(file.as_raw_fd(), operation | waits) }
        }
        _ => return fcntl(file, kind, act, mode, range),
    };
    text(result)
}

fn fcntl(file: &File, kind: &str, act: &str, mode: &str, (from, to): (i64, i64)) -> String {
    // SAFETY: a struct of integers, for which zeros are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = match mode {
        "read" => libc::F_RDLCK as i16,
        "write" => libc::F_WRLCK as i16,
        _ => libc::F_UNLCK as i16,
    };
    (lock.l_start, lock.l_len) = (from, to - from);
    let command = match (kind, act) {
        ("ofd", "wait") => libc::F_OFD_SETLKW,
        ("ofd", "try") => libc::F_OFD_SETLK,
        ("ofd", _) => libc::F_OFD_GETLK,
        (_, "wait") => libc::F_SETLKW,
        (_, "try") => libc::F_SETLK,
        _ => libc::F_GETLK,
    };
    // SAFETY: the struct lives for the call, and the kernel writes nothing but its fields.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if act != "test" || result != 0 {
        return text(result);
    }
    match i32::from(lock.l_type) {
        libc::F_UNLCK => "free".to_owned(),
        kind => {
            let mode = if kind == libc::F_RDLCK { "read" } else { "write" };
            format!("{mode} {} {}", lock.l_start, lock.l_start + lock.l_len)
        }
    }
}

fn text(result: i32) -> String {
    if result == 0 {
        return "ok".to_owned();
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EAGAIN) => "EAGAIN".to_owned(),
        Some(libc::EINTR) => "EINTR".to_owned(),
        Some(libc::EDEADLK) => "EDEADLK".to_owned(),
        other => format!("{other:?}"),
    }
}

fn file(world: &World, name: &str) -> Outcome {
    std::fs::write(world.path(0, name), "old")?;
    Ok(())
}

/// A lock on one mount keeps others out on all, passes on, and shows what was written under it.
pub(crate) fn passes_on(world: &World) -> Outcome {
    for kind in KINDS {
        file(world, kind)?;
        let mut peers = [locker(world, 0, kind)?, locker(world, 1, kind)?];
        let [one, two] = &mut peers;
        let order = |act: &str, mode: &str| format!("{kind} {act} {mode} 0 10");
        one.ask(&order("try", "read"), "ok")?;
        two.ask(&order("try", "read"), "ok")?;
        two.ask(&order("try", "write"), "EAGAIN")?;
        two.ask(&order("try", "none"), "ok")?;
        one.ask(&order("wait", "write"), "ok")?;
        two.ask(&order("try", "read"), "EAGAIN")?;
        if kind != "flock" {
            two.ask(&order("test", "read"), "write 0 10")?;
            one.ask(&order("test", "read"), "free")?;
        }
        two.waits(world, 1, &order("wait", "write"))?;
        one.ask("write new", "ok")?;
        one.ask(&order("try", "none"), "ok")?;
        two.hear("ok", "the lock that was let go")?;
        two.ask("read", "new")?;
        one.ask(&order("try", "read"), "EAGAIN")?;
        two.ask(&order("wait", "none"), "ok")?;
        one.ask(&order("try", "write"), "ok")?;
    }
    Ok(())
}

/// Parts of a lock are unlocked, and others lock them.
pub(crate) fn ranges(world: &World) -> Outcome {
    for kind in ["posix", "ofd"] {
        let name = &format!("ranges-{kind}");
        file(world, name)?;
        let (mut one, mut two) = (locker(world, 0, name)?, locker(world, 2, name)?);
        one.ask(&format!("{kind} try write 0 100"), "ok")?;
        one.ask(&format!("{kind} try none 40 60"), "ok")?;
        one.ask(&format!("{kind} try read 70 80"), "ok")?;
        two.ask(&format!("{kind} try write 40 60"), "ok")?;
        two.ask(&format!("{kind} try write 39 41"), "EAGAIN")?;
        two.ask(&format!("{kind} test write 60 100"), "write 60 70")?;
        two.ask(&format!("{kind} test write 70 75"), "read 70 80")?;
        two.ask(&format!("{kind} test read 70 80"), "free")?;
        // To the end of the file, however long: a length of 0.
        one.ask(&format!("{kind} try write 1000 1000"), "ok")?;
        two.ask(&format!("{kind} try read 1000000000 1000000001"), "EAGAIN")?;
        one.ask(&format!("{kind} try write 30 50"), "EAGAIN")?;
        two.ask(&format!("{kind} try none 0 0"), "ok")?;
        one.ask(&format!("{kind} try write 0 0"), "ok")?;
        two.ask(&format!("{kind} test read 0 0"), "write 0 0")?;
    }
    Ok(())
}

/// A program that waits is interrupted, or killed, and nothing is left behind.
pub(crate) fn interrupted(world: &World) -> Outcome {
    for kind in KINDS {
        let name = &format!("interrupt-{kind}");
        file(world, name)?;
        let order = |act: &str, mode: &str| format!("{kind} {act} {mode} 0 10");
        let mut holder = locker(world, 0, name)?;
        holder.ask(&order("wait", "write"), "ok")?;
        let mut waiter = locker(world, 1, name)?;
        for _ in 0..20 {
            waiter.waits(world, 1, &order("wait", "write"))?;
            waiter.signal(libc::SIGINT);
            waiter.hear("EINTR", "a wait that was interrupted")?;
        }
        waiter.waits(world, 1, &order("wait", "write"))?;
        // Returns only when the process is gone.
        drop(waiter);
        let mut other = locker(world, 1, name)?;
        other.ask(&order("try", "write"), "EAGAIN")?;
        holder.ask(&order("try", "none"), "ok")?;
        other.ask(&order("try", "write"), "ok")?;
        drop(holder);
    }
    Ok(())
}

/// What `close(2)` releases, and what it does not.
pub(crate) fn closed(world: &World) -> Outcome {
    for kind in KINDS {
        let name = &format!("close-{kind}");
        file(world, name)?;
        let order = |act: &str, mode: &str| format!("{kind} {act} {mode} 0 10");
        let (mut one, mut two) = (locker(world, 0, name)?, locker(world, 1, name)?);
        one.ask(&order("try", "write"), "ok")?;
        one.ask("open-and-close", "ok")?;
        let is_process = kind == "posix";
        // Any close of the file by a process takes its POSIX locks, and no others.
        two.ask(&order("try", "write"), if is_process { "ok" } else { "EAGAIN" })?;
        two.ask(&order("try", "none"), "ok")?;
        one.ask(&order("try", "write"), "ok")?;
        one.ask("close", "ok")?;
        two.ask(&order("wait", "write"), "ok")?;
    }
    Ok(())
}

/// An open file that was handed to another process keeps its locks until that closes it.
pub(crate) fn handed_over(world: &World) -> Outcome {
    for kind in ["ofd", "flock"] {
        let name = &format!("heir-{kind}");
        file(world, name)?;
        let order = |act: &str, mode: &str| format!("{kind} {act} {mode} 0 10");
        let (mut one, mut two) = (locker(world, 0, name)?, locker(world, 1, name)?);
        one.ask(&order("try", "write"), "ok")?;
        one.ask("hand-over", "ok")?;
        two.ask(&order("try", "write"), "EAGAIN")?;
        two.waits(world, 1, &order("wait", "write"))?;
        one.ask("end-heir", "ok")?;
        two.hear("ok", "the lock of an heir that is gone")?;
    }
    Ok(())
}

/// The locks of a killed process pass on.
pub(crate) fn killed(world: &World) -> Outcome {
    for kind in KINDS {
        let name = &format!("killed-{kind}");
        file(world, name)?;
        let order = |act: &str, mode: &str| format!("{kind} {act} {mode} 0 10");
        let (mut one, mut two) = (locker(world, 0, name)?, locker(world, 1, name)?);
        one.ask(&order("try", "write"), "ok")?;
        two.waits(world, 1, &order("wait", "write"))?;
        drop(one);
        two.hear("ok", "the lock of a process that was killed")?;
    }
    Ok(())
}

/// Three processes on three mounts that wait for each other in a circle.
pub(crate) fn circle(world: &World) -> Outcome {
    file(world, "circle")?;
    let peers: Result<Vec<Peer>, _> =
        (0..MOUNTS).map(|mount| locker(world, mount, "circle")).collect();
    let mut peers = peers?;
    for (at, peer) in peers.iter_mut().enumerate() {
        peer.ask(&format!("posix try write {at} {}", at + 1), "ok")?;
    }
    peers[0].waits(world, 0, "posix wait write 1 2")?;
    peers[1].waits(world, 1, "posix wait write 2 3")?;
    peers[2].ask("posix wait write 0 1", "EDEADLK")?;
    peers[2].ask("posix try none 2 3", "ok")?;
    peers[1].hear("ok", "the second one")?;
    peers[1].ask("posix try none 0 3", "ok")?;
    peers[0].hear("ok", "the first one")
}

/// SQLite on every mount writes one database.
pub(crate) fn sqlite(world: &World) -> Outcome {
    const EACH: usize = 25;
    let run = |mount: usize, script: &str| -> Result<String, String> {
        let output = Command::new("sqlite3")
            .args(["-batch", "-bail", "-cmd", ".timeout 60000"])
            .arg(world.path(mount, "data.sqlite"))
            .arg(script)
            .output()
            .map_err(|error| format!("sqlite3: {error}"))?;
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() && errors.is_empty() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(format!("sqlite3 on mount {mount}: {errors}"))
        }
    };
    run(0, "CREATE TABLE t (mount INTEGER, number INTEGER);")?;
    let failures: Vec<String> = thread::scope(|scope| {
        let run = &run;
        let writers: Vec<_> = (0..MOUNTS)
            .map(|mount| {
                scope.spawn(move || {
                    (0..EACH).try_for_each(|number| {
                        let change = format!("INSERT INTO t VALUES ({mount}, {number});");
                        run(mount, &change).map(drop)
                    })
                })
            })
            .collect();
        writers.into_iter().filter_map(|it| it.join().expect("no panic").err()).collect()
    });
    if !failures.is_empty() {
        return Err(failures.join("; ").into());
    }
    for mount in 0..MOUNTS {
        let counted = run(mount, "SELECT count(*) FROM t; PRAGMA integrity_check;")?;
        if counted != format!("{}\nok", MOUNTS * EACH) {
            return Err(format!("mount {mount} shows {counted}").into());
        }
    }
    Ok(())
}
