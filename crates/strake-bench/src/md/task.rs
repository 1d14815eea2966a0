//! One task of a metadata phase: one name after the other, each timed.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::phase::{Phase, Step};
use crate::content::Content;
use crate::error::{BenchError, Result};
use crate::pattern::Pattern;
use crate::team::{Meter, Task};
use crate::work::Assignment;

/// The task of a rank.
pub fn make(phase: &Phase, rank: u32, assignment: &Assignment, directory: &Path) -> Box<dyn Task> {
    let base = directory.join(format!("i{}", phase.iteration));
    let owner = phase.owner(rank, assignment.tasks_total);
    // One task makes and removes a shared tree. If the hosts do not share a file system, one task
    // per host does so.
    let first = if phase.common { 0 } else { assignment.first_rank };
    match phase.step {
        Step::TreeCreate | Step::TreeRemove => Box::new(TreeTask {
            phase: phase.clone(),
            base,
            owner,
            active: phase.unique || rank == first,
            nodes: Vec::new(),
        }),
        Step::List | Step::Find | Step::RemoveAll => {
            Box::new(WalkTask { phase: phase.clone(), base, active: rank == first })
        }
        _ => Box::new(ItemTask {
            phase: phase.clone(),
            base,
            owner,
            nodes: Vec::new(),
            buffer: Vec::new(),
        }),
    }
}

/// The paths of a tree's nodes below `base`, as text. Our own names are ASCII. A base that is not
/// UTF-8 is refused, so that it is not mangled.
fn node_paths(phase: &Phase, base: &Path, owner: u32) -> Result<Vec<String>> {
    let base = base.to_str().ok_or_else(|| {
        BenchError::Usage(format!("{} is not UTF-8; use another directory", base.display()))
    })?;
    let paths = phase.node_paths(owner);
    Ok(paths.iter().map(|path| format!("{base}/{path}")).collect())
}

fn make_directory_if_missing(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(BenchError::path("make the directory", path, error))
        }
        _ => Ok(()),
    }
}

struct TreeTask {
    phase: Phase,
    base: PathBuf,
    owner: u32,
    active: bool,
    nodes: Vec<String>,
}

impl Task for TreeTask {
    fn prepare(&mut self) -> Result<()> {
        if self.active {
            self.nodes = node_paths(&self.phase, &self.base, self.owner)?;
            if self.phase.step == Step::TreeCreate {
                make_directory_if_missing(&self.base)?;
            }
        }
        Ok(())
    }

    fn run(&mut self, meter: &mut Meter) -> Result<()> {
        let mode = Mode::from_raw_mode(0o777);
        // A tree is always made whole: the phases after it need every node.
        if self.phase.step == Step::TreeCreate {
            for path in &self.nodes {
                let made = rustix::fs::mkdir(path.as_str(), mode);
                made.map_err(|error| failed("make", path, error))?;
                meter.operation_ends(0);
            }
        } else {
            for path in self.nodes.iter().rev() {
                let removed = rustix::fs::rmdir(path.as_str());
                removed.map_err(|error| failed("remove", path, error))?;
                meter.operation_ends(0);
            }
        }
        Ok(())
    }
}

struct ItemTask {
    phase: Phase,
    base: PathBuf,
    owner: u32,
    nodes: Vec<String>,
    buffer: Vec<u8>,
}

impl Task for ItemTask {
    fn prepare(&mut self) -> Result<()> {
        self.nodes = node_paths(&self.phase, &self.base, self.owner)?;
        let bytes = self.phase.write_bytes.max(self.phase.read_bytes);
        self.buffer = vec![0; usize::try_from(bytes).expect("invariant: validated size")];
        Content::new(self.phase.seed, u64::from(self.owner), 0).fill(0, &mut self.buffer);
        Ok(())
    }

    fn run(&mut self, meter: &mut Meter) -> Result<()> {
        let items = self.phase.items_of(self.owner);
        let making = matches!(self.phase.step, Step::FileCreate | Step::DirectoryCreate);
        let pattern = match self.phase.random && !making {
            true => Pattern::Random,
            false => Pattern::Sequential,
        };
        let seed = self.phase.seed ^ u64::from(self.owner);
        let mut path = String::new();
        meter.operation_begins();
        for item in pattern.order(items, seed) {
            if meter.is_over() {
                break;
            }
            path.clear();
            path.push_str(&self.nodes[self.phase.node_of(item) as usize]);
            self.phase.push_name(&mut path, self.owner, item);
            let bytes = self.visit(&path)?;
            meter.operation_ends(bytes);
        }
        Ok(())
    }
}

fn failed(verb: &str, path: &str, error: Errno) -> BenchError {
    BenchError::path(verb, Path::new(path), error)
}

impl ItemTask {
    /// Does the step to one item; returns the bytes it moved.
    fn visit(&mut self, path: &str) -> Result<u64> {
        match self.phase.step {
            Step::FileCreate => return self.create(path),
            Step::FileRead => return self.read(path),
            Step::FileStat | Step::DirectoryStat => {
                rustix::fs::stat(path).map_err(|error| failed("stat", path, error))?;
            }
            Step::FileRemove => {
                rustix::fs::unlink(path).map_err(|error| failed("remove", path, error))?;
            }
            Step::DirectoryCreate => {
                let made = rustix::fs::mkdir(path, Mode::from_raw_mode(0o777));
                made.map_err(|error| failed("make", path, error))?;
            }
            Step::DirectoryRemove => {
                rustix::fs::rmdir(path).map_err(|error| failed("remove", path, error))?;
            }
            _ => unreachable!("invariant: the other steps have tasks of their own"),
        }
        Ok(0)
    }

    fn create(&mut self, path: &str) -> Result<u64> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file: OwnedFd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o666))
            .map_err(|error| failed("create", path, error))?;
        let mut left = &self.buffer[..self.phase.write_bytes as usize];
        while !left.is_empty() {
            let written =
                rustix::io::write(&file, left).map_err(|error| failed("write", path, error))?;
            left = &left[written..];
        }
        if self.phase.fsync {
            rustix::fs::fsync(&file).map_err(|error| failed("fsync", path, error))?;
        }
        Ok(self.phase.write_bytes)
    }

    fn read(&mut self, path: &str) -> Result<u64> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file: OwnedFd = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| failed("open", path, error))?;
        let wanted = self.phase.read_bytes as usize;
        let mut done = 0;
        while done < wanted {
            let read = rustix::io::read(&file, &mut self.buffer[done..wanted])
                .map_err(|error| failed("read", path, error))?;
            if read == 0 {
                return Err(BenchError::Verification(format!(
                    "{path} ends after {done} of {wanted} bytes"
                )));
            }
            done += read;
        }
        Ok(self.phase.read_bytes)
    }
}

/// Lists or removes whole directories, as `ls -l`, `find` and `rm -r` do.
struct WalkTask {
    phase: Phase,
    base: PathBuf,
    active: bool,
}

impl Task for WalkTask {
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    fn run(&mut self, meter: &mut Meter) -> Result<()> {
        if !self.active {
            return Ok(());
        }
        match self.phase.step {
            Step::Find => find(&self.base, meter),
            Step::List => list(&self.base.join("t"), meter).map(|_| ()),
            _ => self.remove_all(meter),
        }
    }
}

/// Reads every name and its attributes, in the order of the names. `ls -l` asks the same of a file
/// system. Returns the directories among them.
fn list(directory: &Path, meter: &mut Meter) -> Result<Vec<PathBuf>> {
    let read_failed = |error| BenchError::path("list", directory, error);
    let mut names = Vec::new();
    meter.operation_begins();
    for entry in fs::read_dir(directory).map_err(read_failed)? {
        names.push(entry.map_err(read_failed)?.file_name());
    }
    names.sort_unstable();
    let handle = rustix::fs::open(
        directory,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|error| BenchError::path("open", directory, error))?;
    let mut directories = Vec::new();
    for name in &names {
        let attributes = rustix::fs::statat(&handle, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| BenchError::path("stat", &directory.join(name), error))?;
        if rustix::fs::FileType::from_raw_mode(attributes.st_mode)
            == rustix::fs::FileType::Directory
        {
            directories.push(directory.join(name));
        }
    }
    meter.operations_end(names.len() as u64);
    Ok(directories)
}

fn find(base: &Path, meter: &mut Meter) -> Result<()> {
    let mut left = vec![base.to_path_buf()];
    while let Some(directory) = left.pop() {
        if meter.is_over() {
            break;
        }
        left.extend(list(&directory, meter)?);
    }
    Ok(())
}

impl WalkTask {
    fn remove_all(&self, meter: &mut Meter) -> Result<()> {
        let root = self.base.join("t");
        let read_failed = |error| BenchError::path("list", &root, error);
        let mut names = Vec::new();
        meter.operation_begins();
        for entry in fs::read_dir(&root).map_err(read_failed)? {
            names.push(entry.map_err(read_failed)?.path());
        }
        for path in &names {
            fs::remove_file(path).map_err(|error| BenchError::path("remove", path, error))?;
            meter.operation_ends(0);
        }
        fs::remove_dir(&root).map_err(|error| BenchError::path("remove", &root, error))?;
        meter.operation_ends(0);
        Ok(())
    }
}
