//! The pages of `strake top`: tables made of one look. Pure.
//!
//! A cell is yellow or red where `strake health`, `strake diag explain slow` or the figure itself
//! says that something is wrong. Each row says what Enter explains. A mark stands behind a coloured
//! cell, so that nobody has to see colours.

use super::look::{Look, Node};
use crate::commands::stat::{Line, count, millis, short};
use crate::show::{ShowNsd, availability_name, status_name};
use std::collections::BTreeMap;
use strake_env::links::SILENT_MIN;
use strake_observe::health::{self, Colour, Component};
use strake_observe::requests::Tally;
use strake_observe::{DiskActivity, Finding, UserActivity};
use strake_proto::layout::NsdStatus;

/// A wait is listed yellow after so many nanoseconds, and red after so many.
const HELD_NS: u128 = 10_000_000_000;
const STUCK_NS: u128 = 60_000_000_000;
/// The leader counts for so many seconds how often a file is taken.
const TAKEN_SECONDS: f64 = 60.0;

/// The thing that a row is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// Whatever is slow.
    Slow,
    /// A component of `strake health`.
    Component(String),
    Disk(String),
    Node(String),
    /// A file, with its path if that is known.
    File(u64, Option<String>),
    /// A process, and its name.
    Process(u32, String),
    /// A wait: the thread, and what it waits for.
    Wait(String, String),
}

impl About {
    /// As a head.
    pub(super) fn title(&self) -> String {
        match self {
            About::Slow => "why is it slow".to_owned(),
            About::Component(name) | About::Disk(name) | About::Node(name) => name.clone(),
            About::File(inode, path) => path.clone().unwrap_or_else(|| format!("inode {inode}")),
            About::Process(process, name) => format!("{name} ({process})"),
            About::Wait(thread, reason) => format!("{thread} waits for '{reason}'"),
        }
    }
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) colour: Colour,
}

impl Cell {
    /// The text with its mark. Names of programs and files may hold anything.
    pub(super) fn marked(&self) -> String {
        let clean = |c: char| if c.is_control() { '?' } else { c };
        self.text.chars().map(clean).chain(mark(self.colour).chars()).collect()
    }

    fn is(text: impl Into<String>, colour: Colour) -> Cell {
        Cell { text: text.into(), colour }
    }

    /// Yellow if `is_bad`.
    fn warn(text: impl Into<String>, is_bad: bool) -> Cell {
        Cell::is(text, if is_bad { Colour::Yellow } else { Colour::Green })
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell::is(text, Colour::Green)
    }
}

/// The mark of a colour.
pub(super) fn mark(colour: Colour) -> &'static str {
    match colour {
        Colour::Green => "",
        Colour::Yellow => "!",
        Colour::Red => "!!",
    }
}

/// A row of a table.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) about: About,
    pub(super) cells: Vec<Cell>,
}

/// A page.
pub(super) struct Page {
    pub(super) name: &'static str,
    pub(super) heads: &'static [&'static str],
    /// The columns that hold words. Figures stand at the right of theirs.
    pub(super) left: &'static [usize],
    pub(super) rows: Vec<Row>,
    /// The text of an empty page.
    pub(super) empty: &'static str,
}

/// All pages, in the order of their keys.
pub(super) fn pages(look: &Look) -> [Page; 6] {
    [now(look), disks(look), nodes(look), files(look), clients(look), waits(look)]
}

/// The lines above each page.
pub(super) fn head(look: &Look) -> [String; 3] {
    let (show, rates, size) = (&look.show, &look.rates, short);
    let Line { busy_percent, own_percent, received, sent, disk_ios, disk_ms, .. } = rates;
    let disk_bytes = rates.disk_read_bytes + rates.disk_written_bytes;
    let node = look.nodes.iter().find(|it| it.is_own).map_or(&show.node, |it| &it.name);
    [
        format!("{} at {}, code {}, node {node}", show.name, show.mount, show.code),
        format!(
            "programs  read {}/s {} req/s  write {}/s {} req/s  sync {}/s  names {}/s",
            size(rates.read_bytes),
            count(rates.reads),
            size(rates.written_bytes),
            count(rates.writes),
            count(rates.syncs),
            count(rates.names),
        ),
        format!(
            "machine   cpu {busy_percent:.0}% own {own_percent:.0}%  net in {}/s out {}/s  disks \
             {}/s {} io/s {} ms  dirty {}",
            size(*received),
            size(*sent),
            size(disk_bytes),
            count(*disk_ios),
            millis(*disk_ms),
            size(rates.dirty_bytes as f64),
        ),
    ]
}

fn now(look: &Look) -> Page {
    let component = |it: &Component| {
        let why = it.event.as_ref().map_or(String::new(), |event| format!("{event}: {}", it.text));
        let cells = vec![
            Cell::is(it.colour.to_string(), it.colour),
            Cell::from(it.name.as_str()),
            Cell::from(why),
        ];
        Row { about: About::Component(it.name.clone()), cells }
    };
    let finding = |it: &Finding| {
        let who = it.who.as_ref().map_or(String::new(), |who| format!("; most of it: {who}"));
        let cells = vec![
            Cell::is(format!("{}%", it.percent), Colour::Yellow),
            Cell::from(it.id.as_str()),
            Cell::from(format!("{}{who}", it.title)),
        ];
        Row { about: About::Slow, cells }
    };
    let mut bad: Vec<&Component> = look.health.components.iter().collect();
    bad.retain(|it| it.colour != Colour::Green);
    bad.sort_by_key(|it| std::cmp::Reverse(it.colour));
    let mut rows: Vec<Row> = bad.into_iter().map(component).collect();
    rows.extend(look.slow.findings.iter().map(finding));
    rows.extend(look.show.lateness().map(|late| Row {
        about: About::Slow,
        cells: vec![Cell::is("late", Colour::Yellow), "figures".into(), late.into()],
    }));
    Page {
        name: "now",
        heads: &["how", "what", "why"],
        left: &[0, 1, 2],
        rows,
        empty: "All is well: every component is green, and nothing was slow in the last minute.",
    }
}

/// Rates over the time of an activity.
struct Rates {
    seconds: f64,
}

impl Rates {
    fn of(look: &Look) -> Rates {
        Rates { seconds: (look.activity.nanos as f64 / 1e9).max(0.001) }
    }

    fn count(&self, of: Tally) -> Cell {
        count(of.count as f64 / self.seconds).into()
    }

    fn bytes(&self, of: Tally) -> Cell {
        short(of.bytes as f64 / self.seconds).into()
    }
}

/// The mean time of one, in milliseconds.
fn mean(of: Tally) -> String {
    millis(of.nanos as f64 / of.count.max(1) as f64 / 1e6)
}

fn disks(look: &Look) -> Page {
    let row = |nsd: &ShowNsd| {
        let did = look.activity.disks.iter().find(|it| it.nsd.0 == nsd.id);
        Row { about: About::Disk(nsd.name.clone()), cells: disk(look, nsd, did) }
    };
    let heads = &[
        "disk", "state", "used", "rd/s", "read", "wr/s", "writ", "sync/s", "ms rd", "ms wr",
        "ms sync", "bad", "where",
    ];
    let rows = look.show.nsds.iter().map(row).collect();
    Page { name: "disks", heads, left: &[0, 1, 12], rows, empty: "There is no disk." }
}

/// The cell that shows what the disk's event is about has the colour of the event.
fn disk(look: &Look, nsd: &ShowNsd, did: Option<&DiskActivity>) -> Vec<Cell> {
    let component = look.health.components.iter().find(|it| it.name == nsd.name);
    let event = component.and_then(|it| it.event.as_deref()).unwrap_or_default();
    let colour = component.map_or(Colour::Green, |it| it.colour);
    let low = |it: &Component| it.name == "space" && it.text.starts_with(&format!("{} ", nsd.name));
    let is_low = look.health.components.iter().any(low);
    let (is_slow, is_bad) = (event == health::NSD_SLOW.id, event == health::NSD_BAD.id);
    let state = match nsd.status {
        NsdStatus::Ready => availability_name(nsd.availability),
        status => status_name(status),
    };
    let used = nsd.total_bytes.zip(nsd.free_bytes).map_or("-".to_owned(), |(total, free)| {
        format!("{:.0}%", total.saturating_sub(free) as f64 * 100.0 / total.max(1) as f64)
    });
    let (rates, idle) = (Rates::of(look), DiskActivity::default());
    let DiskActivity { reads, writes, syncs, .. } = *did.unwrap_or(&idle);
    let slowest = [reads, writes, syncs].map(|it| it.nanos / it.count.max(1));
    let slowest = slowest.into_iter().max();
    // The event says that one kind is slow; the slowest of now is shown so.
    let time = |of: Tally| {
        let is_it = is_slow && Some(of.nanos / of.count.max(1)) == slowest;
        Cell::warn(mean(of), is_it)
    };
    let bad = (nsd.bad_strips + nsd.bad_pages)
        .saturating_sub(nsd.repaired_strips + nsd.mended_pages)
        .to_string();
    let colour = if is_slow || is_bad { Colour::Green } else { colour };
    vec![
        nsd.name.as_str().into(),
        Cell::is(state, colour),
        Cell::warn(used, is_low),
        rates.count(reads),
        rates.bytes(reads),
        rates.count(writes),
        rates.bytes(writes),
        rates.count(syncs),
        time(reads),
        time(writes),
        time(syncs),
        Cell::warn(bad, is_bad),
        nsd.path.as_str().into(),
    ]
}

fn nodes(look: &Look) -> Page {
    let heads = &[
        "node", "disks up", "mounted", "trip ms", "silent s", "again", "queued", "waits", "roles",
        "remarks",
    ];
    let rows = look.nodes.iter().map(|it| node(look, it)).collect();
    Page { name: "nodes", heads, left: &[0, 2, 8, 9], rows, empty: "No node is known." }
}

fn node(look: &Look, node: &Node) -> Row {
    let up = |name: &&String| {
        let nsd = look.show.nsds.iter().find(|nsd| nsd.name == **name);
        nsd.is_some_and(|nsd| nsd.availability.readable() && nsd.availability.writable())
    };
    let (all, up) = (node.disks.len(), node.disks.iter().filter(up).count());
    let lately = node.lately.as_ref();
    let trip = lately.and_then(|it| it.trip_ns).or(node.link.as_ref().and_then(|it| it.median_ns));
    let again = lately.filter(|it| it.packets > 0).map_or("-".to_owned(), |it| {
        format!("{:.1}%", it.packets_again as f64 * 100.0 / it.packets as f64)
    });
    let silence = node.link.as_ref().filter(|it| it.connections > 0).map(|it| it.silence_ns);
    let is_silent = silence.is_some_and(|it| u128::from(it) >= SILENT_MIN.as_nanos());
    let waited = |it: &&strake_observe::WaiterSnapshot| it.detail.contains(&node.name);
    let waits = look.waits.iter().filter(waited).count();
    let leads = look.tokens.as_ref().is_some_and(|view| view.leader == node.name);
    let own = format!("this node, cpu {:.0}%", look.rates.busy_percent);
    let remarks = [node.is_own.then_some(own), leads.then(|| "leads".to_owned())];
    let remarks: Vec<String> = remarks.into_iter().flatten().collect();
    let dash = || "-".to_owned();
    let cells = vec![
        node.name.as_str().into(),
        Cell::warn(if all > 0 { format!("{up}/{all}") } else { dash() }, up < all),
        if node.is_mounted { "yes" } else { "-" }.into(),
        Cell::warn(
            trip.map_or_else(dash, |nanos| millis(nanos as f64 / 1e6)),
            lately.is_some_and(|it| it.is_slow),
        ),
        Cell::is(
            silence.map_or_else(dash, |nanos| format!("{:.0}", nanos as f64 / 1e9)),
            if is_silent { Colour::Red } else { Colour::Green },
        ),
        Cell::warn(again, lately.is_some_and(|it| it.is_lossy)),
        node.link.as_ref().map_or_else(dash, |it| short(it.queued_bytes as f64)).into(),
        Cell::from(waits.to_string()),
        if node.roles.is_empty() { "-" } else { &node.roles }.into(),
        remarks.join(", ").into(),
    ];
    Row { about: About::Node(node.name.clone()), cells }
}

/// Requests about one file, or of one process.
#[derive(Default)]
struct Sums {
    parts: [Tally; 4],
    waits: BTreeMap<String, u64>,
    /// The name of the process, and the file whose requests took longest.
    name: Option<String>,
    hottest: u64,
}

impl Sums {
    fn add(&mut self, user: &UserActivity) {
        let more = [user.reads, user.writes, user.syncs, user.names];
        for (sum, more) in self.parts.iter_mut().zip(more) {
            sum.count += more.count;
            sum.nanos += more.nanos;
            sum.bytes += more.bytes;
        }
        *self.waits.entry(user.waited_for.clone()).or_default() += user.waited_ns;
        // The first one is the one that took longest.
        if self.hottest == 0 {
            (self.name, self.hottest) = (user.name.clone(), user.inode);
        }
    }

    fn all(&self) -> Tally {
        let sum = |of: fn(&Tally) -> u64| self.parts.iter().map(of).sum();
        Tally { count: sum(|it| it.count), nanos: sum(|it| it.nanos), bytes: sum(|it| it.bytes) }
    }

    /// The figures of both pages. `is_named` says that something slow is most of all its.
    fn cells(&self, rates: &Rates, is_named: bool) -> Vec<Cell> {
        let [reads, writes, syncs, names] = self.parts;
        let longest = self.waits.iter().max_by_key(|(_, nanos)| **nanos);
        let waited = longest.filter(|(_, nanos)| **nanos > 0);
        vec![
            rates.count(reads),
            rates.bytes(reads),
            rates.count(writes),
            // A write that is made durable by itself counts as a sync, with its bytes.
            rates.bytes(Tally { bytes: writes.bytes + syncs.bytes, ..writes }),
            rates.count(syncs),
            rates.count(names),
            Cell::warn(mean(self.all()), is_named),
            waited.map_or("-", |(reason, _)| reason.as_str()).into(),
        ]
    }
}

/// The users by file or by process, the one whose requests took longest first.
fn sums(look: &Look, key: fn(&UserActivity) -> u64) -> Vec<(u64, Sums)> {
    let mut sums: BTreeMap<u64, Sums> = BTreeMap::new();
    look.activity.users.iter().for_each(|user| sums.entry(key(user)).or_default().add(user));
    let mut sums: Vec<(u64, Sums)> = sums.into_iter().collect();
    sums.sort_by_key(|(_, sums)| std::cmp::Reverse(sums.all().nanos));
    sums
}

fn file_name(look: &Look, inode: u64) -> String {
    let unknown = || if inode == 0 { "others".to_owned() } else { format!("inode {inode}") };
    look.paths.get(&inode).cloned().unwrap_or_else(unknown)
}

/// Whether something slow names it as the one that is concerned most.
fn is_named(look: &Look, inode: Option<u64>, process: Option<u32>) -> bool {
    let mut who = look.slow.findings.iter().filter_map(|it| it.who.as_ref());
    who.any(|it| Some(it.inode) == inode || Some(it.process) == process)
}

fn files(look: &Look) -> Page {
    let rates = Rates::of(look);
    let mut sums = sums(look, |user| user.inode);
    let hot = look.tokens.iter().flat_map(|view| &view.hot);
    // A file may be hot between nodes although nothing of this mount asks for it now.
    for file in hot.filter(|file| file.taken_per_second > 0.0) {
        if sums.iter().all(|(inode, _)| *inode != file.inode) {
            sums.push((file.inode, Sums::default()));
        }
    }
    let row = |(inode, sums): &(u64, Sums)| {
        let mut hot = look.tokens.iter().flat_map(|view| &view.hot);
        let taken = hot.find(|file| file.inode == *inode).map_or(0.0, |it| it.taken_per_second);
        let mut cells = sums.cells(&rates, is_named(look, Some(*inode), None));
        cells.insert(7, count(taken).into());
        cells.push(file_name(look, *inode).into());
        Row { about: About::File(*inode, look.paths.get(inode).cloned()), cells }
    };
    let heads = &[
        "rd/s",
        "read",
        "wr/s",
        "writ",
        "sync/s",
        "names/s",
        "ms",
        "taken/s",
        "waits for",
        "file",
    ];
    let rows = sums.iter().map(row).collect();
    Page { name: "files", heads, left: &[8, 9], rows, empty: "No program asks for a file now." }
}

fn clients(look: &Look) -> Page {
    let rates = Rates::of(look);
    let row = |(process, sums): &(u64, Sums)| {
        let process = u32::try_from(*process).unwrap_or(0);
        let name = match (process, &sums.name) {
            (0, _) => "others".to_owned(),
            (_, name) => name.clone().unwrap_or_else(|| "?".to_owned()),
        };
        let mut cells = sums.cells(&rates, is_named(look, None, Some(process)));
        cells.insert(0, format!("{name} {process}").into());
        cells.push(file_name(look, sums.hottest).into());
        Row { about: About::Process(process, name), cells }
    };
    let mut rows: Vec<Row> = sums(look, |user| user.process.into()).iter().map(row).collect();
    // Only other nodes know what their programs do. The leader knows what is taken from them.
    for node in look.nodes.iter().filter(|it| it.is_mounted && !it.is_own) {
        let hot = look.tokens.iter().flat_map(|view| &view.hot);
        let from = hot.flat_map(|file| &file.taken_from).filter(|(from, _)| *from == node.name);
        let taken = from.map(|(_, count)| *count).sum::<u64>() as f64 / TAKEN_SECONDS;
        let waits = look.tokens.iter().flat_map(|view| &view.waits);
        let waits = waits.filter(|it| it.node == node.name).count();
        let mut cells = vec![Cell::from(format!("mount on {}", node.name))];
        cells.resize(8, Cell::from("-"));
        cells.push(
            if waits > 0 { format!("{waits} requests for files") } else { "-".into() }.into(),
        );
        cells.push(format!("{}/s are taken", count(taken)).into());
        rows.push(Row { about: About::Node(node.name.clone()), cells });
    }
    let heads =
        &["client", "rd/s", "read", "wr/s", "writ", "sync/s", "names/s", "ms", "waits for", "file"];
    Page { name: "clients", heads, left: &[0, 8, 9], rows, empty: "No program asks for anything." }
}

fn waits(look: &Look) -> Page {
    let row = |it: &strake_observe::WaiterSnapshot| {
        // A lock of a program may be held for as long as the program likes.
        let colour = match it.waited.as_nanos() {
            _ if it.reason == "lock" => Colour::Green,
            STUCK_NS.. => Colour::Red,
            HELD_NS.. => Colour::Yellow,
            _ => Colour::Green,
        };
        let cells = vec![
            Cell::is(format!("{:.1}", it.waited.as_secs_f64()), colour),
            it.thread.as_str().into(),
            format!("{} {}", it.reason, it.detail).trim_end().into(),
        ];
        Row { about: About::Wait(it.thread.clone(), it.reason.clone()), cells }
    };
    let rows = look.waits.iter().map(row).collect();
    let heads = &["seconds", "thread", "waits for"];
    Page { name: "waits", heads, left: &[1, 2], rows, empty: "Nothing waits." }
}
