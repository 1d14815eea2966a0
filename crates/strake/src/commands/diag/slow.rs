//! `strake diag explain slow`: where the time of the recent past went, in words.

use super::file::inode_of;
use super::{everywhere, text};
use crate::admin::{self, Request};
use crate::commands::fs::Target;
use crate::output;
use crate::registry;
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;
use strake_observe::recent::{Filter, KEPT};
use strake_observe::{SlowReport, print_slow_report};
use strake_proto::Result;

/// Say why it is slow: where the time of the last minutes went, and what to do about it.
///
/// It looks at the time in which programs waited for this file system, and names what explains at
/// least a fifth of it. It says so if nothing is slow.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake diag explain slow                         the last five minutes
  strake diag explain slow --since 30s
  strake diag explain slow --pid 4711              what one program waited for
  strake diag explain slow --path /mnt/strake/db   what the users of one file waited for
  strake diag explain slow --all                   in a cluster, on each node
  strake diag explain slow --json")]
pub(crate) struct SlowArgs {
    #[command(flatten)]
    target: Target,
    /// How far back to look: 30s, 5m. The last ten minutes are known.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = since)]
    since: Duration,
    /// Only requests about this file or directory itself.
    #[arg(long, value_name = "PATH")]
    path: Option<PathBuf>,
    /// Only what this process asked for.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// In a cluster: ask the mounts of all nodes.
    #[arg(long, conflicts_with = "pid")]
    all: bool,
}

fn since(text: &str) -> std::result::Result<Duration, String> {
    let refused = || format!("a time from 1s to {}m, such as 30s or 5m", KEPT.as_secs() / 60);
    let time = crate::settings::parse_time(text).ok_or_else(refused)?;
    let fits = (Duration::from_secs(1)..=KEPT).contains(&time);
    if fits { Ok(time) } else { Err(refused()) }
}

/// Runs `strake diag explain slow`.
pub(super) fn run(args: &SlowArgs) -> Result<()> {
    let dir = registry::find(args.target.data.as_deref())?;
    let inode = args.path.as_deref().map(|path| inode_of(&dir, path)).transpose()?;
    let filter = Filter { process: args.pid, inode };
    let request = Request::ExplainSlow { since: args.since, filter };
    if args.all {
        // Files that programs of other nodes have open are known there.
        let print = |report: &SlowReport| text(|out| print_slow_report(out, report));
        return everywhere::show(&args.target, true, &request, &print);
    }
    let mut report: SlowReport = admin::ask(&dir, &request)?;
    name_files(&mut report, &dir.read_config()?.mount);
    if args.target.json {
        return output::print_json(&report);
    }
    print!("{}", text(|out| print_slow_report(out, &report))?);
    Ok(())
}

/// Adds the paths of files that are open.
pub(crate) fn name_files(report: &mut SlowReport, mount: &Path) {
    for who in report.findings.iter_mut().filter_map(|finding| finding.who.as_mut()) {
        who.file = open_file(who.process, who.inode, mount);
    }
}

/// The path under which a process has a file open, if it still has. Nothing is asked of the file
/// system for this, which may be slow.
pub(crate) fn open_file(process: u32, inode: u64, mount: &Path) -> Option<String> {
    let of = PathBuf::from(format!("/proc/{process}"));
    let wanted = format!("ino:\t{inode}");
    let entries = std::fs::read_dir(of.join("fdinfo")).ok()?;
    let files = entries.filter_map(|entry| {
        let number = entry.ok()?.file_name();
        let info = std::fs::read_to_string(of.join("fdinfo").join(&number)).ok()?;
        info.lines().any(|line| line == wanted).then_some(())?;
        std::fs::read_link(of.join("fd").join(&number)).ok()
    });
    let mut files = files.filter(|path| path.starts_with(mount));
    files.next().map(|path| path.display().to_string())
}
