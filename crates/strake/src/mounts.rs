//! Looks at this machine's mount points for `up` and `down`: which are Strake's, whether their
//! daemon is gone, and which processes use them.

use std::path::{Path, PathBuf};
use strake_fuse::mountinfo::{self, Place};
use strake_proto::{Error, Result};

/// The mount points of all Strake mounts, as the kernel lists them.
pub(crate) fn strake_mounts() -> Vec<PathBuf> {
    let ours = |place: Place| (place.kind == mountinfo::KIND).then_some(place.path);
    table().into_iter().filter_map(ours).collect()
}

/// The mount points of all mounts, as the kernel lists them.
pub(crate) fn all_mounts() -> Vec<PathBuf> {
    table().into_iter().map(|place| place.path).collect()
}

/// All mounts; none where `/proc` is missing.
fn table() -> Vec<Place> {
    mountinfo::list().unwrap_or_default()
}

/// True if a Strake mount is at `path` and its daemon is gone.
pub(crate) fn is_dead_strake_mount(path: &Path) -> bool {
    // The kernel lists mounts by their real paths. To find the real path asks no daemon.
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    strake_mounts().contains(&real) && mountinfo::is_dead(&real)
}

/// True if anything is mounted at `path`.
pub(crate) fn is_mount_point(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(own), Some(parent)) = (std::fs::metadata(path), path.parent()) else { return false };
    std::fs::metadata(parent).is_ok_and(|parent| parent.dev() != own.dev())
}

/// Takes a mount out of the tree of directories, even if programs use it.
///
/// # Errors
/// The host's.
pub(crate) fn detach(path: &Path) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH)
            .map_err(|error| Error::from(std::io::Error::from(error)))
    } else {
        let status =
            std::process::Command::new("fusermount3").args(["-u", "-z"]).arg(path).status()?;
        if status.success() {
            return Ok(());
        }
        Err(Error::new(strake_proto::ErrorKind::Busy, "fusermount3 cannot unmount it"))
    }
}

/// Processes that use something below `path`: `name (pid)`, at most ten.
pub(crate) fn users(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(processes) = std::fs::read_dir("/proc") else { return found };
    // An automounter has the place open that the mount is on.
    let places = table().into_iter().filter(Place::is_automounter);
    let under: Vec<String> = places.map(|place| format!("mnt_id:\t{}\n", place.number)).collect();
    let is_under = |info: PathBuf| {
        if under.is_empty() {
            return false;
        }
        let info = std::fs::read_to_string(info).unwrap_or_default();
        under.iter().any(|line| info.contains(line))
    };
    for process in processes.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let base = process.path();
        let mut links = vec![base.join("cwd"), base.join("root"), base.join("exe")];
        if let Ok(files) = std::fs::read_dir(base.join("fd")) {
            let files = files.flatten();
            let files = files.filter(|it| !is_under(base.join("fdinfo").join(it.file_name())));
            links.extend(files.map(|file| file.path()));
        }
        let below = |link: &PathBuf| std::fs::read_link(link).is_ok_and(|to| to.starts_with(path));
        if links.iter().any(below) {
            let name = std::fs::read_to_string(base.join("comm")).unwrap_or_default();
            found.push(format!("{} ({pid})", name.trim_end()));
        }
        if found.len() == 10 {
            break;
        }
    }
    found
}
