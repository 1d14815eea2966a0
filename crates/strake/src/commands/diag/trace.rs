//! `strake diag trace`: records what the daemon does, event by event, and adds it up.

use super::file::inode_of;
use super::picture::picture;
use crate::admin::{self, Request, TracePart};
use crate::commands::fs::Target;
use crate::data_dir::DataDir;
use crate::output;
use crate::registry;
use clap::{Args, Subcommand, ValueEnum};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use strake_observe::trace::{TRACE_EVENTS_DEFAULT, TRACE_EVENTS_MAX, TRACE_EVENTS_MIN};
use strake_observe::{
    Labels, TraceBy, TraceEvent, TraceQuestion, TraceReport, print_trace_report, write_chrome_trace,
};
use strake_proto::{Error, ErrorKind, NsdId, Result};

/// Record what happens, event by event, and add it up.
#[derive(Subcommand, Debug)]
#[command(after_help = "Examples:
  strake diag trace start                      record from now on
  strake diag trace report                     the time by operation, file, NSD and process
  strake diag trace report --pid 4711 --by operation     what one program waited for
  strake diag trace report --chrome trace.json           a picture for https://ui.perfetto.dev
  strake diag trace report --picture write.svg --of write    the slowest write, step by step
  strake diag trace stop                       what was recorded can still be shown")]
pub(crate) enum TraceCommand {
    /// Record from now on. What an earlier trace has recorded is dropped.
    Start(StartArgs),
    /// Stop recording. What was recorded can still be shown.
    Stop(Target),
    /// Add up what was recorded, while a trace runs or after it.
    Report(ReportArgs),
}

/// Arguments of `strake diag trace start`.
#[derive(Args, Debug)]
pub(crate) struct StartArgs {
    #[command(flatten)]
    target: Target,
    /// Keep the last N events. Each takes about 120 bytes of memory.
    #[arg(long, value_name = "N", value_parser = events, default_value_t = TRACE_EVENTS_DEFAULT)]
    events: usize,
}

fn events(text: &str) -> std::result::Result<usize, String> {
    let refused = || format!("a whole number from {TRACE_EVENTS_MIN} to {TRACE_EVENTS_MAX}");
    let events: usize = text.parse().map_err(|_| refused())?;
    let fits = (TRACE_EVENTS_MIN..=TRACE_EVENTS_MAX).contains(&events);
    if fits { Ok(events) } else { Err(refused()) }
}

/// Arguments of `strake diag trace report`.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    target: Target,
    /// Split the operations by this. Repeat it for several tables [default: all].
    #[arg(long, value_enum)]
    by: Vec<By>,
    /// At most N rows in each table.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = rows)]
    rows: usize,
    /// Only what this process asked for.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Only requests about this file or directory.
    #[arg(long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Only what concerns this NSD.
    #[arg(long, value_name = "NAME")]
    nsd: Option<String>,
    /// Write the events to FILE, for Perfetto (<https://ui.perfetto.dev>) or chrome://tracing.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "by", "rows"])]
    chrome: Option<PathBuf>,
    /// Draw the request that took longest to FILE, as SVG: a row for each step, down to the disks.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "by", "rows", "chrome", "nsd"])]
    picture: Option<PathBuf>,
    /// Of which kind the request is that is drawn: write, read, fsync, create, …
    #[arg(long, value_name = "KIND", default_value = "write", requires = "picture")]
    of: String,
}

fn rows(text: &str) -> std::result::Result<usize, String> {
    let rows = text.parse().ok().filter(|rows: &usize| *rows > 0);
    rows.ok_or_else(|| "a whole number from 1".to_owned())
}

/// See [`TraceBy`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// A row for each kind of operation.
    Operation,
    /// By the file or directory that the request names.
    File,
    /// By NSD.
    Nsd,
    /// By the process that made the request.
    Process,
}

impl From<By> for TraceBy {
    fn from(by: By) -> TraceBy {
        match by {
            By::Operation => TraceBy::Operation,
            By::File => TraceBy::File,
            By::Nsd => TraceBy::Nsd,
            By::Process => TraceBy::Process,
        }
    }
}

/// Runs a `strake diag trace` command.
pub(super) fn run(command: &TraceCommand) -> Result<()> {
    match command {
        TraceCommand::Start(args) => start(args),
        TraceCommand::Stop(target) => stop(target),
        TraceCommand::Report(args) => report(args),
    }
}

fn start(args: &StartArgs) -> Result<()> {
    let (target, events) = (&args.target, args.events);
    let dir = registry::find(target.data.as_deref())?;
    let _: serde_json::Value = admin::ask(&dir, &Request::TraceStart { events })?;
    if target.json {
        return output::print_json(&serde_json::json!({ "events": events }));
    }
    println!("the last {events} events are kept: `strake diag trace report` shows them");
    Ok(())
}

fn stop(target: &Target) -> Result<()> {
    let dir = registry::find(target.data.as_deref())?;
    let ran: bool = admin::ask(&dir, &Request::TraceStop)?;
    if target.json {
        return output::print_json(&serde_json::json!({ "stopped": ran }));
    }
    println!("{}", if ran { "the trace is stopped" } else { "no trace runs" });
    Ok(())
}

fn report(args: &ReportArgs) -> Result<()> {
    let dir = registry::find(args.target.data.as_deref())?;
    let question = question(&dir, args)?;
    if let Some(path) = &args.chrome {
        return chrome(&dir, question, path);
    }
    if let Some(path) = &args.picture {
        return draw(&dir, question, path, &args.of);
    }
    let report: TraceReport = admin::ask(&dir, &Request::TraceReport { question })?;
    if args.target.json {
        return output::print_json(&report);
    }
    let mut text = String::new();
    print_trace_report(&mut text, &report)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    print!("{text}");
    Ok(())
}

fn question(dir: &DataDir, args: &ReportArgs) -> Result<TraceQuestion> {
    let by = args.by.iter().map(|by| TraceBy::from(*by)).collect();
    Ok(TraceQuestion {
        by: if args.by.is_empty() { TraceBy::ALL.to_vec() } else { by },
        rows: args.rows,
        process: args.pid,
        inode: args.file.as_deref().map(|path| inode_of(dir, path)).transpose()?,
        nsd: args.nsd.as_deref().map(|name| nsd_of(dir, name)).transpose()?,
    })
}

fn nsd_of(dir: &DataDir, name: &str) -> Result<NsdId> {
    let nsds = dir.read_config()?.nsd;
    let found = nsds.iter().find(|nsd| nsd.name == name);
    found.map(|nsd| NsdId(nsd.id)).ok_or_else(|| {
        let names: Vec<&str> = nsds.iter().map(|nsd| &*nsd.name).collect();
        let detail = format!("there is no NSD '{name}': choose from {}", names.join(", "));
        Error::new(ErrorKind::Invalid, detail)
    })
}

/// Draws the slowest request of the kind `of` to `path`.
fn draw(dir: &DataDir, question: TraceQuestion, path: &Path, of: &str) -> Result<()> {
    let (events, labels) = events_of(dir, question)?;
    let drawn = picture(&events, &labels, of)?;
    std::fs::write(path, drawn)
        .map_err(|error| Error::from(error).context(path.display().to_string()))?;
    println!("the slowest {of} is in {}", path.display());
    Ok(())
}

/// Writes the events to `path`.
fn chrome(dir: &DataDir, question: TraceQuestion, path: &Path) -> Result<()> {
    let (events, labels) = events_of(dir, question)?;
    let name = dir.read_config()?.name;
    let write = || -> std::io::Result<()> {
        let mut file = BufWriter::new(std::fs::File::create(path)?);
        write_chrome_trace(&mut file, &events, &labels, &name)?;
        file.flush()
    };
    write().map_err(|error| Error::from(error).context(path.display().to_string()))?;
    let (count, path) = (events.len(), path.display());
    println!("{count} events are in {path}: open it at https://ui.perfetto.dev");
    Ok(())
}

/// All events that the question is about, with the names of what they name by number.
fn events_of(dir: &DataDir, question: TraceQuestion) -> Result<(Vec<TraceEvent>, Labels)> {
    let (mut events, mut labels) = (Vec::new(), Labels::default());
    let mut from = Some(0);
    while let Some(number) = from {
        let request = Request::TraceEvents { question: question.clone(), from: number };
        let part: TracePart = admin::ask(dir, &request)?;
        events.extend(part.events);
        labels.processes.extend(part.labels.processes);
        labels.files.extend(part.labels.files);
        labels.nsds.extend(part.labels.nsds);
        from = part.next;
    }
    Ok((events, labels))
}
