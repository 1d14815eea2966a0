//! `strake up`: makes a file system in an empty directory, or starts the one that is there.

use crate::admin::{self, Request, Status};
use crate::commands::mount::remount;
use crate::create::{self, Wanted};
use crate::data_dir::{DataDir, NodeConfig};
use crate::mount_options::MountWords;
use crate::mounts;
use crate::output;
use crate::service;
use crate::show::Show;
use clap::Args;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_fuse::mountinfo;
use strake_proto::{ByteCount, Code, Error, ErrorKind, Result};

/// How long a daemon may take to answer whether it serves.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long a daemon may take to come up, or to flush its data and end.
const SETTLE_MAX: Duration = Duration::from_secs(120);
const SETTLE_STEP: Duration = Duration::from_millis(20);

/// Make a file system in an empty directory, or start the one that is there, and mount it.
///
/// The command returns when the mount serves. A background daemon writes its log to DIR/strake.log.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake up --data /srv/strake --mount /mnt/strake
  strake up --data /srv/strake --mount /mnt/strake --nsds 10 --code 8+2p
  strake up --data /srv/strake --mount /mnt/strake --code 2x --nsd /dev/sdb:1 --nsd /dev/sdc:2
  strake up --data /srv/strake --mount /mnt/strake --set pagepool=2G --set sync_interval=10s
  strake up --data /srv/strake --mount /mnt/strake -o ro,nosuid
  strake up --data /srv/strake                 where it was mounted last")]
pub(crate) struct UpArgs {
    /// The data directory, for NSDs, configuration and log.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// The mount point. It is made if it is missing [default: where it was mounted last].
    #[arg(long, value_name = "MNT")]
    mount: Option<PathBuf>,
    /// How many directory NSDs to make [default: as many as the code is wide, at least 4].
    #[arg(long, value_name = "N", conflicts_with = "nsd")]
    nsds: Option<u16>,
    /// Size of each NSD [default: an equal part of the free space].
    #[arg(long, value_name = "SIZE")]
    nsd_size: Option<ByteCount>,
    /// A directory or block device for one NSD, and its failure group. Repeat it for each NSD.
    #[arg(long, value_name = "PATH[:GROUP]")]
    nsd: Vec<String>,
    /// Redundancy code of new files: 1 2x 3x 4x 4+1p 4+2p 4+3p 8+2p 8+3p [default: 4+2p].
    #[arg(long, value_name = "CODE")]
    code: Option<Code>,
    /// Size of a block, a power of two from 256K to 16M [default: 4M].
    #[arg(long, value_name = "SIZE")]
    block_size: Option<ByteCount>,
    /// The file system's name in listings, `df` and `findmnt` [default: strake].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Reserve the disk space of container files now instead of as they fill.
    #[arg(long)]
    prealloc: bool,
    /// Use devices even if they hold something else. Their contents are lost.
    #[arg(long)]
    force: bool,
    /// Options of the mount, as mount(8) has them, with commas between them: ro, noatime, nosuid …
    #[arg(short, long, value_name = "OPTIONS", default_value = "")]
    options: String,
    /// Change a setting for this and later starts. `strake config list` explains the settings.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// Runs `strake up`.
pub(crate) fn run(args: UpArgs) -> Result<()> {
    let dir = DataDir::at(&args.data)?;
    let known = if dir.is_formatted() { Some(dir.read_config()?) } else { None };
    let mount = mount_point(args.mount.as_deref(), known.as_ref())?;
    let words = MountWords::parse(&args.options, false)?;
    let set: Vec<String> = args.set.iter().chain(&words.settings).cloned().collect();
    let wanted = Wanted {
        nsds: args.nsds,
        nsd_size: args.nsd_size,
        nsd_paths: args.nsd,
        code: args.code,
        block_size: args.block_size,
        name: args.name,
        prealloc: args.prealloc,
        force: args.force,
    };
    if mount.starts_with(dir.root()) && mount == dir.root() {
        return Err(Error::new(
            ErrorKind::Invalid,
            "--mount and --data name the same directory: choose two",
        ));
    }
    let mut config = if let Some(config) = known {
        create::agree(&dir, &config, &wanted)?;
        config
    } else {
        create::refuse_used_directory(&dir)?;
        create::check(&wanted)?;
        let mut settings = crate::settings::Settings::default();
        set.iter().try_for_each(|text| settings.set(text))?;
        prepare_mount_point(&mount)?;
        create::create(&dir, &wanted, &mount)?
    };
    let before = config.clone();
    set.iter().try_for_each(|text| config.settings.set(text))?;
    config.settings.validate()?;
    if let Some(status) = settled(&dir)? {
        if status.mount != mount.to_string_lossy() || config.settings != before.settings {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "{} is up at {}: take it down first to change its mount point or settings",
                    status.name, status.mount
                ),
            ));
        }
        if !words.kernel_words.is_empty() {
            remount(&mount.canonicalize()?, &words)?;
        }
        let is_up = format!("{} is up at {}", status.name, status.mount);
        println!("{is_up} (process {})", status.pid);
        service::serves(status.pid, &is_up);
        warn(&dir);
        return Ok(());
    }
    let pid = start(&dir, &config, &mount, &words)?;
    let is_up = format!("{} is up at {}", config.name, mount.display());
    println!("{is_up}");
    service::serves(pid, &is_up);
    warn(&dir);
    Ok(())
}

/// The mount point that was named, or the last one of a file system that is there.
///
/// # Errors
/// `Invalid` if there is neither.
fn mount_point(named: Option<&Path>, known: Option<&NodeConfig>) -> Result<PathBuf> {
    match (named, known) {
        (Some(path), _) => Ok(std::path::absolute(path)?),
        (None, Some(config)) => Ok(config.mount.clone()),
        (None, None) => Err(Error::new(
            ErrorKind::Invalid,
            "a new file system needs a mount point: --mount MNT",
        )),
    }
}

/// Starts the daemon of a file system that is not up, and waits until it serves at `mount`.
/// `config` becomes the configuration in `dir`. Returns the daemon's process.
///
/// # Errors
/// Those of the mount point, and of the daemon.
pub(crate) fn start(
    dir: &DataDir,
    config: &NodeConfig,
    mount: &Path,
    words: &MountWords,
) -> Result<u32> {
    prepare_mount_point(mount)?;
    let config = NodeConfig { mount: mount.to_owned(), ..config.clone() };
    if config != dir.read_config()? {
        dir.write_config(&config)?;
    }
    let options = words.kernel_words.join(",");
    Ok(start_daemon(dir, &mount_daemon(&options), &dir.log_path())?.id())
}

/// The arguments of a daemon that serves a mount with these options of mount(8).
pub(crate) fn mount_daemon(options: &str) -> Vec<&str> {
    if options.is_empty() { vec!["daemon"] } else { vec!["daemon", "--options", options] }
}

/// Warns if too many disks of a file system that is up are missing.
fn warn(dir: &DataDir) {
    // If the daemon does not answer any more, it is down again. The next command reports that.
    if let Ok(show) = admin::ask::<Show>(dir, &Request::Show)
        && let Some(warning) = show.warning()
    {
        output::tell(&warning);
    }
}

/// The status of the daemon that serves `dir`; `None` if no daemon runs. Waits for a daemon that
/// is starting or ending.
pub(crate) fn settled(dir: &DataDir) -> Result<Option<Status>> {
    let end = RealClock.monotonic() + SETTLE_MAX;
    let mut is_told = false;
    loop {
        let answer = admin::call(dir, &Request::Status, ANSWER_MAX).ok();
        let status = answer.and_then(|value| serde_json::from_value::<Status>(value).ok());
        if status.as_ref().is_some_and(|status| status.serves) {
            return Ok(status);
        }
        if dir.try_lock()?.is_some() {
            return Ok(None);
        }
        if RealClock.monotonic() >= end {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "a daemon of {} has neither served nor ended for {} s: the end of {} says why; \
                     programs may still use files of a mount that was taken away",
                    dir.root().display(),
                    SETTLE_MAX.as_secs(),
                    dir.log_path().display()
                ),
            ));
        }
        if !is_told {
            output::tell(&"waiting for a daemon that is on its way up or down");
            is_told = true;
        }
        RealClock.sleep(SETTLE_STEP);
    }
}

/// Makes the mount point. If a mount is there whose daemon is gone, it is detached first.
pub(crate) fn prepare_mount_point(mount: &Path) -> Result<()> {
    if mounts::is_dead_strake_mount(mount) {
        let path = mount.display();
        output::tell(&format_args!("detaching the mount of a daemon that is gone from {path}"));
        mounts::detach(mount)?;
    }
    if mountinfo::is_automounted(mount)? {
        let detail = format!(
            "an automounter keeps {}: it mounts when a program looks there; choose another --mount",
            mount.display()
        );
        return Err(Error::new(ErrorKind::Invalid, detail));
    }
    std::fs::create_dir_all(mount).map_err(|error| Error::from(error).context(mount.display()))?;
    if mounts::is_mount_point(mount) {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("something is mounted at {} already: choose another --mount", mount.display()),
        ));
    }
    Ok(())
}

/// Starts a daemon of `dir` in the background, with `arguments` before `--data`. Waits until it
/// serves, or returns the error that it reports.
///
/// # Errors
/// The daemon's; the host's.
pub(crate) fn start_daemon(dir: &DataDir, arguments: &[&str], log_path: &Path) -> Result<Child> {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log_path)?;
    let program = crate::supervisor::own_program()?;
    strake_env::process::keep_descriptors();
    let mut child = Command::new(program)
        .args(arguments)
        .arg("--data")
        .arg(dir.root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .current_dir("/")
        .process_group(0)
        .spawn()?;
    let stdout = child.stdout.take().expect("invariant: stdout is piped");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    if line.trim_end() == "ready" {
        return Ok(child);
    }
    let _ = child.wait();
    let error = serde_json::from_str::<Error>(&line).unwrap_or_else(|_| {
        let log = log_path.display();
        Error::new(
            ErrorKind::Internal,
            format!("the daemon ended before it served; the end of {log} says why"),
        )
    });
    Err(error)
}
