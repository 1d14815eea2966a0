//! What programs do on a mount. One writes and reads units of a few files, which always exist. The
//! other makes, finds, removes and renames files in one directory. Both make things durable now and
//! then. Each step is recorded.

use super::mount::Mount;
use super::place::BLOCK_SIZE;
use super::record::{Action, Life, Name, Recorder, Tag, Unit, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use strake_client::StrakeVfs;
use strake_client::vfs::{Handle, OpenFlags, Vfs};
use strake_env::{Clock, RealClock, Rng};
use strake_proto::limits::UNIT_BYTES;
use strake_proto::meta::RenameMode;
use strake_proto::{Caller, Error, ErrorKind, Ino, Result};

const ROOT: &Caller = &Caller::ROOT;
const RW: OpenFlags = OpenFlags { no_atime: true, ..OpenFlags::READ_WRITE };
/// The files whose units are written.
pub(crate) const FILES: usize = 3;
/// The units of a file that are used: neighbours, and some of another block.
pub(crate) const UNITS: [u64; 5] = [0, 1, 40, BLOCK_SIZE as u64 / UNIT_BYTES as u64, 100];
/// The names of the directory.
const NAMES: u64 = 4;
/// Permission bits that tell who made a file.
const TAGS: u64 = 0o7777;
/// The longest pause of a program between two steps, in milliseconds.
const PAUSE_MS_MAX: u64 = 120;

/// What all programs share.
pub(crate) struct Universe {
    pub(crate) recorder: Arc<Recorder>,
    /// The files and the directory.
    pub(crate) files: Vec<Ino>,
    pub(crate) directory: Ino,
    values: AtomicU64,
}

/// One program.
pub(crate) struct Program {
    universe: Arc<Universe>,
    life: Life,
    mount: Arc<Mount>,
    rng: Rng,
    /// Handles of the files.
    handles: Vec<Handle>,
}

fn name(name: Name) -> [u8; 1] {
    [b'a' + name]
}

impl Universe {
    /// Makes the files and the directory on the first mount.
    pub(crate) fn make(recorder: &Arc<Recorder>, vfs: &StrakeVfs) -> Result<Universe> {
        let mut files = Vec::new();
        for file in 0..FILES {
            let name = format!("file{file}");
            let made = vfs.create(ROOT, Ino::ROOT, name.as_bytes(), 0o600, RW, true)?;
            let (entry, opened) = made;
            // So that its size never changes.
            let last = UNITS.iter().max().expect("there are some") * UNIT_BYTES as u64;
            vfs.write(opened.handle, last, &[0; UNIT_BYTES])?;
            vfs.fsync(opened.handle)?;
            vfs.release(opened.handle);
            files.push(entry.attr.ino);
        }
        let directory = vfs.mkdir(ROOT, Ino::ROOT, b"names", 0o700)?.attr.ino;
        vfs.sync()?;
        let (recorder, values) = (Arc::clone(recorder), AtomicU64::new(0));
        Ok(Universe { recorder, files, directory, values })
    }

    fn value(&self) -> Value {
        self.values.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl Program {
    /// Opens the files.
    pub(crate) fn new(
        universe: &Arc<Universe>,
        life: Life,
        mount: &Arc<Mount>,
        rng: Rng,
    ) -> Result<Program> {
        let (universe, mount) = (Arc::clone(universe), Arc::clone(mount));
        let open = |ino: &Ino| mount.vfs.open(ROOT, *ino, RW).map(|it| it.handle);
        let handles = universe.files.iter().map(open).collect::<Result<_>>()?;
        Ok(Program { universe, life, mount, rng, handles })
    }

    /// Works on files until `is_over`, or until the mount is dead. At the end it asks for losses of
    /// which it was not told.
    pub(crate) fn work_on_files(&mut self, is_over: &dyn Fn() -> bool) {
        while !is_over() {
            let (file, unit) = (self.rng.index(FILES), self.rng.index(UNITS.len()));
            let lives = match self.rng.below(12) {
                0..=4 => self.write((file, unit)),
                5..=9 => self.read((file, unit)),
                10 => self.sync(Action::SyncFile(file)),
                _ => self.sync(Action::SyncAll),
            };
            if !lives {
                return;
            }
            self.pause();
        }
        (0..FILES).all(|file| self.sync(Action::SyncFile(file)));
    }

    /// Works on names until `is_over`, or until the mount is dead.
    pub(crate) fn work_on_names(&mut self, is_over: &dyn Fn() -> bool) {
        while !is_over() {
            let (one, other) = (self.rng.below(NAMES) as Name, self.rng.below(NAMES) as Name);
            let lives = match self.rng.below(12) {
                0..=3 => self.create(one),
                4..=6 => self.look(one),
                7..=8 => self.unlink(one),
                9..=10 if one != other => self.rename(one, other),
                _ => self.sync(Action::SyncAll),
            };
            if !lives {
                return;
            }
            self.pause();
        }
    }

    /// Reads all units and looks at all names.
    ///
    /// # Errors
    /// If anything cannot be read.
    pub(crate) fn look_at_all(&mut self) -> Result<()> {
        for file in 0..FILES {
            for unit in 0..UNITS.len() {
                if !self.read((file, unit)) {
                    return Err(Error::new(ErrorKind::Io, format!("file {file}, unit {unit}")));
                }
            }
        }
        match (0..NAMES).all(|name| self.look(name as Name)) {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Io, "a name")),
        }
    }

    fn pause(&mut self) {
        RealClock.sleep(Duration::from_millis(self.rng.below(PAUSE_MS_MAX)));
    }

    /// Records a step. Returns false if the mount is dead.
    fn step(&mut self, wanted: Action, work: impl FnOnce(&Program) -> Result<Action>) -> bool {
        let recorder = Arc::clone(&self.universe.recorder);
        let number = recorder.begin(self.life, wanted);
        match work(self) {
            Ok(done) => recorder.end(number, done),
            Err(error) => {
                recorder.fail(number, error.kind());
                return !self.mount.tokens().is_dead();
            }
        }
        true
    }

    fn write(&mut self, unit: Unit) -> bool {
        let value = self.universe.value();
        let action = Action::Write(unit, value);
        self.step(action, |program| {
            let bytes = value.to_le_bytes().repeat(UNIT_BYTES / 8);
            let count = program.mount.vfs.write(program.handles[unit.0], offset(unit), &bytes)?;
            if count == UNIT_BYTES { Ok(action) } else { Err(ErrorKind::NoSpace.into()) }
        })
    }

    fn read(&mut self, unit: Unit) -> bool {
        self.step(Action::Read(unit, 0), |program| {
            let mut bytes = [0; UNIT_BYTES];
            let count =
                program.mount.vfs.read(program.handles[unit.0], offset(unit), &mut bytes)?;
            assert_eq!(count, UNIT_BYTES, "{unit:?} is within the file");
            let (value, _) = bytes.split_first_chunk().expect("a unit is long enough");
            let is_whole = bytes.chunks(8).all(|part| part == value);
            assert!(is_whole, "{unit:?} is a mixture of writes, {:?}", program.life);
            Ok(Action::Read(unit, Value::from_le_bytes(*value)))
        })
    }

    fn create(&mut self, of: Name) -> bool {
        let tag = (self.universe.value() % TAGS) as Tag;
        // A kernel asks for the name first. A mount that knows that it is absent makes the file
        // without waiting for the metadata.
        let looks = self.rng.below(4) > 0;
        self.step(Action::Create(of, tag, true), |program| {
            let directory = program.universe.directory;
            if looks && let Ok(entry) = program.mount.vfs.lookup(ROOT, directory, &name(of)) {
                program.mount.vfs.forget(entry.attr.ino, 1);
            }
            match program.mount.vfs.create(ROOT, directory, &name(of), tag, RW, true) {
                Ok((entry, opened)) => {
                    program.mount.vfs.release(opened.handle);
                    program.mount.vfs.forget(entry.attr.ino, 1);
                    Ok(Action::Create(of, tag, true))
                }
                Err(error) if error.kind() == ErrorKind::Exists => {
                    Ok(Action::Create(of, tag, false))
                }
                Err(error) => Err(error),
            }
        })
    }

    fn look(&mut self, of: Name) -> bool {
        self.step(Action::Look(of, None), |program| {
            match program.mount.vfs.lookup(ROOT, program.universe.directory, &name(of)) {
                Ok(entry) => {
                    program.mount.vfs.forget(entry.attr.ino, 1);
                    Ok(Action::Look(of, Some(entry.attr.permissions)))
                }
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(Action::Look(of, None)),
                Err(error) => Err(error),
            }
        })
    }

    fn unlink(&mut self, of: Name) -> bool {
        self.step(Action::Unlink(of, true), |program| {
            match program.mount.vfs.unlink(ROOT, program.universe.directory, &name(of)) {
                Ok(()) => Ok(Action::Unlink(of, true)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(Action::Unlink(of, false)),
                Err(error) => Err(error),
            }
        })
    }

    fn rename(&mut self, from: Name, to: Name) -> bool {
        self.step(Action::Rename(from, to, true), |program| {
            let directory = program.universe.directory;
            let (source, target) = (name(from), name(to));
            let (source, target) = ((directory, &source[..]), (directory, &target[..]));
            match program.mount.vfs.rename(ROOT, source, target, RenameMode::Replace) {
                Ok(_) => Ok(Action::Rename(from, to, true)),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    Ok(Action::Rename(from, to, false))
                }
                Err(error) => Err(error),
            }
        })
    }

    fn sync(&mut self, action: Action) -> bool {
        self.step(action, |program| {
            match action {
                Action::SyncFile(file) => program.mount.vfs.fsync(program.handles[file])?,
                _ => drop(program.mount.vfs.sync()?),
            }
            Ok(action)
        })
    }
}

fn offset((_, unit): Unit) -> u64 {
    UNITS[unit] * UNIT_BYTES as u64
}
