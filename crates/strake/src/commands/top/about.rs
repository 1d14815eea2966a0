//! The answer to Enter in `strake top`: the words for the thing that a row is about. The look has
//! a part of it; the daemon is asked for the rest.

use super::look::{Look, Node, ask};
use super::pages::About;
use crate::admin::Request;
use crate::commands::diag::explain::{self, Explained};
use crate::commands::diag::slow;
use crate::data_dir::DataDir;
use crate::show::{ShowNsd, availability_name, status_name};
use std::fmt::Write as _;
use std::time::Duration;
use strake_observe::health::{self, Component, Health, print_health};
use strake_observe::recent::{Filter, KEPT};
use strake_observe::{
    SlowReport, WaiterSnapshot, print_links, print_slow_report, print_tokens, print_waiters,
    wait_chain,
};
use strake_proto::{ByteCount, Error, ErrorKind, Result};

/// As `strake diag explain slow` looks back unless it is told otherwise.
const SINCE: Duration = Duration::from_secs(300);
/// As many of a file's blocks are looked for on the disks.
const BLOCKS: u64 = 200;

/// Explains. What cannot be found out is said in its place.
pub(super) fn explain(dir: &DataDir, look: &Look, about: &About) -> String {
    let mut out = String::new();
    let told = match about {
        About::Slow => slow(&mut out, dir, SINCE, Filter::default()),
        About::Component(name) => component(&mut out, dir, look, name),
        About::Disk(name) => disk(&mut out, look, name),
        About::Node(name) => node(&mut out, look, name),
        About::File(inode, path) => file(&mut out, dir, *inode, path.as_deref()),
        About::Process(process, _) => {
            slow(&mut out, dir, SINCE, Filter { process: Some(*process), inode: None })
        }
        About::Wait(thread, reason) => wait(&mut out, look, thread, reason),
    };
    if let Err(error) = told {
        let _ = writeln!(out, "{error}");
    }
    out
}

/// A string takes all, so this is a fault of the program.
fn unprintable(error: std::fmt::Error) -> Error {
    Error::new(ErrorKind::Internal, error.to_string())
}

/// As `strake diag explain slow`.
fn slow(out: &mut String, dir: &DataDir, since: Duration, filter: Filter) -> Result<()> {
    let mut report: SlowReport = ask(dir, &Request::ExplainSlow { since, filter })?;
    slow::name_files(&mut report, &dir.read_config()?.mount);
    print_slow_report(out, &report).map_err(unprintable)
}

fn waiting(out: &mut String, waits: &[WaiterSnapshot]) -> Result<()> {
    print_waiters(out, waits, 0).map_err(unprintable)
}

/// The line of `strake health`, and what to do.
fn judged(out: &mut String, component: &Component) -> Result<()> {
    let health = Health::of(vec![component.clone()]);
    print_health(out, &health).map_err(unprintable)?;
    let event = component.event.as_deref();
    let event = health::EVENTS.iter().find(|it| Some(it.id) == event);
    let Some(event) = event else { return Ok(()) };
    writeln!(out, "\n{}\n- {}\n", event.means, component.act).map_err(unprintable)
}

fn component(out: &mut String, dir: &DataDir, look: &Look, name: &str) -> Result<()> {
    let Some(found) = look.health.components.iter().find(|it| it.name == name) else {
        return Ok(());
    };
    if look.show.nsds.iter().any(|nsd| nsd.name == name) {
        return disk(out, look, name);
    }
    judged(out, found)?;
    match name {
        "waits" => waiting(out, &look.waits),
        "requests" | "pagepool" | "space" => slow(out, dir, KEPT, Filter::default()),
        _ => Ok(()),
    }
}

fn disk(out: &mut String, look: &Look, name: &str) -> Result<()> {
    let Some(nsd) = look.show.nsds.iter().find(|nsd| nsd.name == name) else {
        writeln!(out, "{name} is no disk of this file system any more").map_err(unprintable)?;
        return Ok(());
    };
    if let Some(component) = look.health.components.iter().find(|it| it.name == name) {
        judged(out, component)?;
    }
    facts(out, nsd).map_err(unprintable)?;
    concerned(out, look, name)
}

fn facts(out: &mut String, nsd: &ShowNsd) -> std::fmt::Result {
    let size = |bytes: Option<u64>| bytes.map_or("?".to_owned(), |it| ByteCount(it).to_string());
    let (status, availability) = (status_name(nsd.status), availability_name(nsd.availability));
    writeln!(out, "where         {}", nsd.path)?;
    writeln!(out, "failure group {}", nsd.failure_group)?;
    writeln!(out, "state         {status}, {availability}")?;
    writeln!(out, "space         {} free of {}", size(nsd.free_bytes), size(nsd.total_bytes))?;
    let holds = match nsd.holds_metadata {
        Some(true) => "a copy of it",
        Some(false) => "none",
        None => "not known",
    };
    writeln!(out, "metadata      {holds}")?;
    let (bad, mended) = (nsd.bad_strips + nsd.bad_pages, nsd.repaired_strips + nsd.mended_pages);
    writeln!(out, "found bad     {bad} strips and pages since the start, {mended} of them mended")?;
    if let Some((done, all)) = nsd.recovered_bytes.zip(nsd.recovery_bytes) {
        writeln!(out, "compared      {} of {}", ByteCount(done), ByteCount(all))?;
    }
    nsd.fault.iter().try_for_each(|fault| writeln!(out, "fault         {fault}"))
}

/// Prints the slow requests and the waits that something with this name causes.
fn concerned(out: &mut String, look: &Look, name: &str) -> Result<()> {
    let names = |text: &String| text.contains(name);
    let mut report = look.slow.clone();
    report.findings.retain(|it| names(&it.title) || it.evidence.iter().any(names));
    if !report.findings.is_empty() {
        writeln!(out).map_err(unprintable)?;
        print_slow_report(out, &report).map_err(unprintable)?;
    }
    let waits = look.waits.iter().filter(|it| names(&it.detail)).cloned();
    let waits: Vec<WaiterSnapshot> = waits.collect();
    if !waits.is_empty() {
        writeln!(out, "\nFor {name} waits:").map_err(unprintable)?;
    }
    waiting(out, &waits)
}

fn node(out: &mut String, look: &Look, name: &str) -> Result<()> {
    let Some(node) = look.nodes.iter().find(|it| it.name == name) else {
        writeln!(out, "{name} is no node any more").map_err(unprintable)?;
        return Ok(());
    };
    let Node { roles, disks, is_mounted, link, .. } = node;
    let or = |text: &str| if text.is_empty() { "none" } else { text }.to_owned();
    let mounted = if *is_mounted { "yes" } else { "no" };
    writeln!(out, "roles    {}\ndisks    {}\nmounted  {mounted}", or(roles), or(&disks.join(", ")))
        .map_err(unprintable)?;
    if let Some(link) = link {
        writeln!(out).map_err(unprintable)?;
        print_links(out, std::slice::from_ref(link)).map_err(unprintable)?;
    }
    if let Some(tokens) = &look.tokens {
        writeln!(out).map_err(unprintable)?;
        print_tokens(out, tokens).map_err(unprintable)?;
    }
    concerned(out, look, name)
}

/// As `strake diag explain FILE`, and what its users waited for.
fn file(out: &mut String, dir: &DataDir, inode: u64, path: Option<&str>) -> Result<()> {
    if inode == 0 {
        let text = "These are all requests of processes and files that are not named.";
        return writeln!(out, "{text}").map_err(unprintable);
    }
    let mut explained: Explained = ask(dir, &Request::ExplainFile { inode, blocks: BLOCKS })?;
    let locks = path.map(|path| explain::locks_of(path.as_ref(), inode)).transpose();
    explained.locks = locks.unwrap_or_default().unwrap_or_default();
    let name = path.map_or_else(|| format!("inode {inode}"), str::to_owned);
    explain::print(out, &name, &explained).map_err(unprintable)?;
    writeln!(out).map_err(unprintable)?;
    slow(out, dir, SINCE, Filter { process: None, inode: Some(inode) })
}

fn wait(out: &mut String, look: &Look, thread: &str, reason: &str) -> Result<()> {
    let is_it = |it: &&WaiterSnapshot| it.thread == thread && it.reason == reason;
    match look.waits.iter().find(is_it) {
        Some(found) => {
            waiting(out, std::slice::from_ref(found))?;
            let mut steps = wait_chain::chain(&look.waits, found).into_iter();
            steps.try_for_each(|step| writeln!(out, "  {step}")).map_err(unprintable)?;
        }
        None => writeln!(out, "It does not wait any more.").map_err(unprintable)?,
    }
    let text = "`strake help operating` says what each wait means. All that wait now:";
    writeln!(out, "\n{text}").map_err(unprintable)?;
    waiting(out, &look.waits)
}
