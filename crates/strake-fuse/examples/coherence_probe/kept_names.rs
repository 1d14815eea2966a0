//! Names that the kernel keeps, and that another mount changes.

use crate::Outcome;
use crate::world::World;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The inode that a path leads to.
fn seen(path: &Path) -> std::io::Result<Option<u64>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether the first mount sees these names of a directory.
fn sees(
    world: &World,
    directory: &str,
    names: [Option<u64>; 3],
) -> Result<(), Box<dyn std::error::Error>> {
    for (name, wanted) in ["a", "b", "c"].into_iter().zip(names) {
        let found = seen(&world.path(0, &format!("{directory}/{name}")))?;
        if found != wanted {
            return Err(format!("{directory}/{name} is {found:?}, not {wanted:?}").into());
        }
    }
    Ok(())
}

/// The first mount has just seen all names of a directory when another mount changes them.
pub(crate) fn changed(world: &World) -> Outcome {
    for round in 0..30 {
        let mount = 1 + round % 2;
        let directory = format!("kept{round}");
        let there = |mount: usize, name: &str| world.path(mount, &format!("{directory}/{name}"));
        fs::create_dir(world.path(0, &directory))?;
        fs::write(there(0, "a"), "a")?;
        fs::write(there(0, "b"), "b")?;
        let [a, b] = [seen(&there(0, "a"))?, seen(&there(0, "b"))?];
        for _ in 0..3 {
            sees(world, &directory, [a, b, None])?;
        }
        fs::rename(there(mount, "a"), there(mount, "c"))?;
        fs::remove_file(there(mount, "b"))?;
        fs::write(there(mount, "a"), "new")?;
        let new = seen(&there(mount, "a"))?;
        sees(world, &directory, [new, None, a])?;
        // The first mount moves a name that it has seen. Then another mount moves it on. A file
        // that was removed would be missed without its name.
        let other = format!("moved{round}");
        fs::create_dir(world.path(0, &other))?;
        let moved = world.path(0, &format!("{other}/a"));
        fs::write(&moved, "moves")?;
        seen(&moved)?;
        fs::rename(&moved, there(0, "b"))?;
        fs::rename(there(mount, "b"), there(mount, "d"))?;
        sees(world, &directory, [new, None, a])?;
    }
    Ok(())
}

/// A file system that is mounted below stays there.
struct Below(PathBuf);

impl Drop for Below {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// As before, with something mounted below: the kernel must not drop all names then.
pub(crate) fn mounted_below(world: &World) -> Outcome {
    fs::create_dir(world.path(0, "below"))?;
    fs::create_dir(world.path(0, "kept"))?;
    let below = world.path(0, "below");
    sees(world, "kept", [None; 3])?;
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &below, "tmpfs", flags, c"size=1m")?;
    let below = Below(below);
    fs::write(below.0.join("inside"), "")?;
    fs::write(world.path(1, "kept/a"), "")?;
    let made = seen(&world.path(1, "kept/a"))?;
    sees(world, "kept", [made, None, None])?;
    if seen(&below.0.join("inside"))?.is_none() {
        return Err("what was mounted below is gone".into());
    }
    Ok(())
}
