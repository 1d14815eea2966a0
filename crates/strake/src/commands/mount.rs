//! `mount.strake` and `umount.strake`, which mount(8) and umount(8) start. They are this program
//! under other names, with the arguments that mount(8) describes under "external helpers".
//!
//! One daemon serves a file system, however often it is mounted. Its first mount is its own. The
//! kernel makes each further one (a bind mount), so all have the same files and caches, and the
//! daemon ends when the last one is taken away.
//!
//! A place that an automounter keeps (autofs(5), `x-systemd.automount`) lets only processes of the
//! automounter's process group in; others wait for the mount that is being made. These helpers are
//! of the group, the daemon is not. So the daemon mounts in its data directory, and the helper
//! makes the mount of the place and takes the first one away. Likewise the helper unmounts.

use crate::admin::{self, Request, Status};
use crate::commands::cluster_fs::mount_here;
use crate::commands::down::{daemon_process, take_down, wait_for_end};
use crate::commands::node::NodeTarget;
use crate::commands::up;
use crate::data_dir::DataDir;
use crate::mount_options::MountWords;
use crate::mounts;
use crate::registry;
use crate::utab;
use clap::Parser;
use rustix::mount::{MountFlags, UnmountFlags};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use strake_fuse::mountinfo::{self, Place};
use strake_proto::{Error, ErrorKind, Result};

/// Exit codes of mount(8).
const USAGE: u8 = 1;
const MOUNT_FAILED: u8 = 32;

/// How long a daemon may take to say where its file system is mounted.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long a daemon may take to make everything durable.
const FLUSH_MAX: Duration = Duration::from_secs(3600);

/// Mount a Strake file system. mount(8) starts this program; so does /etc/fstab.
#[derive(Parser, Debug)]
#[command(
    name = "mount.strake",
    version,
    after_help = "Options of -o, with commas between them:
  ro rw sync async dirsync noatime relatime strictatime nodiratime
  nosuid nodev noexec     as for every file system; each has its opposite
  remount                 change these options of a mount that is there
  allow_other             with fusermount3: other users may use the mount. Root's mounts allow it
  node=DIR                the directory of the node that mounts, if several are on this machine
  KEY=VALUE               a setting for this and later mounts: `strake config list`

Examples:
  mount -t strake /srv/strake /mnt/strake
  mount -t strake demo /mnt/demo -o noatime,pagepool=4G
  mount -o remount,ro /mnt/strake

Lines of /etc/fstab:
  /srv/strake  /mnt/strake  strake  noatime,nofail  0  0
  /srv/strake  /mnt/strake  strake  noauto,x-systemd.automount,x-systemd.idle-timeout=10min  0  0
  demo  /mnt/demo  strake  _netdev,nofail,x-systemd.requires=strake-node@srv-strake.service  0  0"
)]
pub(crate) struct MountArgs {
    /// A data directory (a path), or the name of a cluster's file system.
    #[arg(value_name = "SOURCE")]
    source: String,
    /// The mount point.
    #[arg(value_name = "DIR")]
    target: PathBuf,
    /// Options, with commas between them.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Ignore options that nobody knows.
    #[arg(short)]
    sloppy: bool,
    /// Check the arguments and mount nothing.
    #[arg(short)]
    fake: bool,
    /// Say what is done.
    #[arg(short)]
    verbose: bool,
    /// Accepted and ignored.
    #[arg(short)]
    no_mtab: bool,
    /// The type, which mount(8) names.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// Unmount a Strake file system. umount(8) starts this program. All data is durable when it ends.
#[derive(Parser, Debug)]
#[command(
    name = "umount.strake",
    version,
    after_help = "Examples:
  umount /mnt/strake
  umount -f /mnt/strake     even while programs use it; they get errors
  umount -l /mnt/strake     out of the tree now; the daemon ends when no program uses it"
)]
pub(crate) struct UmountArgs {
    /// The mount point.
    #[arg(value_name = "DIR")]
    target: PathBuf,
    /// Even if programs use it.
    #[arg(short)]
    force: bool,
    /// Take it out of the tree of directories now, and unmount when no program uses it.
    #[arg(short)]
    lazy: bool,
    /// Accepted and ignored.
    #[arg(short)]
    no_mtab: bool,
    /// Mount read-only if it cannot be unmounted.
    #[arg(short)]
    read_only: bool,
    /// Say what is done.
    #[arg(short)]
    verbose: bool,
    /// The type, which umount(8) names.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// Runs the helper that the program's name stands for. `None` for any other name.
pub(crate) fn run_by_name() -> Option<ExitCode> {
    let program = std::env::args_os().next()?;
    let outcome = match Path::new(&program).file_name()?.to_str()? {
        "mount.strake" | "mount.fuse.strake" => mount(&parsed::<MountArgs>()?),
        "umount.strake" | "umount.fuse.strake" => umount(&parsed::<UmountArgs>()?),
        _ => return None,
    };
    Some(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::output::tell(&error);
            ExitCode::from(if error.kind() == ErrorKind::Invalid { USAGE } else { MOUNT_FAILED })
        }
    })
}

fn parsed<T: Parser>() -> Option<T> {
    Some(T::parse())
}

fn mount(args: &MountArgs) -> Result<()> {
    let words = MountWords::parse(&args.options.join(","), args.sloppy)?;
    if args.fake {
        return Ok(());
    }
    let target = std::path::absolute(&args.target)?;
    if words.remount {
        return remount(&real(&target), &words);
    }
    let done = if args.source.contains('/') {
        mount_own(&DataDir::at(Path::new(&args.source))?, &target, &words)?
    } else {
        mount_of_cluster(&args.source, &target, &words)?
    };
    if let Some(place) = mountinfo::at(&real(&target))? {
        utab::add(&place.source, &place.path);
    }
    if args.verbose {
        println!("{done}");
    }
    Ok(())
}

/// Mounts the file system of a data directory. Returns a sentence about it.
fn mount_own(dir: &DataDir, target: &Path, words: &MountWords) -> Result<String> {
    if !dir.is_formatted() {
        return Err(Error::new(ErrorKind::NotFound, dir.advice()));
    }
    if let Some(status) = up::settled(dir)? {
        return mount_again(dir, &status, target, words);
    }
    let mut config = dir.read_config()?;
    if config.node.is_some() {
        let detail = format!("this is a mount of a cluster: mount -t strake {} …", config.name);
        return Err(Error::new(ErrorKind::Invalid, detail));
    }
    words.settings.iter().try_for_each(|text| config.settings.set(text))?;
    config.settings.validate()?;
    let first = first_place(dir, target)?;
    up::start(dir, &config, &first, words)?;
    if first != target {
        return move_mount(dir, target, words);
    }
    Ok(format!("{} is mounted at {}", config.name, target.display()))
}

/// Where the daemon mounts: at `target`, or in its data directory if an automounter keeps `target`.
fn first_place(dir: &DataDir, target: &Path) -> Result<PathBuf> {
    Ok(match mountinfo::is_automounted(&real(target))? {
        true => dir.staging_path(),
        false => target.to_owned(),
    })
}

/// Moves a mount that was just made in the data directory to its place. If that fails, the file
/// system is taken down.
fn move_mount(dir: &DataDir, target: &Path, words: &MountWords) -> Result<String> {
    let status = up::settled(dir)?.ok_or(ErrorKind::Unreachable)?;
    mount_again(dir, &status, target, words).inspect_err(|_| {
        // The error is the one that is told. What is left is mounted by the next call.
        let _ = dir.read_config().and_then(|config| take_down(dir, &config, true));
    })
}

/// Mounts a cluster's file system through the node on this machine.
fn mount_of_cluster(name: &str, target: &Path, words: &MountWords) -> Result<String> {
    let node = NodeTarget { dir: words.node.clone(), json: false };
    let dir = registry::find_node(words.node.as_deref())?.mount_dir(name)?;
    if dir.is_formatted()
        && let Some(status) = up::settled(&dir)?
    {
        return mount_again(&dir, &status, target, words);
    }
    let first = first_place(&dir, target)?;
    let kernel = words.kernel_words.join(",");
    let answer = mount_here(&node, name, &words.settings, Some(&first), &kernel)?;
    if first != target {
        return move_mount(&dir, target, words);
    }
    Ok(answer.message)
}

/// Mounts a file system that its daemon serves already at one more place. It is the only one, if
/// the first mount was just made in the data directory.
fn mount_again(
    dir: &DataDir,
    status: &Status,
    target: &Path,
    words: &MountWords,
) -> Result<String> {
    let target = real(target);
    let (name, shown) = (&status.name, target.display());
    if status.places.contains(&target) {
        return Ok(format!("{name} is mounted at {shown} already"));
    }
    let gone = || Error::new(ErrorKind::Busy, format!("{name} is on its way down: mount it again"));
    let first = status.places.first().ok_or_else(gone)?;
    let moves = *first == dir.staging_path();
    let flags = words.kernel.flags();
    if !moves && flags.intersects(MountFlags::SYNCHRONOUS | MountFlags::DIRSYNC) {
        let detail = format!(
            "{name} is mounted at {}, and sync and dirsync concern all its mounts: give them to \
             the first one",
            first.display()
        );
        return Err(Error::new(ErrorKind::Invalid, detail));
    }
    if !flags.contains(MountFlags::RDONLY) && place_at(first)?.shares("ro") {
        let detail = format!("{name} is mounted read-only at {}", first.display());
        return Err(Error::new(ErrorKind::ReadOnly, detail));
    }
    rustix::mount::mount_bind(first, &target).map_err(|error| host(error, &target))?;
    // It has the options of the first place, until it gets its own.
    let times = MountFlags::NOATIME | MountFlags::STRICTATIME;
    let usual = if flags.intersects(times) { MountFlags::empty() } else { MountFlags::RELATIME };
    let own = rustix::mount::mount_remount(&target, flags | usual | MountFlags::BIND, "");
    own.map_err(|error| {
        let _ = mounts::detach(&target);
        host(error, &target)
    })?;
    if moves {
        mounts::detach(first)?;
        admin::call(dir, &Request::Moved { mount: target.clone() }, ANSWER_MAX)?;
        return Ok(format!("{name} is mounted at {shown}, which an automounter keeps"));
    }
    Ok(format!("{name} is mounted at {shown}, as at {}", first.display()))
}

/// Changes the options of a mount. One that becomes read-only is durable on return.
///
/// # Errors
/// `Busy` if a file is open for writing; the message names the programs.
pub(crate) fn remount(target: &Path, words: &MountWords) -> Result<()> {
    place_at(target)?;
    let flags = words.kernel.flags();
    let bind = if words.bind { MountFlags::BIND } else { MountFlags::empty() };
    rustix::mount::mount_remount(target, flags | bind, "")
        .map_err(|error| busy_or(error, target, "has files that are open for writing"))?;
    if flags.contains(MountFlags::RDONLY)
        && !words.bind
        && let Some((dir, _)) = daemon_of(target)
    {
        admin::call(&dir, &Request::Sync, FLUSH_MAX)?;
    }
    Ok(())
}

fn umount(args: &UmountArgs) -> Result<()> {
    let target = std::path::absolute(&args.target)?;
    let target = if mountinfo::at(&target)?.is_some() { target } else { real(&target) };
    let place = place_at(&target)?;
    let same = |other: &Place| other.device == place.device;
    let is_last = mountinfo::list()?.iter().filter(|other| same(other)).count() == 1;
    let daemon = daemon_of(&target).filter(|_| is_last && !args.lazy);
    let outcome = match daemon {
        Some((dir, _)) if mountinfo::is_on_automounter(&place)? => {
            unmount_and_wait(&dir, &place, args.force)
        }
        Some((dir, _)) => take_down(&dir, &dir.read_config()?, args.force),
        // Other places are left, or nobody is there who could flush.
        None => {
            let flags =
                if args.lazy || args.force { UnmountFlags::DETACH } else { UnmountFlags::NOFOLLOW };
            let done = rustix::mount::unmount(&target, flags);
            done.map_err(|error| host(error, &target))
                .map(|()| format!("{} is unmounted", target.display()))
        }
    };
    let done = outcome.or_else(|error| {
        if !args.read_only || error.kind() != ErrorKind::Busy {
            return Err(error);
        }
        remount(&target, &MountWords::parse(&format!("{},ro", place.options), true)?)?;
        Ok(format!("{} is busy, and mounted read-only", target.display()))
    })?;
    if mountinfo::at(&target)?.is_none() {
        utab::remove(&target);
    }
    if args.verbose {
        println!("{done}");
    }
    Ok(())
}

/// Makes everything durable, takes the last mount away, and waits until its daemon has ended. From
/// the moment at which all is durable nobody may write, unless it is forced.
fn unmount_and_wait(dir: &DataDir, place: &Place, force: bool) -> Result<String> {
    let (daemon, target) = (daemon_process(dir), &place.path);
    let remounted = |mode: &str| {
        let shared = ["sync", "dirsync"].into_iter().filter(|word| place.shares(word));
        let all = [place.options.as_str()].into_iter().chain(shared).chain([mode]);
        let words = MountWords::parse(&all.collect::<Vec<_>>().join(","), true)?;
        remount(target, &words)
    };
    let was_writable = !force && !place.has("ro") && !place.shares("ro");
    if was_writable {
        remounted("ro")?;
    }
    let flags = if force { UnmountFlags::DETACH } else { UnmountFlags::NOFOLLOW };
    let done = admin::call(dir, &Request::Sync, FLUSH_MAX).and_then(|_| {
        rustix::mount::unmount(target, flags).map_err(|error| busy_or(error, target, "is busy"))
    });
    if let Err(error) = done {
        return Err(match was_writable.then(|| remounted("rw")) {
            Some(Err(again)) => error.context(format!("{again}; it stays read-only")),
            _ => error,
        });
    }
    daemon.as_ref().map_or(Ok(()), wait_for_end)?;
    Ok(format!("{} is unmounted", target.display()))
}

/// The data directory and the answer of the daemon whose file system is mounted at `target`.
fn daemon_of(target: &Path) -> Option<(DataDir, Status)> {
    registry::list().into_iter().find_map(|dir| {
        let value = admin::call(&dir, &Request::Status, ANSWER_MAX).ok()?;
        let status: Status = serde_json::from_value(value).ok()?;
        status.places.iter().any(|place| place == target).then_some((dir, status))
    })
}

/// The mount of Strake at a path.
fn place_at(target: &Path) -> Result<Place> {
    let place = mountinfo::at(target)?.filter(|place| place.kind == mountinfo::KIND);
    place.ok_or_else(|| {
        let detail = format!("{} is not mounted, or not by Strake", target.display());
        Error::new(ErrorKind::NotFound, detail)
    })
}

/// The path without symbolic links, as the kernel lists it.
fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// The error for a mount, with the programs that use it if it is busy.
fn busy_or(error: rustix::io::Errno, target: &Path, why: &str) -> Error {
    let users = mounts::users(target);
    if error != rustix::io::Errno::BUSY || users.is_empty() {
        return host(error, target);
    }
    let detail = format!("{} {why}; it is used by {}", target.display(), users.join(", "));
    Error::new(ErrorKind::Busy, detail)
}

fn host(error: rustix::io::Errno, path: &Path) -> Error {
    Error::from(std::io::Error::from(error)).context(path.display())
}
