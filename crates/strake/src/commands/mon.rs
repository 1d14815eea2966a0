//! `strake mon`: counters and histograms of what programs do, with the requests and the layouts of
//! `mmpmon`.
//!
//! Requests come from the command line, from a file, or from standard input, one a line. Each is
//! answered before the next one is read. A request that cannot be read ends the command. One whose
//! operands are wrong is answered with its status, and the command goes on and fails at its end.

mod answer;
mod request;

use crate::admin::{self, FsCounters, Request as Ask};
use crate::commands::diag::node_name;
use crate::data_dir::DataDir;
use crate::node::NodeDir;
use crate::registry;
use answer::Head;
use clap::Args;
use request::{Line, NodesOrder, Request};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_observe::{HistogramOrder, RequestHistogramView};
use strake_proto::{Error, ErrorKind, Result};

/// Files of requests may name each other so deep.
const SOURCES_MAX: usize = 16;
/// What a system says of a wrong operand (EINVAL), and of what is not there (ENOENT).
const WRONG: u32 = 22;
const ABSENT: u32 = 2;

/// Show counters and histograms of what programs do.
#[derive(Args, Debug)]
#[command(after_help = "Requests:
  fs_io_s                      bytes, opens, reads, writes … of each file system since its mount
  io_s                         their sums
  reset                        set these counters to 0
  rhist on | off               count requests by size and time, or stop that
  rhist s | p | reset          show the counts, show the ranges, set the counts to 0
  rhist nr SIZES TIMES         new ranges: upper ends in bytes and milliseconds; = for the usual
  nlist s|del|add|new|sub      the nodes that answer: this one
  ver                          the version
  source FILE                  read requests from FILE
  once REQUEST                 do not repeat REQUEST

Examples:
  strake mon fs_io_s                                 once, for people
  strake mon -p -r 0 -d 10000 io_s                   every ten seconds, for programs
  strake mon rhist nr '64k;256k;1m;4m' '1;10;30;100'
  strake mon rhist on; sleep 60; strake mon rhist s
  strake mon -i requests.txt")]
pub(crate) struct MonArgs {
    /// One request [default: read requests from standard input].
    #[arg(value_name = "REQUEST", conflicts_with = "input")]
    request: Vec<String>,
    /// Read requests from FILE.
    #[arg(short, long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Answer for programs: keywords and values.
    #[arg(short, long)]
    parsable: bool,
    /// Run all requests N times; 0 repeats them without end.
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    repeat: u64,
    /// Wait MS milliseconds between repetitions.
    #[arg(short, long, value_name = "MS", default_value_t = 1000)]
    delay: u64,
    /// Print no prompt. None is printed anyway; the option is for scripts that have it.
    #[arg(short, long)]
    silent: bool,
    /// Wait at most S seconds for an answer.
    #[arg(short, long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// The data directory [default: $STRAKE_DATA, or all file systems that are up].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

/// Runs `strake mon`.
pub(crate) fn run(args: &MonArgs) -> Result<()> {
    let mut monitor = Monitor {
        data: args.data.clone(),
        limit: Duration::from_secs(args.timeout),
        parsable: args.parsable,
        nodes: Vec::new(),
        refused: None,
    };
    let lines: Box<dyn BufRead> = match (&args.request[..], &args.input) {
        ([], None) => Box::new(std::io::stdin().lock()),
        ([], Some(path)) => Box::new(open(path)?),
        (words, _) => Box::new(std::io::Cursor::new(words.join(" "))),
    };
    if args.repeat == 1 {
        // What a program writes is answered before the program has written all.
        lines.lines().try_for_each(|line| monitor.take(&line?))?;
    } else {
        let mut all = Vec::new();
        for line in lines.lines() {
            all.extend(request::parse(&line?)?);
        }
        let is_repeated = all.iter().any(|line| !line.once);
        let rounds = (0u64..).take_while(|round| args.repeat == 0 || *round < args.repeat);
        for round in rounds.take_while(|round| *round == 0 || is_repeated) {
            if round > 0 {
                RealClock.sleep(Duration::from_millis(args.delay));
            }
            all.iter()
                .filter(|line| round == 0 || !line.once)
                .try_for_each(|line| monitor.answer(line, round == 0, 0))?;
        }
    }
    monitor.refused.map_or(Ok(()), Err)
}

fn open(path: &std::path::Path) -> Result<BufReader<std::fs::File>> {
    let opened = std::fs::File::open(path);
    let wrong = |error: std::io::Error| {
        Error::new(ErrorKind::Invalid, format!("{}: {error}", path.display()))
    };
    opened.map(BufReader::new).map_err(wrong)
}

/// What lasts from one request to the next.
struct Monitor {
    data: Option<PathBuf>,
    limit: Duration,
    parsable: bool,
    /// The list of nodes: names and addresses.
    nodes: Vec<(String, String)>,
    /// The first request that was refused.
    refused: Option<Error>,
}

impl Monitor {
    fn take(&mut self, line: &str) -> Result<()> {
        request::parse(line)?.map_or(Ok(()), |line| self.answer(&line, true, 0))
    }

    /// Answers one request. `first` is true in the first round, `depth` counts files within files.
    fn answer(&mut self, line: &Line, first: bool, depth: usize) -> Result<()> {
        if let Request::Source(path) = &line.request {
            return self.source(path, first, depth);
        }
        let dirs = self.file_systems()?;
        let mut text = String::new();
        self.print(&line.request, &dirs, &mut text)
            .map_err(|error| error.context("cannot answer"))?;
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        Ok(out.flush()?)
    }

    fn source(&mut self, path: &str, first: bool, depth: usize) -> Result<()> {
        if depth == SOURCES_MAX {
            let detail = format!("{path}: more than {SOURCES_MAX} files name each other");
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        for line in open(path.as_ref())?.lines() {
            let line = request::parse(&line?)?.filter(|line| first || !line.once);
            line.map_or(Ok(()), |line| self.answer(&line, first, depth + 1))?;
        }
        Ok(())
    }

    /// The file systems that are asked.
    fn file_systems(&self) -> Result<Vec<DataDir>> {
        if let Some(dir) = registry::named(self.data.as_deref())? {
            return Ok(vec![dir]);
        }
        let up = registry::up();
        // If none is up, this says so.
        if up.is_empty() { registry::find(None).map(|dir| vec![dir]) } else { Ok(up) }
    }

    fn ask<T: serde::de::DeserializeOwned>(&self, dir: &DataDir, ask: &Ask) -> Result<T> {
        admin::read_value(admin::call(dir, ask, self.limit)?)
    }

    fn counters(&self, dirs: &[DataDir], reset: bool) -> Result<Vec<FsCounters>> {
        dirs.iter().map(|dir| self.ask(dir, &Ask::IoCounters { reset })).collect()
    }

    fn print(&mut self, request: &Request, dirs: &[DataDir], out: &mut String) -> Result<()> {
        let head = self.head(dirs)?;
        let printed = match request {
            Request::FsIo => {
                let all = self.counters(dirs, false)?;
                all.iter().try_for_each(|one| head.fs_io(out, one))
            }
            Request::Io => {
                let all = self.counters(dirs, false)?;
                let sum = all.iter().map(|one| one.counters).reduce(|sum, one| sum.and(one));
                head.io(out, &sum.unwrap_or_default())
            }
            Request::Reset => {
                self.counters(dirs, true)?;
                head.done(out, "reset", "")
            }
            Request::Version => head.version(out, env!("CARGO_PKG_VERSION")),
            Request::Histogram { words, order: Err(why), .. } => {
                self.refuse("rhist", words, why);
                head.refused(out, "rhist", words, (WRONG, why))
            }
            Request::Histogram { words, order: Ok(order), pattern_only } => {
                return self.histogram(&head, (words, order, *pattern_only), dirs, out);
            }
            Request::Nodes { words, order } => self.change_nodes(&head, words, order, out),
            Request::Source(_) => Ok(()),
        };
        printed.map_err(unprintable)
    }

    fn head(&self, dirs: &[DataDir]) -> Result<Head> {
        let node = dirs.first().map(DataDir::read_config).transpose()?.and_then(|it| it.node);
        let known = node.map(|node| NodeDir::at(&node)?.read()).transpose()?;
        let (node, address) = match known {
            Some(file) => (file.node, file.address.ip().to_string()),
            None => (node_name(), "127.0.0.1".to_owned()),
        };
        Ok(Head { address, node, time: RealClock.wall(), parsable: self.parsable })
    }

    fn refuse(&mut self, word: &str, words: &str, why: &str) {
        let refused = || Error::new(ErrorKind::Invalid, format!("{word} {words}: {why}"));
        self.refused.get_or_insert_with(refused);
    }

    fn histogram(
        &mut self,
        head: &Head,
        (words, order, pattern_only): (&str, &HistogramOrder, bool),
        dirs: &[DataDir],
        out: &mut String,
    ) -> Result<()> {
        let ask = Ask::Histograms { order: order.clone() };
        let mut views = dirs.iter().map(|dir| self.ask::<RequestHistogramView>(dir, &ask));
        let mut sum = views.next().ok_or(ErrorKind::NotFound)??;
        let mut is_one = true;
        for view in views {
            is_one &= sum.add(&view?);
        }
        let why = match order {
            HistogramOrder::Show if !is_one => "the file systems have different ranges",
            HistogramOrder::Show if !pattern_only && sum.counts.is_none() => "not yet enabled",
            HistogramOrder::Show => {
                return head.histograms(out, &sum, pattern_only).map_err(unprintable);
            }
            _ => return head.done(out, "rhist", words).map_err(unprintable),
        };
        self.refuse("rhist", words, why);
        head.refused(out, "rhist", words, (1, why)).map_err(unprintable)
    }

    /// Changes or shows the list of nodes. Only this node can be on it.
    fn change_nodes(
        &mut self,
        head: &Head,
        words: &str,
        order: &NodesOrder,
        out: &mut String,
    ) -> std::fmt::Result {
        let own = (head.node.clone(), head.address.clone());
        let is_own = |name: &String| [&own.0, &own.1].contains(&name) || name == "localhost";
        match order {
            NodesOrder::Show => return head.nodes(out, &self.nodes),
            NodesOrder::Delete => self.nodes.clear(),
            NodesOrder::Add(names) | NodesOrder::New(names) | NodesOrder::Remove(names)
                if !names.iter().all(is_own) =>
            {
                let why = format!("only this node, {}, can be on the list", own.0);
                self.refuse("nlist", words, &why);
                return head.refused(out, "nlist", words, (ABSENT, &why));
            }
            NodesOrder::Add(_) | NodesOrder::New(_) => self.nodes = vec![own],
            NodesOrder::Remove(_) => self.nodes.clear(),
        }
        head.done(out, "nlist", words)
    }
}

fn unprintable(error: std::fmt::Error) -> Error {
    Error::new(ErrorKind::Internal, error.to_string())
}
