//! `strake fs`: commands about the file system as a whole.

use crate::admin::{self, Request};
use crate::background::{Order, Progress};
use crate::commands::check;
use crate::commands::cluster_fs::{self, CreateArgs, DeleteArgs, MountArgs, UmountArgs};
use crate::commands::node::NodeTarget;
use crate::commands::recover::{self, RecoverArgs};
use crate::data_dir::DataDir;
use crate::output;
use crate::rebalance::RebalanceReport;
use crate::registry;
use crate::scrub::ScrubReport;
use crate::show::{Show, ShowNsd};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use strake_proto::{ByteCount, Error, ErrorKind, Result};
use strake_report::Table;

/// Selects a file system and the form of the answer.
#[derive(Args, Debug)]
pub(crate) struct Target {
    /// The data directory [default: $STRAKE_DATA, or the only file system that is up].
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Answer in JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

impl Target {
    /// Asks the daemon for everything that listings need. Says so if something does not answer it.
    pub(crate) fn show(&self) -> Result<Show> {
        let show: Show = admin::ask(&registry::find(self.data.as_deref())?, &Request::Show)?;
        show.lateness().iter().for_each(|late| output::tell(late));
        Ok(show)
    }
}

/// Make, mount, list, show, measure, verify and flush file systems.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  strake fs list
  strake fs show --data /srv/strake
  strake fs df --json
  strake fs check                verify metadata, strips and every checksum; Ctrl-C ends it
  strake fs check --status       how far that is, from another terminal
  strake fs scrub start --rate 100M   verify and mend everything in the background
  strake fs scrub status
  strake fs rebalance start --rate 100M   move files to disks that were added
  strake fs sync                 make everything written so far durable
  strake fs create demo --code 2x --mount /mnt/demo   of the free NSDs of a cluster
  strake fs mount demo           on this node of the cluster
  strake fs umount demo
  strake fs delete demo --destroy-data")]
pub(crate) enum FsCommand {
    /// List the file systems that are up on this machine, and those of its cluster.
    List(NodeTarget),
    /// Make a file system of the NSDs of a cluster.
    Create(CreateArgs),
    /// Mount a file system of a cluster.
    Mount(MountArgs),
    /// Flush and unmount a file system of a cluster.
    Umount(UmountArgs),
    /// Delete a file system of a cluster, with everything in it. Its NSDs are free afterwards.
    Delete(DeleteArgs),
    /// Go on with a file system of a cluster that has lost the majority of the disks with its
    /// metadata, while most nodes are there.
    ///
    /// It says with which copy the metadata would go on, and what may be lost, and asks before it
    /// changes anything. If the nodes are lost, too, it is `strake cluster recover`.
    Recover(RecoverArgs),
    /// Show the attributes of a file system.
    Show(Target),
    /// Show the space on each disk.
    Df(Target),
    /// Verify everything while the file system is in use. Changes nothing.
    ///
    /// On a terminal the command shows how far it is. Ctrl-C ends the check: the command then
    /// prints what was checked until then, and its exit code is 130.
    Check {
        #[command(flatten)]
        target: Target,
        /// Verify only metadata and indexes; do not read the data.
        #[arg(long, conflicts_with = "status")]
        quick: bool,
        /// Show how far a check is that another command has begun.
        #[arg(long)]
        status: bool,
    },
    /// Verify every strip in the background and mend what is bad.
    #[command(subcommand)]
    Scrub(Work),
    /// Move files to the disks that were added, in the background.
    ///
    /// New files are placed on all disks. Files that were there before a disk was added, suspended
    /// or deleted stay where they are until this moves them. Programs may use them meanwhile. It
    /// goes on after a restart, and on another node if the serving one dies.
    #[command(subcommand)]
    Rebalance(Work),
    /// Make everything written so far durable.
    Sync(Target),
}

/// Work in the background.
#[derive(Subcommand, Debug)]
pub(crate) enum Work {
    /// Begin.
    Start {
        #[command(flatten)]
        target: Target,
        /// Read or move at most this much per second from all disks together [default: no limit].
        #[arg(long, value_name = "SIZE")]
        rate: Option<ByteCount>,
    },
    /// Show how far it is, and what it found.
    Status(Target),
    /// End it early. What is done stays so.
    Stop(Target),
}

impl Work {
    /// The file system, and what is to be done.
    fn order(&self) -> (&Target, Order) {
        match self {
            Work::Start { target, rate } => {
                (target, Order::Start { rate: rate.map_or(0, |rate| rate.0) })
            }
            Work::Status(target) => (target, Order::Status),
            Work::Stop(target) => (target, Order::Stop),
        }
    }
}

/// Runs a `strake fs` command.
pub(crate) fn run(command: &FsCommand) -> Result<()> {
    match command {
        FsCommand::List(target) => list(target),
        FsCommand::Create(args) => cluster_fs::create(args),
        FsCommand::Mount(args) => cluster_fs::mount(args),
        FsCommand::Umount(args) => cluster_fs::umount(args),
        FsCommand::Delete(args) => cluster_fs::delete(args),
        FsCommand::Recover(args) => recover::of_file_system(args),
        FsCommand::Show(target) => show(target),
        FsCommand::Df(target) => df(target),
        FsCommand::Check { target, status: true, .. } => check::status(target),
        FsCommand::Check { target, quick, .. } => check::run(target, !quick),
        FsCommand::Scrub(work) => scrub(work),
        FsCommand::Rebalance(work) => rebalance(work),
        FsCommand::Sync(target) => sync(target),
    }
}

fn list(target: &NodeTarget) -> Result<()> {
    // A mount of a cluster is listed with its cluster.
    let is_alone = |dir: &DataDir| dir.read_config().is_ok_and(|config| config.node.is_none());
    let shows: Vec<Show> = registry::list()
        .iter()
        .filter(|dir| target.dir.is_none() && is_alone(dir))
        .filter_map(|dir| admin::ask(dir, &Request::Show).ok())
        .collect();
    let node = cluster_fs::node_meant(&target.dir, None)?;
    let of_cluster = node.map(|dir| NodeTarget { dir: Some(dir), json: target.json }.cluster());
    let of_cluster = of_cluster.transpose()?;
    if target.json {
        let mut listed = cluster_fs::file_systems_as_json(of_cluster.as_ref());
        let alone = shows.iter().map(serde_json::to_value).collect::<serde_json::Result<Vec<_>>>();
        listed.extend(alone.map_err(|it| Error::new(ErrorKind::Internal, it.to_string()))?);
        return output::print_json(&listed);
    }
    if let Some(cluster) = &of_cluster {
        print!("{}", cluster_fs::file_systems_as_table(cluster).render());
    }
    if of_cluster.is_some() && shows.is_empty() {
        return Ok(());
    }
    let mut table =
        Table::listing(&["file system", "code", "NSDs", "mount point", "data directory"]);
    for show in shows {
        let count = show.nsds.len().to_string();
        table.row(vec![show.name, show.code, count, show.mount, show.data]);
    }
    print!("{}", table.render());
    Ok(())
}

fn show(target: &Target) -> Result<()> {
    let show = target.show()?;
    if target.json {
        return output::print_json(&show);
    }
    let disks: Vec<&str> = show.nsds.iter().map(|nsd| nsd.name.as_str()).collect();
    let copies: Option<Vec<bool>> = show.nsds.iter().map(|nsd| nsd.holds_metadata).collect();
    let copies = copies.map(|held| held.into_iter().filter(|held| *held).count());
    let mut table = Table::listing(&["flag", "value", "description"]);
    let mut row = |flag: &str, value: String, description: &str| {
        table.row(vec![flag.into(), value, description.into()]);
    };
    row("-f", "4096".into(), "Minimum fragment (subblock) size in bytes");
    row("-i", "4096".into(), "Inode size in bytes");
    row("-m", or_dash(copies), "Copies of metadata");
    row("-r", show.code.clone(), "Redundancy code of data");
    row("-B", show.block_size.to_string(), "Block size");
    row("-V", show.format_version.to_string(), "File system format version");
    row("--version", show.version.clone(), "Version of the running program");
    row("--create-time", utc(show.created_seconds), "File system creation time");
    row("-P", "system".into(), "Disk storage pools in file system");
    row("-d", disks.join(";"), "Disks in file system");
    row("-T", show.mount.clone(), "Mount point");
    row("--cluster", show.cluster.clone(), "Cluster identity");
    row("--data", show.data.clone(), "Data directory");
    row("--usable", or_dash(show.usable_bytes.map(ByteCount)), "Space after the code's parity");
    row("--free", or_dash(show.free_bytes.map(ByteCount)), "Of it, free");
    row("--inodes", or_dash(show.inodes), "Inodes in use");
    println!("file system attributes for {}:", show.name);
    print!("{}", table.render());
    Ok(())
}

/// `2026-11-21 04:05:06 UTC`, from seconds since 1970 (Hinnant, "chrono-compatible low-level date
/// algorithms").
pub(crate) fn utc(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

fn df(target: &Target) -> Result<()> {
    let show = target.show()?;
    if target.json {
        return output::print_json(&show.nsds);
    }
    let mut table = Table::listing(&[
        "disk name",
        "disk size in KB",
        "failure group",
        "holds metadata",
        "holds data",
        "free KB",
        "free %",
    ]);
    let kib = |bytes: Option<u64>| or_dash(bytes.map(|bytes| bytes / 1024));
    for nsd in &show.nsds {
        table.row(vec![
            nsd.name.clone(),
            kib(nsd.total_bytes),
            nsd.failure_group.to_string(),
            or_dash(nsd.holds_metadata.map(yes)),
            yes(true),
            kib(nsd.free_bytes),
            percent(nsd),
        ]);
    }
    print!("{}", table.render());
    println!(
        "\nusable after code {}: {} of {} free; {} inodes in use",
        show.code,
        or_dash(show.free_bytes.map(ByteCount)),
        or_dash(show.usable_bytes.map(ByteCount)),
        or_dash(show.inodes)
    );
    Ok(())
}

fn percent(nsd: &ShowNsd) -> String {
    match (nsd.free_bytes, nsd.total_bytes) {
        (Some(free), Some(total)) if total > 0 => {
            (u128::from(free) * 100 / u128::from(total)).to_string()
        }
        _ => "-".to_owned(),
    }
}

/// A figure as listings show it. A dash stands for one that is not known.
pub(crate) fn or_dash(figure: Option<impl std::fmt::Display>) -> String {
    figure.map_or("-".to_owned(), |figure| figure.to_string())
}

/// `yes` or `no`, as listings show it.
pub(crate) fn yes(value: bool) -> String {
    if value { "yes" } else { "no" }.to_owned()
}

/// The first lines about work in the background.
fn print_progress(progress: &Progress) {
    let time = |seconds: Option<i64>| seconds.map_or("-".to_owned(), utc);
    println!("state:    {}", progress.state);
    println!("started:  {}", time(progress.started_seconds));
    println!("ended:    {}", time(progress.ended_seconds));
    let (done, total) = (ByteCount(progress.done_bytes), ByteCount(progress.total_bytes));
    print!("progress: {done} of {total} of files, ");
}

fn scrub(work: &Work) -> Result<()> {
    let (target, order) = work.order();
    let dir = registry::find(target.data.as_deref())?;
    let report: ScrubReport = admin::ask(&dir, &Request::Scrub { order })?;
    if target.json {
        return output::print_json(&report);
    }
    print_progress(&report.progress);
    println!("{} strips verified", report.strips);
    println!(
        "found:    {} strips bad or missing; {} blocks mended, {} not",
        report.bad_strips, report.mended_blocks, report.failed_blocks
    );
    println!(
        "records:  {} of indexes, logs and metadata verified; {} pages damaged, {} mended",
        ByteCount(report.own_bytes),
        report.bad_pages,
        report.mended_pages
    );
    Ok(())
}

fn rebalance(work: &Work) -> Result<()> {
    let (target, order) = work.order();
    let dir = registry::find(target.data.as_deref())?;
    let report: RebalanceReport = admin::ask(&dir, &Request::Rebalance { order })?;
    if target.json {
        return output::print_json(&report);
    }
    print_progress(&report.progress);
    println!("{} files moved", report.moved_files);
    if report.left_files > 0 {
        println!("left:     {} files; the log says why", report.left_files);
    }
    Ok(())
}

fn sync(target: &Target) -> Result<()> {
    let dir = registry::find(target.data.as_deref())?;
    let value: serde_json::Value = admin::ask(&dir, &Request::Sync)?;
    if target.json {
        return output::print_json(&value);
    }
    let bytes = value.get("flushedBytes").and_then(serde_json::Value::as_u64).unwrap_or(0);
    println!("everything is durable; {} flushed", ByteCount(bytes));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::utc;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(utc(951_827_696), "2000-02-29 12:34:56 UTC");
        assert_eq!(utc(-1), "1969-12-31 23:59:59 UTC");
    }
}
