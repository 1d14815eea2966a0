//! `strake diag all`: everything that helps others to see what is wrong, in one archive.
//!
//! Each answer of the daemon is a file of its own. An answer that does not come is noted in
//! `readme.txt`, and the rest is collected all the same. Names of files are left out unless the
//! caller wants them; contents of files are in no answer.

use super::slow;
use super::tar::Tar;
use crate::admin::{self, Request};
use crate::background::Order;
use crate::node::{self, LeaderRequest, NodeDir};
use crate::registry;
use clap::Args;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_observe::recent::{Filter, KEPT};
use strake_observe::{SlowReport, TokensView};
use strake_proto::{Error, ErrorKind, Result};

/// The daemon must give each answer within this time.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// So much of the end of each log is taken.
const LOG_BYTES_MAX: u64 = 4 << 20;
/// The kernel's files about the machine.
const MACHINE: [&str; 6] = ["version", "uptime", "loadavg", "meminfo", "cpuinfo", "stat"];

/// Collect everything for a support case in one archive (tar).
///
/// It has what the other `strake diag` commands show, health, listings, settings, the ends of the
/// logs, and facts about the machine. Contents of files are never in it, and names of files only
/// with --with-names. Names of programs, disks and nodes are in it, and addresses of nodes.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake diag all                          strake-diag-NAME-SECONDS.tar in this directory
  strake diag all --output /tmp/case.tar
  tar xOf /tmp/case.tar readme.txt         what is in it")]
pub(crate) struct AllArgs {
    /// The data directory [default: $STRAKE_DATA, or the only file system that is up].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The archive, which must not be there yet [default: strake-diag-NAME-SECONDS.tar].
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also the paths of files that were slow, or that nodes take from each other.
    #[arg(long)]
    with_names: bool,
}

/// The answers, each with its file.
fn questions() -> Vec<(&'static str, Request)> {
    let minute = Duration::from_secs(60);
    vec![
        ("show.json", Request::Show),
        ("status.json", Request::Status),
        ("health.json", Request::Health),
        ("settings.json", Request::Settings),
        ("totals.json", Request::Totals),
        ("activity.json", Request::Activity { since: minute }),
        ("slow.json", Request::ExplainSlow { since: KEPT, filter: Filter::default() }),
        ("waiters.json", Request::Waiters),
        ("threads.json", Request::Threads),
        ("network.json", Request::Network),
        ("tokens.json", Request::Tokens),
        ("stats.json", Request::Stats),
        ("memory.json", Request::Memory),
        ("counters.json", Request::IoCounters { reset: false }),
        ("iohist.json", Request::IoHistory),
        ("metrics.json", Request::Metrics),
        ("scrub.json", Request::Scrub { order: Order::Status }),
        ("check.json", Request::CheckStatus),
    ]
}

/// The collected parts, and those that could not be had.
struct Case {
    files: Vec<(String, Vec<u8>)>,
    missing: Vec<String>,
}

impl Case {
    fn take(&mut self, name: &str, found: Result<Vec<u8>>) {
        match found {
            Ok(contents) => self.files.push((name.to_owned(), contents)),
            Err(error) => self.missing.push(format!("{name}: {error}")),
        }
    }

    /// The head of the archive: a line for each file.
    fn readme(&self, name: &str, with_names: bool) -> String {
        let names = if with_names { "Names of files are in it." } else { "No names of files." };
        let version = env!("CARGO_PKG_VERSION");
        let mut text = format!(
            "A support case of the file system {name}, made by strake {version} at {} s since \
             1970 UTC.\nNo contents of files. {names}\n\n",
            RealClock.wall().seconds
        );
        for (file, contents) in &self.files {
            let _ = writeln!(text, "{:>10}  {file}", contents.len());
        }
        for missing in &self.missing {
            let _ = writeln!(text, "   missing  {missing}");
        }
        text
    }
}

/// Runs `strake diag all`.
pub(super) fn run(args: &AllArgs) -> Result<()> {
    let dir = registry::find(args.data.as_deref())?;
    let config = dir.read_config()?;
    let time = RealClock.wall().seconds.unsigned_abs();
    let default = || format!("strake-diag-{}-{time}.tar", config.name).into();
    let path = args.output.clone().unwrap_or_else(default);
    // An archive that cannot be written is refused before anybody is asked. Others may not read it.
    let options = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let file = options.map_err(|error| Error::from(error).context(path.display()))?;
    let mut case = Case { files: Vec::new(), missing: Vec::new() };
    for (name, request) in questions() {
        let answer = admin::call(&dir, &request, ANSWER_MAX);
        let answer =
            answer.and_then(|value| cleaned(&request, value, &config.mount, args.with_names));
        case.take(name, answer.and_then(|value| json(&value)));
    }
    if let Some(node) = &config.node {
        of_node(&mut case, node);
    }
    case.take("strake.log", end_of(&dir.log_path()));
    for name in MACHINE {
        case.take(&format!("machine/{name}"), end_of(&Path::new("/proc").join(name)));
    }
    let mut tar = Tar::new(std::io::BufWriter::new(file), time);
    let readme = case.readme(&config.name, args.with_names);
    let written = tar
        .add("readme.txt", readme.as_bytes())
        .and_then(|()| case.files.iter().try_for_each(|(name, contents)| tar.add(name, contents)));
    let written = written.and_then(|()| tar.finish()).and_then(|out| Ok(out.into_inner()?));
    written
        .and_then(|file| file.sync_all())
        .map_err(|error| Error::from(error).context(path.display()))?;
    println!("{} has {} files, first of all readme.txt", path.display(), case.files.len() + 1);
    Ok(())
}

/// Adds what the node's server process knows of the cluster.
fn of_node(case: &mut Case, node: &Path) {
    let ask = |request: LeaderRequest| -> Result<Vec<u8>> {
        let value: Value = node::ask_own(&NodeDir::at(node)?, &node::Request::Leader(request))?;
        json(&value)
    };
    case.take("cluster.json", ask(LeaderRequest::Records { newer_than: 0 }));
    case.take("nodes.json", ask(LeaderRequest::NodeStates));
    case.take("node.log", NodeDir::at(node).and_then(|dir| end_of(&dir.log_path())));
}

/// Names of files go out of the answers that may have some, or into those that could have them.
fn cleaned(request: &Request, value: Value, mount: &Path, with_names: bool) -> Result<Value> {
    match request {
        Request::Tokens if !with_names => {
            let mut view: TokensView = admin::read_value(value)?;
            view.hot.iter_mut().for_each(|file| file.path = None);
            encoded(&view)
        }
        Request::ExplainSlow { .. } if with_names => {
            let mut report: SlowReport = admin::read_value(value)?;
            slow::name_files(&mut report, mount);
            encoded(&report)
        }
        _ => Ok(value),
    }
}

fn encoded(value: &impl serde::Serialize) -> Result<Value> {
    serde_json::to_value(value).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
}

fn json(value: &Value) -> Result<Vec<u8>> {
    let mut text = serde_json::to_string_pretty(value)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    text.push('\n');
    Ok(text.into_bytes())
}

/// The end of a file.
fn end_of(path: &Path) -> Result<Vec<u8>> {
    let about = |error: std::io::Error| Error::from(error).context(path.display());
    let mut file = std::fs::File::open(path).map_err(about)?;
    let length = file.metadata().map_err(about)?.len();
    let from = length.saturating_sub(LOG_BYTES_MAX);
    file.seek(SeekFrom::Start(from)).map_err(about)?;
    let mut contents = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut contents).map_err(about)?;
    Ok(contents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use strake_observe::HotFile;

    #[test]
    fn names_of_files_are_left_out_unless_they_are_wanted() {
        let hot = vec![HotFile { path: Some("/mnt/secret".to_owned()), ..HotFile::default() }];
        let view = encoded(&TokensView { hot, ..TokensView::default() }).expect("it has a form");
        let of = |with_names| {
            let cleaned = cleaned(&Request::Tokens, view.clone(), Path::new("/mnt"), with_names);
            cleaned.expect("it is one").to_string()
        };
        assert!(!of(false).contains("secret") && of(true).contains("secret"));
    }

    #[test]
    fn the_head_names_what_is_there_and_what_is_missing() {
        let mut case = Case { files: Vec::new(), missing: Vec::new() };
        case.take("a.json", Ok(b"{}".to_vec()));
        case.take("b.json", Err(Error::new(ErrorKind::TimedOut, "no answer")));
        let readme = case.readme("demo", false);
        assert!(readme.contains("file system demo") && readme.contains("No names of files."));
        assert!(
            readme.ends_with("         2  a.json\n   missing  b.json: no answer\n"),
            "{readme}"
        );
    }
}
