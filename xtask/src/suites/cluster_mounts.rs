//! One file system, mounted on three nodes at once, by three processes of this machine.
//!
//! 1. What one mount does, the others see at once: bytes, names, sizes, modes, removals. Of many
//!    that create one name, one succeeds. git on one mount reads what git on another wrote.
//! 2. The process of a mount is killed while it holds files that it has not made durable. The
//!    others get these files within seconds, with everything that was synced.
//! 3. The process of a mount is stopped (`kill -STOP`) while it holds files. The others get these
//!    within the lease and a bit. Let go on, it goes on by itself, without what it held.
//! 4. fio verifies on two mounts while the server processes of all nodes are killed in turn and
//!    started again, the leader among them. fio sees no error, and every disk comes back.
//! 5. Two mounts fill the file system at the same time ([`super::cluster_full`]).
//! 6. The node that serves the file system dies, with its mount. The others go on within seconds.
//! 7. `fs check` is clean beside the mounts. The nodes stop, start, and have everything.
//! 8. The node that serves is lost for good, with its disk. Everything is there on the others.

use super::checks::Checks;
use super::cluster_first::{FIO_SECONDS_MAX, NODES, Place, make, signal, with};
use super::cluster_full::fill_together;
use super::command::pause;
use super::held::Held;
use super::session::Session;
use super::writer::contents;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

/// Between two accidents.
const WORK: Duration = Duration::from_millis(1500);
const ROUNDS: usize = 20;

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let place = Place::new(session, "cluster-mounts")?;
    let outcome = story(&place, checks);
    place.end();
    outcome
}

fn story(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    make(place, checks)?;
    for node in NODES {
        mount(place, node)?;
    }
    checks.record("three nodes mount the file system", Ok(()));
    checks.record("what one mount does, the others see at once", seen_at_once(place));
    checks.record("of three that create a name, one succeeds", one_creates(place));
    checks.record("git on one mount reads what git on another wrote", git(place));
    checks.record("a mount that dies holds up nobody", mount_dies(place));
    mount(place, "n3")?;
    mount_stops(place, checks)?;
    servers_die(place, checks);
    checks.record("every disk is up", place.wait_until_up());
    serving_node_dies(place, checks)?;
    let scrubbed = scrubbed_from_another_node(place);
    checks.record("a scrub ordered on n1 mends a disk of n3, and n2 sees how far it is", scrubbed);
    checks.record("a suspended disk gets no new files", suspended(place));
    let filled = fill_together([&at(place, "n1"), &at(place, "n2")]);
    checks.record("two mounts fill it together, and what they accept is there", filled);
    let check = place.succeeds("check", place.on_mount("fs check"));
    checks.record("strake fs check is clean beside three mounts", check);
    checks.record("all unmount", place.succeeds("umount", place.on("n2", "fs umount demo")));
    for node in ["n3", "n2", "n1"] {
        place.succeeds("stop", place.on(node, "node stop"))?;
    }
    for node in NODES {
        place.succeeds("start", place.on(node, "node start"))?;
    }
    mount(place, "n3")?;
    checks.record("everything is there after a restart of all", verify(place, "n3", "synced", 7));
    checks.record("a node is lost for good", node_is_lost(place));
    Ok(())
}

/// The node that serves the file system, as another one sees it.
pub(super) fn serving(place: &Place<'_>, asked: &str) -> Result<&'static str, String> {
    let state = place.run("who-serves", place.on(asked, "node state"))?.success()?.output();
    let row = state.lines().find(|line| line.contains("demo (serves)"));
    let name = row.and_then(|row| row.split_whitespace().next());
    NODES.into_iter().find(|node| Some(*node) == name).ok_or(state)
}

/// The other two nodes.
fn others(node: &str) -> [&'static str; 2] {
    let mut others = NODES.into_iter().filter(|other| *other != node);
    [(); 2].map(|()| others.next().expect("three nodes"))
}

/// The server process and the mount of a node die at the same time.
pub(super) fn kill_node(place: &Place<'_>, node: &str) -> Result<(), String> {
    place.kill(node)?;
    place.kill_mount(node)
}

/// The node that serves dies with files that its mount holds exclusively.
fn serving_node_dies(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    let dies = serving(place, "n1")?;
    let [one, other] = others(dies);
    let held = Held::new(place.session, &at(place, dies), 40)?;
    kill_node(place, dies)?;
    let free = held.is_free_for(&[at(place, one), at(place, other)]);
    let seconds = free.as_ref().map_or(f64::NAN, Duration::as_secs_f64);
    let what = format!("the node that serves dies and holds up nobody: {seconds:.1} s");
    checks.record(&what, free.map(drop));
    held.close()?;
    let now = serving(place, other)?;
    checks.hold("another node serves", now != dies, || format!("{now} serves"));
    place.succeeds("start", place.on(dies, "node start"))?;
    mount(place, dies)?;
    place.wait_until_up_again(&[at(place, "n1"), at(place, "n2")])
}

/// The node that serves is gone for good, and its disk with it.
fn node_is_lost(place: &Place<'_>) -> Result<(), String> {
    NODES.into_iter().try_for_each(|node| mount(place, node))?;
    let lost = serving(place, "n3")?;
    let [one, other] = others(lost);
    kill_node(place, lost)?;
    fs::remove_dir_all(place.root.join(lost)).map_err(text("remove the disk"))?;
    verify(place, one, "synced", 7)?;
    verify(place, other, "synced", 7)?;
    let new = fs::File::create(at(place, one).join("new")).and_then(|mut file| {
        file.write_all(&contents(11, 5 << 20))?;
        file.sync_all()
    });
    new.map_err(text("write without the node"))?;
    let found = fs::read(at(place, other).join("new")).map_err(text("read without the node"))?;
    expect("what was written without the node", found == contents(11, 5 << 20), true)?;
    place.succeeds("check-without", place.on_mount_of(one, "fs check"))?;
    let mut dead = place.session.command("umount");
    dead.arg("-l").arg(at(place, lost));
    place.succeeds("umount-dead", dead)?;
    place.succeeds("umount-without", place.on(one, "fs umount demo --force"))
}

/// Damages what a disk of n3 keeps about itself, and the journal of the metadata's copy on it.
fn scrubbed_from_another_node(place: &Place<'_>) -> Result<(), String> {
    let mut find = std::process::Command::new("find");
    find.arg(place.root.join("n3")).args(["-name", "container"]);
    let found = place.run("find", find)?.success()?.output();
    let container = std::path::Path::new(found.trim());
    super::degraded::damage(container)?;
    damage_journal(container)?;
    place.succeeds("scrub", place.on_mount_of("n1", "fs scrub start"))?;
    super::degraded::wait_for_scrub(2, || {
        let status = place.on_mount_of("n2", "fs scrub status");
        Ok(place.run("scrub-status", status)?.success()?.output())
    })?;
    let is_new = !journal_superblocks(container)?.is_empty();
    expect("a superblock of the journal is written anew", is_new, true)
}

/// Damages both superblocks of the journal of the metadata's copy on a disk.
fn damage_journal(container: &std::path::Path) -> Result<(), String> {
    use std::os::unix::fs::FileExt;
    let superblocks = journal_superblocks(container)?;
    expect("superblocks of the journal", superblocks.len(), 2)?;
    let damaged = fs::File::options().write(true).open(container).and_then(|file| {
        for at in superblocks {
            file.write_all_at(&[0x5a; 64], at)?;
        }
        file.sync_all()
    });
    damaged.map_err(text("the disk of n3"))
}

/// The places on a disk of the superblocks of the journal of the metadata's copy.
fn journal_superblocks(container: &std::path::Path) -> Result<Vec<u64>, String> {
    use std::os::unix::fs::FileExt;
    const BLOCK_BYTES: usize = 4096;
    let mut start = vec![0; 256 << 20];
    let length = fs::File::open(container).and_then(|file| file.read_at(&mut start, 0));
    let length = length.map_err(text("the disk of n3"))?;
    let blocks = start[..length].chunks(BLOCK_BYTES).zip((0u64..).step_by(BLOCK_BYTES));
    Ok(blocks.filter(|(block, _)| block.starts_with(b"STRAKErs")).map(|(_, at)| at).collect())
}

/// All mounts see that a disk is suspended, also when another mount has noted since that the disk
/// was away. New files are on the others.
fn suspended(place: &Place<'_>) -> Result<(), String> {
    place.succeeds("suspend", place.on_mount_of("n1", "disk suspend d3"))?;
    let row = |disks: &str| disks.lines().find(|line| line.starts_with("d3 ")).map(str::to_owned);
    for node in NODES {
        let list = place.run("disks", place.on_mount_of(node, "disk list"))?.success()?.output();
        if !row(&list).is_some_and(|row| row.contains(" suspended ")) {
            return Err(format!("{node} sees: {list}"));
        }
    }
    let strips = || -> Result<String, String> {
        let list = place.run("strips", place.on_mount_of("n2", "disk list --json"))?;
        Ok(strips_of(&list.success()?.output(), "d3").unwrap_or_default())
    };
    let before = strips()?;
    for node in NODES {
        let path = at(place, node).join(format!("new-{node}"));
        let write = fs::File::create(&path).and_then(|mut file| {
            file.write_all(&contents(1, 9 << 20))?;
            file.sync_all()
        });
        write.map_err(text("a new file"))?;
    }
    expect("strips of d3", strips()?, before)?;
    place.succeeds("resume", place.on_mount_of("n3", "disk resume d3"))
}

/// The field `strips` of a disk in `disk list --json`.
fn strips_of(json: &str, disk: &str) -> Option<String> {
    let (_, after) = json.split_once(&format!("\"name\": \"{disk}\""))?;
    let (_, after) = after.split_once("\"strips\": ")?;
    Some(after.split([',', '\n', '}']).next()?.to_owned())
}

/// Where a node has the file system mounted.
pub(super) fn at(place: &Place<'_>, node: &str) -> PathBuf {
    place.root.join(format!("mnt-{node}"))
}

pub(super) fn mount(place: &Place<'_>, node: &str) -> Result<(), String> {
    let command = place.on(node, "fs mount demo --set pagepool=64M --set stay_awake=off --at");
    place.succeeds("mount", with(command, &at(place, node).to_string_lossy()))
}

fn text(what: &str) -> impl Fn(std::io::Error) -> String + '_ {
    move |error| format!("{what}: {error}")
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: T, wanted: T) -> Result<(), String> {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("{what}: {found:?} instead of {wanted:?}")),
    }
}

/// Round by round another mount acts, and each of the others looks.
fn seen_at_once(place: &Place<'_>) -> Result<(), String> {
    for round in 0..ROUNDS {
        let acts = at(place, NODES[round % 3]);
        let looks: Vec<PathBuf> = (1..3).map(|more| at(place, NODES[(round + more) % 3])).collect();
        let bytes = contents(round as u64, 1000 + round * 7919);
        fs::write(acts.join("a"), &bytes).map_err(text("write"))?;
        for look in &looks {
            expect("bytes", fs::read(look.join("a")).map_err(text("read"))?, bytes.clone())?;
        }
        let mut append = fs::OpenOptions::new().append(true).open(acts.join("log"));
        if round == 0 {
            append = fs::File::create(acts.join("log"));
        }
        append.and_then(|mut log| log.write_all(b"0123456789")).map_err(text("append"))?;
        fs::rename(acts.join("a"), acts.join("b")).map_err(text("rename"))?;
        let mode = fs::Permissions::from_mode(0o600 + round as u32);
        fs::set_permissions(acts.join("b"), mode).map_err(text("chmod"))?;
        for look in &looks {
            expect("a is renamed", look.join("a").exists(), false)?;
            let found = fs::metadata(look.join("b")).map_err(text("stat"))?;
            let mode = found.permissions().mode() & 0o777;
            expect("size", found.len(), bytes.len() as u64)?;
            expect("mode", mode, 0o600 + round as u32)?;
            let log = fs::metadata(look.join("log")).map_err(text("stat"))?;
            expect("length of the log", log.len(), 10 * (round as u64 + 1))?;
        }
        fs::remove_file(looks[0].join("b")).map_err(text("unlink"))?;
        expect("b is removed", acts.join("b").exists(), false)?;
    }
    Ok(())
}

fn one_creates(place: &Place<'_>) -> Result<(), String> {
    for round in 0..ROUNDS {
        let name = format!("only-{round}");
        let made = std::thread::scope(|scope| {
            let create = |node: &'static str| {
                let path = at(place, node).join(&name);
                scope.spawn(move || fs::OpenOptions::new().write(true).create_new(true).open(path))
            };
            let racers: Vec<_> = NODES.into_iter().map(create).collect();
            racers.into_iter().map(|racer| racer.join()).filter(is_made).count()
        });
        expect(&name, made, 1)?;
    }
    Ok(())
}

fn is_made(made: &std::thread::Result<std::io::Result<fs::File>>) -> bool {
    matches!(made, Ok(Ok(_)))
}

fn git(place: &Place<'_>) -> Result<(), String> {
    let run = |node: &str, words: &str| {
        let mut git = place.session.command("git");
        git.arg("-C").arg(at(place, node)).args(["-c", "user.name=a", "-c", "user.email=a@b"]);
        git.args(["-c", "safe.directory=*"]).args(words.split(' '));
        place.run("git", git)?.success().map(|ended| ended.output())
    };
    run("n1", "init -q repo")?;
    for (round, node) in NODES.iter().cycle().take(6).enumerate() {
        for file in 0..20 {
            let path = at(place, node).join(format!("repo/f{file}-{round}"));
            fs::write(path, contents(file, 5000)).map_err(text("write"))?;
        }
        run(node, "-C repo add -A")?;
        run(node, &format!("-C repo commit -qm {round}"))?;
        let other = NODES[(round + 1) % 3];
        expect("git status", run(other, "-C repo status --short")?, String::new())?;
    }
    run("n2", "-C repo fsck --strict").map(drop)
}

/// A mount dies with files that it holds exclusively: one synced, one not.
fn mount_dies(place: &Place<'_>) -> Result<(), String> {
    let dies = at(place, "n3");
    fs::write(dies.join("synced"), contents(7, 9 << 20)).map_err(text("write"))?;
    let synced = fs::File::open(dies.join("synced")).and_then(|file| file.sync_all());
    synced.map_err(text("fsync"))?;
    fs::write(dies.join("lost"), contents(8, 9 << 20)).map_err(text("write"))?;
    place.kill_mount("n3")?;
    verify(place, "n1", "synced", 7)?;
    verify(place, "n2", "synced", 7)?;
    let length = |node: &str| fs::read(at(place, node).join("lost")).map(|bytes| bytes.len());
    expect("both read the same of the other", length("n1").ok(), length("n2").ok())?;
    fs::write(at(place, "n2").join("lost"), contents(9, 5000)).map_err(text("write again"))?;
    expect("the name is free", length("n1").ok(), Some(5000))
}

/// A mount is stopped with files that it holds exclusively, and goes on when others have them.
fn mount_stops(place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    let held = Held::new(place.session, &at(place, "n3"), 20)?;
    // Nobody looks at a process that is stopped: what reads its command line may wait for it.
    let process = place.mount_process("n3")?;
    signal("-STOP", &process)?;
    let free = held.is_free_for(&[at(place, "n1"), at(place, "n2")]);
    let seconds = free.as_ref().map_or(f64::NAN, Duration::as_secs_f64);
    let what = format!("a mount that is stopped holds up nobody: {seconds:.1} s");
    checks.record(&what, free.map(drop));
    signal("-CONT", &process)?;
    let read = fs::read(at(place, "n3").join("synced-20")).map(drop).map_err(text("read"));
    checks.record("let go on, who opens a file at once waits for it", read);
    let held = held.goes_on()?;
    checks.record("it goes on, and the file that was open gives EIO", Ok(()));
    let others = [at(place, "n1"), at(place, "n2")];
    checks.record("it has changed nothing", held.is_unchanged_on(&others));
    held.close()?;
    let again = fs::write(at(place, "n3").join("synced-20"), "again").map_err(text("write"));
    checks.record("it writes again", again);
    expect("others see it", fs::read(at(place, "n1").join("synced-20")).ok(), Some(b"again".into()))
}

fn verify(place: &Place<'_>, node: &str, name: &str, salt: u64) -> Result<(), String> {
    let found = fs::read(at(place, node).join(name)).map_err(text(name))?;
    match found == contents(salt, 9 << 20) {
        true => Ok(()),
        false => Err(format!("{name} on {node} is not what was synced")),
    }
}

/// All server processes die, one after the other, while fio works on two mounts.
/// Kills the server process of each node and starts it again.
pub(super) fn one_after_the_other(place: &Place<'_>) -> Result<(), String> {
    ["n3", "n2", "n1"].iter().try_for_each(|node| {
        pause(WORK);
        place.kill(node)?;
        pause(WORK);
        place.succeeds("restart", place.on(node, "node start"))?;
        // Only one failure at a time is promised.
        place.wait_until_up_again(&[at(place, "n1"), at(place, "n2")])
    })
}

fn servers_die(place: &Place<'_>, checks: &mut Checks) {
    let fio = |node: &'static str, block: &str| {
        let mut fio = place.session.command("fio");
        fio.args([format!("--name=verified-{node}"), format!("--bs={block}")]);
        fio.args(["--rw=randwrite", "--size=16M", "--ioengine=psync", "--fsync=16"]);
        fio.args(["--verify=crc32c", "--verify_backlog=32", "--verify_fatal=1", "--time_based"]);
        fio.args(["--runtime=24", "--randseed=7", "--fallocate=none", "--directory"]);
        fio.arg(at(place, node));
        fio
    };
    let (ended, accidents) = std::thread::scope(|scope| {
        let start = |node: &'static str, block: &'static str| {
            let mut fio = fio(node, block);
            let name = format!("fio-{node}");
            scope.spawn(move || {
                place.session.run("cluster-mounts", &name, FIO_SECONDS_MAX, &mut fio).map(drop)
            })
        };
        let fios = [("n1", start("n1", "64k")), ("n2", start("n2", "4k"))];
        let accidents = one_after_the_other(place);
        let ended = fios.map(|(node, fio)| {
            (node, fio.join().unwrap_or_else(|_| Err("it panicked".to_owned())))
        });
        (ended, accidents)
    });
    checks.record("the servers of n3, n2 and n1 are killed and started again", accidents);
    for (node, fio) in ended {
        checks.record(&format!("fio on {node} sees no error meanwhile"), fio);
    }
}
