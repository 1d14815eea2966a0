//! The probes: each works on all mounts and compares what they show.

use crate::beside;
use crate::kept_names;
use crate::locks;
use crate::mapped::Mapped;
use crate::world::World;
use crate::{MOUNTS, Outcome};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use strake_env::Rng;
use strake_env::sync::Mutex;
use strake_env::thread;

/// A probe by its name.
type Probe = (&'static str, fn(&World) -> Outcome);

/// All probes.
pub(crate) const ALL: &[Probe] = &[
    ("contents", contents),
    ("names", names),
    ("kept-names", kept_names::changed),
    ("kept-names-above", kept_names::mounted_below),
    ("attributes", attributes),
    ("appends", appends),
    ("exclusive", exclusive),
    ("one-directory", one_directory),
    ("mapped", mapped),
    ("mapped-beside-writes", mapped_beside_writes),
    ("removed-while-open", removed_while_open),
    ("beside-records", beside::records),
    ("beside-blocks", beside::blocks),
    ("beside-halves", beside::halves),
    ("beside-mapped", beside::mapped),
    ("beside-fio", beside::with_fio),
    ("locks", locks::passes_on),
    ("locks-of-ranges", locks::ranges),
    ("locks-interrupted", locks::interrupted),
    ("locks-at-close", locks::closed),
    ("locks-handed-over", locks::handed_over),
    ("locks-at-death", locks::killed),
    ("locks-in-a-circle", locks::circle),
    ("locks-of-sqlite", locks::sqlite),
];

const SEED: u64 = 3;

fn both() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

/// Runs `work` for each mount on a thread of its own.
fn on_every_mount(work: impl Fn(usize) -> Outcome + Sync) -> Outcome {
    let failures: Vec<String> = thread::scope(|scope| {
        let workers: Vec<_> = (0..MOUNTS)
            .map(|at| {
                let work = &work;
                scope.spawn(move || work(at).map_err(|error| format!("mount {at}: {error}")))
            })
            .collect();
        workers.into_iter().filter_map(|worker| worker.join().expect("no panic").err()).collect()
    });
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ").into()) }
}

/// Random reads, writes and cuts of a few files from all mounts, compared with vectors.
fn contents(world: &World) -> Outcome {
    const SIZE: usize = 3 << 20;
    let files: Vec<Mutex<(Vec<File>, Vec<u8>)>> = (0..3)
        .map(|number| {
            let name = format!("c{number}");
            File::create(world.path(0, &name))?;
            let handles: Result<Vec<File>, _> =
                (0..MOUNTS).map(|at| both().open(world.path(at, &name))).collect();
            Ok(Mutex::new((handles?, Vec::new())))
        })
        .collect::<Result<_, std::io::Error>>()?;
    on_every_mount(|mount| {
        let mut rng = Rng::new(SEED * 10 + mount as u64);
        for step in 0..250 {
            let (handles, bytes) = &mut *files[rng.index(files.len())].lock();
            let at = rng.index(SIZE);
            let most = if rng.one_in(5) { 300_000 } else { 9_000 };
            let length = 1 + rng.index(most);
            let file = &handles[mount];
            match rng.below(8) {
                0..=2 => {
                    let data = vec![rng.next_u64() as u8; length];
                    file.write_all_at(&data, at as u64)?;
                    bytes.resize(bytes.len().max(at + length), 0);
                    bytes[at..at + length].copy_from_slice(&data);
                }
                3 => {
                    file.set_len(at as u64)?;
                    bytes.resize(at, 0);
                }
                4 => file.sync_all()?,
                _ => {
                    let mut out = vec![0; length];
                    let mut count = 0;
                    while count < length {
                        match file.read_at(&mut out[count..], (at + count) as u64)? {
                            0 => break,
                            more => count += more,
                        }
                    }
                    let expected = bytes.get(at..).unwrap_or(&[]);
                    let expected = &expected[..expected.len().min(length)];
                    if out[..count] != *expected {
                        return Err(format!("step {step}: wrong bytes at {at}").into());
                    }
                }
            }
            let size = handles[rng.index(MOUNTS)].metadata()?.len();
            if size != bytes.len() as u64 {
                return Err(format!("step {step}: size {size}, not {}", bytes.len()).into());
            }
        }
        Ok(())
    })
}

/// Random changes of names, each on a mount of its own, compared with a map on another one.
fn names(world: &World) -> Outcome {
    let mut rng = Rng::new(SEED);
    let mut known: BTreeMap<String, u64> = BTreeMap::new();
    fs::create_dir(world.path(0, "names"))?;
    for step in 0..400 {
        let (one, two) = (format!("n{}", rng.below(8)), format!("n{}", rng.below(8)));
        let place = |mount: usize, name: &str| world.path(mount, &format!("names/{name}"));
        let mount = rng.index(MOUNTS);
        match rng.below(3) {
            0 => {
                let made = both().create(true).truncate(false).open(place(mount, &one))?;
                known.insert(one, made.metadata()?.ino());
            }
            1 if known.contains_key(&one) => {
                fs::rename(place(mount, &one), place(mount, &two))?;
                let ino = known.remove(&one).expect("just found");
                known.insert(two, ino);
            }
            _ => match fs::remove_file(place(mount, &one)) {
                Err(error) if error.kind() == ErrorKind::NotFound && !known.contains_key(&one) => {}
                result => {
                    result?;
                    known.remove(&one).ok_or("a name that was not there was removed")?;
                }
            },
        }
        let other = rng.index(MOUNTS);
        let mut listed = BTreeMap::new();
        for entry in fs::read_dir(world.path(other, "names"))? {
            let entry = entry?;
            listed
                .insert(entry.file_name().to_string_lossy().into_owned(), entry.metadata()?.ino());
        }
        if listed != known {
            return Err(
                format!("step {step}: mount {other} lists {listed:?}, not {known:?}").into()
            );
        }
    }
    Ok(())
}

/// Permissions, times and links that one mount changes.
fn attributes(world: &World) -> Outcome {
    File::create(world.path(0, "a"))?;
    for round in 0..60_u32 {
        let (from, to) = (round as usize % MOUNTS, (round as usize + 1) % MOUNTS);
        let mode = 0o600 | (round & 0o77);
        fs::set_permissions(world.path(from, "a"), fs::Permissions::from_mode(mode))?;
        fs::hard_link(world.path(from, "a"), world.path(from, &format!("a{round}")))?;
        let seen = fs::metadata(world.path(to, "a"))?;
        if seen.mode() & 0o7777 != mode || seen.nlink() != u64::from(round) + 2 {
            return Err(format!("mount {to} shows mode {:o}", seen.mode()).into());
        }
        let ctime = fs::metadata(world.path(from, "a"))?;
        if (seen.ctime(), seen.ctime_nsec()) != (ctime.ctime(), ctime.ctime_nsec()) {
            return Err("change times differ".into());
        }
    }
    Ok(())
}

/// Records appended from all mounts stay whole, and none is lost.
fn appends(world: &World) -> Outcome {
    const EACH: usize = 100;
    File::create(world.path(0, "log"))?;
    on_every_mount(|mount| {
        let mut file = OpenOptions::new().append(true).open(world.path(mount, "log"))?;
        for number in 0..EACH {
            file.write_all(format!("{mount}-{number:04}\n").as_bytes())?;
        }
        Ok(())
    })?;
    for mount in 0..MOUNTS {
        let text = fs::read_to_string(world.path(mount, "log"))?;
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines.dedup();
        if lines.len() != MOUNTS * EACH || text.len() != MOUNTS * EACH * 7 {
            return Err(format!("mount {mount} shows {} records", lines.len()).into());
        }
    }
    Ok(())
}

/// Of many that make one name with `O_EXCL`, one succeeds.
fn exclusive(world: &World) -> Outcome {
    for round in 0..40 {
        let made = Mutex::new(0);
        on_every_mount(|mount| {
            match File::create_new(world.path(mount, &format!("x{round}"))) {
                Ok(_) => *made.lock() += 1,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.into()),
            }
            Ok(())
        })?;
        if made.into_inner() != 1 {
            return Err(format!("round {round}: not exactly one made the file").into());
        }
    }
    Ok(())
}

/// All mounts make, rename and remove in one directory without a pause.
fn one_directory(world: &World) -> Outcome {
    const EACH: usize = 100;
    fs::create_dir(world.path(0, "d"))?;
    on_every_mount(|mount| {
        for number in 0..EACH {
            let (draft, done) =
                (format!("d/draft-{mount}-{number}"), format!("d/{mount}-{number}"));
            fs::write(world.path(mount, &draft), done.as_bytes())?;
            fs::rename(world.path(mount, &draft), world.path(mount, &done))?;
            if number % 4 == 0 {
                fs::remove_file(world.path(mount, &done))?;
            }
        }
        Ok(())
    })?;
    for mount in 0..MOUNTS {
        let count = fs::read_dir(world.path(mount, "d"))?.count();
        if count != MOUNTS * EACH * 3 / 4 {
            return Err(format!("mount {mount} lists {count} names").into());
        }
        let other = format!("d/{}-1", (mount + 1) % MOUNTS);
        if fs::read_to_string(world.path(mount, &other))? != other {
            return Err(format!("mount {mount} shows other contents in {other}").into());
        }
    }
    Ok(())
}

/// Two mounts store to one page, by turns and at the same time.
fn mapped(world: &World) -> Outcome {
    fs::write(world.path(0, "m"), [0; 8192])?;
    let mut mapped = [Mapped::of(world, 0, "m", 8192)?, Mapped::of(world, 1, "m", 8192)?];
    for turn in 0..200_u8 {
        let mapped = &mut mapped[usize::from(turn) % 2];
        let found = mapped.load(5)?;
        if found != turn {
            return Err(format!("turn {turn}: the page has {found}").into());
        }
        mapped.store(5, turn + 1)?;
    }
    thread::scope(|scope| {
        let storing = mapped.iter_mut().enumerate().map(|(at, mapped)| {
            scope.spawn(move || {
                let stored = (1..=200).try_for_each(|value| mapped.store(100 + at, value));
                stored.and_then(|()| mapped.sync()).map_err(|error| error.to_string())
            })
        });
        let storing: Vec<_> = storing.collect();
        storing.into_iter().try_for_each(|one| one.join().expect("no panic"))
    })?;
    let bytes = fs::read(world.path(2, "m"))?;
    if bytes[100..102] != [200, 200] || bytes[5] != 200 {
        return Err(format!("a store is lost: {:?}", &bytes[100..102]).into());
    }
    Ok(())
}

/// One mount stores to mapped pages while another writes other bytes of the same pages.
fn mapped_beside_writes(world: &World) -> Outcome {
    const BYTES: usize = 1 << 20;
    fs::write(world.path(0, "w"), vec![0; BYTES])?;
    let mut mapped = Mapped::of(world, 0, "w", BYTES)?;
    thread::scope(|scope| {
        let mapped = &mut mapped;
        let storing = scope.spawn(move || {
            let mut places = (0..BYTES).step_by(512);
            places.try_for_each(|at| mapped.store(at, 1)).map_err(|error| error.to_string())
        });
        let file = both().open(world.path(1, "w"))?;
        for at in (256..BYTES).step_by(4096) {
            file.write_all_at(&[2], at as u64)?;
        }
        storing.join().expect("no panic")?;
        Outcome::Ok(())
    })?;
    mapped.sync()?;
    let bytes = fs::read(world.path(2, "w"))?;
    let stored = (0..BYTES).step_by(512).all(|at| bytes[at] == 1);
    let mut written = (256..BYTES).step_by(4096);
    for at in (256..BYTES).step_by(4096) {
        if mapped.load(at)? != 2 {
            return Err(format!("the mapping does not show what was written at {at}").into());
        }
    }
    let written = written.all(|at| bytes[at] == 2);
    match stored && written {
        true => Ok(()),
        false => Err(format!("stored {stored}, written {written}").into()),
    }
}

/// A file that one mount removes stays for those that have it open.
fn removed_while_open(world: &World) -> Outcome {
    let mut first = both().create(true).truncate(true).open(world.path(0, "r"))?;
    first.write_all(&[7; 100_000])?;
    let mut second = File::open(world.path(1, "r"))?;
    fs::remove_file(world.path(2, "r"))?;
    if world.path(0, "r").exists() {
        return Err("the name is still there".into());
    }
    first.write_all(&[8; 10])?;
    drop(first);
    let mut bytes = Vec::new();
    second.seek(SeekFrom::Start(99_999))?;
    second.read_to_end(&mut bytes)?;
    if bytes == [7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8] && second.metadata()?.nlink() == 0 {
        Ok(())
    } else {
        Err(format!("it shows {bytes:?}").into())
    }
}
