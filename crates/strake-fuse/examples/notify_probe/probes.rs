//! The probes: what is cached, what changes elsewhere, what is seen before and after.

use crate::mapping::Mapping;
use crate::world::{HeldBack, ROOT};
use crate::{HELD_UP, LIMIT, Outcome, Probe, busy};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use strake_client::invalidate::Outdated;
use strake_proto::Ino;

/// A probe by its name.
type Named = (&'static str, fn(&Probe) -> Outcome);

pub(crate) const ALL: &[Named] = &[
    ("names", names),
    ("all-names", all_names),
    ("gone", gone),
    ("attributes", attributes),
    ("late-attributes", late_attributes),
    ("pages", pages),
    ("mapped", mapped),
    ("listing", listing),
    ("renamed-directory", renamed_directory),
    ("mount-below", mount_below),
    ("create-waits", create_waits),
    ("lookup-waits", lookup_waits),
    ("read-waits", read_waits),
    ("write-back-waits", write_back_waits),
    ("storm", busy::storm),
    ("storm-mapped", busy::storm_mapped),
    ("unmount-busy", busy::unmount_busy),
    ("unmount-held", busy::unmount_held),
    ("number-reused", busy::number_reused),
];

const PAGE: usize = 4096;

pub(crate) fn name(parent: Ino, name: &str) -> Outdated {
    Outdated::Name { parent, name: name.as_bytes().to_vec() }
}

pub(crate) fn contents(ino: Ino) -> Outdated {
    Outdated::Contents { ino, range: 0..u64::MAX }
}

/// Fails with a sentence unless `condition`.
pub(crate) fn hold(condition: bool, what: &str) -> Outcome {
    if condition { Ok(()) } else { Err(format!("not so: {what}").into()) }
}

/// The inode that a path leads to, if any.
fn seen(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|it| it.ino())
}

/// Three names that change elsewhere: one leads to another file, one goes, one comes.
fn change_names(probe: &Probe) -> Outcome {
    let world = &probe.world;
    let old = world.put(ROOT, "other", b"old");
    let gone = world.put(ROOT, "goes", b"");
    hold(seen(&probe.at("other")) == Some(old.0), "a name is found")?;
    hold(seen(&probe.at("goes")) == Some(gone.0), "a second name is found")?;
    hold(seen(&probe.at("comes")).is_none(), "a third name is not there")?;
    world.remove(ROOT, "other");
    world.put(ROOT, "other", b"new");
    world.remove(ROOT, "goes");
    world.put(ROOT, "comes", b"");
    hold(seen(&probe.at("other")) == Some(old.0), "before: the old file is seen")?;
    hold(seen(&probe.at("goes")) == Some(gone.0), "before: the removed name is seen")?;
    hold(seen(&probe.at("comes")).is_none(), "before: the new name is not seen")
}

fn names_are_new(probe: &Probe) -> Outcome {
    hold(fs::read(probe.at("other"))? == b"new", "after: the new file is seen")?;
    hold(seen(&probe.at("goes")).is_none(), "after: the removed name is not seen")?;
    hold(seen(&probe.at("comes")).is_some(), "after: the new name is seen")
}

fn names(probe: &Probe) -> Outcome {
    change_names(probe)?;
    for changed in ["other", "goes", "comes", "never-cached"] {
        probe.invalidate(name(ROOT, changed))?;
    }
    probe.invalidate(name(Ino(12_345), "in-an-unknown-directory"))?;
    names_are_new(probe)
}

fn all_names(probe: &Probe) -> Outcome {
    if !probe.world.adapter().can_drop_all_names() {
        println!("fact: this kernel has no epochs; all names cannot be dropped");
        return Ok(());
    }
    change_names(probe)?;
    probe.invalidate(Outdated::AllNames)?;
    names_are_new(probe)
}

/// Removed elsewhere: an open file, and a directory that is some program's own.
fn gone(probe: &Probe) -> Outcome {
    let world = &probe.world;
    let file = world.put(ROOT, "file", b"kept");
    let directory = world.make_directory(ROOT, "directory");
    let open = File::open(probe.at("file"))?;
    let inside = File::open(probe.at("directory"))?;
    world.remove(ROOT, "file");
    world.remove(ROOT, "directory");
    hold(seen(&probe.at("file")) == Some(file.0), "before: the file is seen")?;
    hold(seen(&probe.at("directory")) == Some(directory.0), "before: the directory is seen")?;
    for (removed, child) in [("file", file), ("directory", directory)] {
        let (parent, name) = (ROOT, removed.as_bytes().to_vec());
        probe.invalidate(Outdated::Gone { parent, name, child })?;
        hold(seen(&probe.at(removed)).is_none(), "after: it is not seen")?;
    }
    hold(open.metadata()?.nlink() == 0, "after: the open file has no names")?;
    let mut bytes = [0; 4];
    open.read_exact_at(&mut bytes, 0)?;
    hold(&bytes == b"kept", "after: the open file is read all the same")?;
    let below = format!("/proc/self/fd/{}/new", std::os::fd::AsRawFd::as_raw_fd(&inside));
    let error = fs::write(below, "").expect_err("a removed directory takes no names");
    hold(error.kind() == std::io::ErrorKind::NotFound, "after: the directory takes no names")?;
    // The name leads to another file by now, which is left alone.
    let newer = world.put(ROOT, "again", b"");
    hold(seen(&probe.at("again")) == Some(newer.0), "a name used again is found")?;
    let again = Outdated::Gone { parent: ROOT, name: b"again".to_vec(), child: file };
    probe.invalidate(again)?;
    hold(seen(&probe.at("again")) == Some(newer.0), "another file of that name stays")?;
    // With names in use below it the name goes all the same.
    let full = world.make_directory(ROOT, "full");
    world.put(full, "below", b"in use");
    let below = File::open(probe.at("full/below"))?;
    world.remove(ROOT, "full");
    probe.invalidate(Outdated::Gone { parent: ROOT, name: b"full".to_vec(), child: full })?;
    hold(seen(&probe.at("full")).is_none(), "after: a directory with names in use is not seen")?;
    hold(below.metadata()?.size() == 6, "after: what is open below it is there")
}

fn attributes(probe: &Probe) -> Outcome {
    let ino = probe.world.put(ROOT, "file", &[1; 100]);
    let path = probe.at("file");
    let look = || fs::metadata(&path).map(|it| (it.mode() & 0o777, it.size()));
    hold(look()? == (0o644, 100), "attributes are seen")?;
    hold(fs::read(&path)? == [1; 100], "contents are seen")?;
    // After a read the kernel asks for the access time.
    hold(look()? == (0o644, 100), "attributes are seen again")?;
    probe.world.change(ino, &[2; 200]);
    probe.world.change_mode(ino, 0o600);
    hold(look()? == (0o644, 100), "before: the old attributes are seen")?;
    probe.invalidate(Outdated::Attributes(ino))?;
    hold(look()? == (0o600, 200), "after: the new attributes are seen")?;
    let bytes = fs::read(&path)?;
    let are_kept = bytes[..100] == [1; 100];
    println!("fact: attributes alone: pages are kept: {are_kept}, although the size is new");
    let open = File::open(&path)?;
    probe.world.change_mode(ino, 0o640);
    probe.invalidate(Outdated::Attributes(ino))?;
    hold(open.metadata()?.mode() & 0o777 == 0o640, "after: fstat sees them too")
}

fn pages(probe: &Probe) -> Outcome {
    let ino = probe.world.put(ROOT, "file", &[1; 4 * PAGE]);
    let path = probe.at("file");
    let open = File::open(&path)?;
    let read = |file: &File| -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; 4 * PAGE];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes.chunks(PAGE).map(|page| page[0]).collect())
    };
    hold(read(&open)? == [1; 4], "contents are seen")?;
    probe.world.change(ino, &[2; 4 * PAGE]);
    hold(read(&open)? == [1; 4], "before: the old pages are read")?;
    hold(fs::read(&path)? == [1; 4 * PAGE], "before: by a new open as well")?;
    let (start, end) = (PAGE as u64, 2 * PAGE as u64);
    probe.invalidate(Outdated::Contents { ino, range: start..end })?;
    hold(read(&open)? == [1, 2, 1, 1], "after: pages of the range are new, and no others")?;
    probe.invalidate(contents(ino))?;
    hold(read(&open)? == [2; 4], "after: all pages are new")?;
    probe.world.change(ino, &[3; 6 * PAGE]);
    probe.invalidate(contents(ino))?;
    hold(fs::read(&path)? == [3; 6 * PAGE], "after: a longer file is read whole")?;
    probe.world.change(ino, b"short");
    probe.invalidate(contents(ino))?;
    hold(fs::read(&path)? == b"short", "after: a shorter file is read whole")
}

/// A mapping that is never made anew.
fn mapped(probe: &Probe) -> Outcome {
    let ino = probe.world.put(ROOT, "file", &[1; 2 * PAGE]);
    let file = OpenOptions::new().read(true).write(true).open(probe.at("file"))?;
    let map = Mapping::of(&file, 2 * PAGE)?;
    hold(map.load(0) == 1 && map.load(PAGE) == 1, "contents are seen")?;
    probe.world.change(ino, &[2; 2 * PAGE]);
    hold(map.load(0) == 1, "before: the old bytes are seen")?;
    probe.invalidate(contents(ino))?;
    hold(map.load(0) == 2 && map.load(PAGE) == 2, "after: the new bytes are seen")?;
    // Stored to and not written back: the store goes out before the page is dropped.
    map.store(7, 9);
    hold(probe.world.bytes(ino)[7] == 2, "a store sends nothing")?;
    probe.invalidate(contents(ino))?;
    hold(probe.world.bytes(ino)[7] == 9, "after: the store was written back")?;
    hold(map.load(7) == 9, "after: and is seen")?;
    probe.world.change(ino, &[3; 2 * PAGE]);
    hold(map.load(7) == 9, "before: the old bytes are seen once more")?;
    probe.invalidate(contents(ino))?;
    hold(map.load(7) == 3, "after: the new bytes are seen once more")?;
    // Changed at both sides: the page goes out whole, and takes what was changed elsewhere away.
    map.store(7, 9);
    probe.world.change(ino, &[4; 2 * PAGE]);
    probe.invalidate(contents(ino))?;
    let (stored, beside) = (map.load(7), map.load(8));
    println!(
        "fact: a page dirty here and changed elsewhere is {stored} at the store, {beside} beside it"
    );
    hold(stored == 9, "after: the store is there")
}

fn list(path: &Path) -> std::io::Result<Vec<String>> {
    let entries = fs::read_dir(path)?.collect::<std::io::Result<Vec<_>>>()?;
    let mut names: Vec<String> =
        entries.iter().map(|it| it.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    Ok(names)
}

fn listing(probe: &Probe) -> Outcome {
    let world = &probe.world;
    let directory = world.make_directory(ROOT, "directory");
    let path = probe.at("directory");
    // Adds a name elsewhere; whether the listing has it after `what` was told.
    let shows = |added: &str, what: Option<Outdated>| -> Result<bool, Box<dyn std::error::Error>> {
        // The kernel asks for the access time after a listing, and sees the new change time then.
        for _ in 0..2 {
            hold(list(&path)? == world.names(directory), "the directory is listed")?;
        }
        world.put(directory, added, b"");
        if let Some(what) = what {
            probe.invalidate(what)?;
        }
        let shows = list(&path)?.iter().any(|name| name == added);
        probe.invalidate(contents(directory))?;
        hold(list(&path)? == world.names(directory), "after: the new listing is seen")?;
        Ok(shows)
    };
    hold(!shows("a", None)?, "before: the old listing is seen")?;
    let is_new = shows("b", Some(name(directory, "b")))?;
    println!("fact: a name that was not cached: the listing is dropped with it: {is_new}");
    hold(seen(&probe.at("directory/a")).is_some(), "a name is found")?;
    let is_new = shows("c", Some(name(directory, "a")))?;
    println!("fact: a name that was cached: the listing is dropped with it: {is_new}");
    if world.adapter().can_drop_all_names() {
        let is_new = shows("d", Some(Outdated::AllNames))?;
        println!("fact: all names: the listing is dropped with them: {is_new}");
    }
    let is_new = shows("e", Some(Outdated::Attributes(directory)))?;
    println!("fact: attributes of the directory: the listing is dropped: {is_new}");
    Ok(())
}

/// A program works in a directory that is renamed elsewhere.
fn renamed_directory(probe: &Probe) -> Outcome {
    let world = &probe.world;
    let old = world.make_directory(ROOT, "old");
    let inner = world.make_directory(old, "inner");
    world.put(inner, "file", b"contents");
    let home = std::env::current_dir()?;
    std::env::set_current_dir(probe.at("old/inner"))?;
    hold(fs::read("file")? == b"contents", "the program sees its file")?;
    hold(seen(&probe.at("new")).is_none(), "the new name is not there")?;
    world.rename_elsewhere((ROOT, "old"), (ROOT, "new"));
    hold(seen(&probe.at("old")) == Some(old.0), "before: the old name is seen")?;
    for changed in ["old", "new"] {
        probe.invalidate(name(ROOT, changed))?;
    }
    let lost = std::env::current_dir().is_err();
    println!("fact: a name above the working directory: it has a path before a look: {}", !lost);
    hold(seen(&probe.at("old")).is_none(), "after: the old name is not seen")?;
    hold(seen(&probe.at("new/inner")) == Some(inner.0), "after: the new one is")?;
    hold(fs::read("file")? == b"contents", "after: the program sees its file")?;
    fs::write("made", "here")?;
    hold(fs::read(probe.at("new/inner/made"))? == b"here", "after: and may make more")?;
    let path = std::env::current_dir();
    println!("fact: after a look its path is {:?}", path.ok().map(|it| it.ends_with("new/inner")));
    world.rename_elsewhere((ROOT, "new"), (ROOT, "newest"));
    if world.adapter().can_drop_all_names() {
        probe.invalidate(Outdated::AllNames)?;
        let lost = std::env::current_dir().is_err();
        println!("fact: all names: the working directory has a path before a look: {}", !lost);
        hold(seen(&probe.at("new")).is_none(), "after all names: the old name is not seen")?;
        hold(seen(&probe.at("newest/inner")) == Some(inner.0), "after all names: the new one is")?;
        hold(fs::read("file")? == b"contents", "after all names: the program sees its file")?;
        let path = std::env::current_dir();
        let ends = path.ok().map(|it| it.ends_with("newest/inner"));
        println!("fact: all names: after a look its path is {ends:?}");
    }
    std::env::set_current_dir(home)?;
    Ok(())
}

/// Something is mounted below. The order to drop all names is refused, because the kernel would
/// detach it. Whether it stays when one name is dropped is the kernel's business, and to be known.
fn mount_below(probe: &Probe) -> Outcome {
    let world = &probe.world;
    world.make_directory(ROOT, "below");
    let path = probe.at("below");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &path, "tmpfs", flags, c"size=1m")?;
    fs::write(path.join("inside"), "")?;
    let refused = probe.invalidate(Outdated::AllNames).is_err();
    let stays = || fs::metadata(path.join("inside")).is_ok();
    hold(refused && stays(), "all names are not dropped, and what is mounted below stays")?;
    probe.invalidate(name(ROOT, "below"))?;
    println!("fact: one name is dropped: what is mounted below stays: {}", stays());
    if stays() {
        rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH)?;
    }
    if world.adapter().can_drop_all_names() {
        probe.invalidate(Outdated::AllNames)?;
    }
    hold(fs::metadata(&path)?.is_dir(), "the directory is there")
}

/// R23: a CREATE that waits in the client holds the directory's lock in the kernel.
fn create_waits(probe: &Probe) -> Outcome {
    waits_in_directory(probe, HeldBack::Create, |path| fs::write(path.join("new"), "made"))
}

fn lookup_waits(probe: &Probe) -> Outcome {
    waits_in_directory(probe, HeldBack::Lookup, |path| {
        // Not there, which is no fault.
        let _ = fs::metadata(path.join("unknown"));
        Ok(())
    })
}

fn waits_in_directory(
    probe: &Probe,
    held: HeldBack,
    request: fn(&Path) -> std::io::Result<()>,
) -> Outcome {
    let world = &probe.world;
    let [here, other] = ["here", "other"].map(|name| world.make_directory(ROOT, name));
    let [ino, _] = [here, other].map(|directory| world.put(directory, "known", b"old"));
    let [here_path, other_path] = ["here", "other"].map(|name| probe.at(name));
    for path in [&here_path, &other_path] {
        hold(fs::read(path.join("known"))? == b"old", "a name and its bytes are seen")?;
    }
    world.hold(held);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| request(&here_path));
        let checked = (|| -> Outcome {
            hold(world.meets(held, 1, LIMIT), "the request arrives")?;
            let stuck = probe.order(name(here, "known"))?;
            hold(probe.is_held_up(&stuck), "a name waits for a request in its directory")?;
            probe.invalidate(name(other, "known"))?;
            probe.invalidate(Outdated::Attributes(ino))?;
            probe.invalidate(contents(ino))?;
            probe.invalidate(contents(here))?;
            if world.adapter().can_drop_all_names() {
                world.remove(other, "known");
                world.put(other, "known", b"new");
                probe.invalidate(Outdated::AllNames)?;
                world.let_go(HeldBack::Lookup);
                let new = fs::read(other_path.join("known"))? == b"new";
                hold(new, "all names are dropped although a request waits")?;
            }
            world.let_go(held);
            probe.confirm(&stuck)?;
            Ok(())
        })();
        world.let_go(held);
        waits.join().map_err(|_| "the program panicked")??;
        checked
    })
}

fn read_waits(probe: &Probe) -> Outcome {
    let world = &probe.world;
    let [ino, other] = ["file", "other"].map(|name| world.put(ROOT, name, &[1; PAGE]));
    let path = probe.at("file");
    world.hold(HeldBack::Read(ino));
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| fs::read(&path));
        let checked = (|| -> Outcome {
            hold(world.meets(HeldBack::Read(ino), 1, LIMIT), "the read arrives")?;
            let stuck = probe.order(contents(ino))?;
            hold(probe.is_held_up(&stuck), "pages wait for a read of them")?;
            let range = 1 << 30..u64::MAX;
            probe.invalidate(Outdated::Contents { ino, range })?;
            probe.invalidate(Outdated::Attributes(ino))?;
            probe.invalidate(contents(other))?;
            probe.invalidate(name(ROOT, "file"))?;
            world.let_go(HeldBack::Read(ino));
            probe.confirm(&stuck)?;
            Ok(())
        })();
        world.let_go(HeldBack::Read(ino));
        reads.join().map_err(|_| "the program panicked")??;
        checked
    })
}

/// Attributes that a program has asked for before another one makes a name in the directory, and
/// takes in afterwards.
fn late_attributes(probe: &Probe) -> Outcome {
    let world = &probe.world;
    let directory = world.make_directory(ROOT, "directory");
    let path = probe.at("directory");
    let modified = || fs::metadata(&path).map(|it| it.mtime());
    let before = modified()?;
    world.hold(HeldBack::Attributes(directory));
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            let (at, flags) = (rustix::fs::CWD, rustix::fs::AtFlags::STATX_FORCE_SYNC);
            rustix::fs::statx(at, &path, flags, rustix::fs::StatxFlags::BASIC_STATS)
        });
        let made = (|| -> Outcome {
            hold(world.meets(HeldBack::Attributes(directory), 1, LIMIT), "the question arrives")?;
            Ok(fs::create_dir(path.join("new"))?)
        })();
        world.let_go(HeldBack::Attributes(directory));
        let asked = asks.join().map_err(|_| "the program panicked")??;
        made?;
        hold(asked.stx_mtime.tv_sec == before, "the question was answered with the old time")
    })?;
    let time = world.modified(directory);
    hold(time != before, "the directory has changed")?;
    hold(modified()? == time, "after: the new time is seen")
}

/// A dirty page whose write-back waits in the client.
fn write_back_waits(probe: &Probe) -> Outcome {
    let world = &probe.world;
    let [ino, other] = ["file", "other"].map(|name| world.put(ROOT, name, &[1; PAGE]));
    let file = OpenOptions::new().read(true).write(true).open(probe.at("file"))?;
    let map = Mapping::of(&file, PAGE)?;
    map.store(0, 9);
    world.hold(HeldBack::WriteBack(ino));
    std::thread::scope(|scope| {
        let checked = (|| -> Outcome {
            let stuck = probe.order(contents(ino))?;
            hold(world.meets(HeldBack::WriteBack(ino), 1, LIMIT), "the page is written back")?;
            hold(probe.is_held_up(&stuck), "pages wait for their write-back")?;
            probe.invalidate(contents(other))?;
            probe.invalidate(Outdated::Attributes(ino))?;
            let (told, stored) = std::sync::mpsc::channel();
            let map = &map;
            scope.spawn(move || {
                map.store(1, 8);
                let _ = told.send(());
            });
            let waits = stored.recv_timeout(HELD_UP).is_err();
            println!("fact: a store to a page that is being dropped waits for that: {waits}");
            world.let_go(HeldBack::WriteBack(ino));
            probe.confirm(&stuck)?;
            stored.recv_timeout(LIMIT)?;
            Ok(())
        })();
        world.let_go(HeldBack::WriteBack(ino));
        checked
    })?;
    map.sync()?;
    hold(world.bytes(ino)[..2] == [9, 8], "no store is lost")
}
