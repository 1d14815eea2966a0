//! Whole frames of `strake top`, on a terminal in memory.

use super::super::look::{Look, Node};
use super::*;
use crate::commands::stat;
use crate::show::Show;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::json;
use std::collections::BTreeMap;
use strake_observe::health::{self, Component, Health};
use strake_observe::requests::Tally;
use strake_observe::slow_report::Who;
use strake_observe::{
    Activity, DiskActivity, Finding, HotFile, LinkActivity, LinkRow, SlowReport, TokensView,
    UserActivity, WaiterSnapshot,
};
use strake_proto::{NsdId, Timestamp};

fn show() -> Show {
    let nsd = |id: u32, availability: &str| {
        json!({ "id": id, "name": format!("nsd{id}"), "path": format!("n{id}:/srv/nsd{id}"),
                "failureGroup": id, "holdsMetadata": true, "status": "Ready",
                "availability": availability, "totalBytes": 1000, "freeBytes": 250 * u64::from(id),
                "badStrips": 0, "repairedStrips": 0 })
    };
    serde_json::from_value(json!({ "name": "demo", "cluster": "", "code": "2x", "blockSize": 0,
        "createdSeconds": 0, "mount": "/mnt/demo", "data": "", "pid": 7, "node": "n1",
        "formatVersion": 1, "version": "", "settings": [],
        "nsds": [nsd(1, "Up"), nsd(2, "Up"), nsd(3, "Down")] }))
    .expect("a show")
}

fn tally(count: u64, millis: u64, bytes: u64) -> Tally {
    Tally { count, nanos: millis * 1_000_000, bytes }
}

fn user(process: u32, name: &str, inode: u64, writes: Tally, waits: &str) -> UserActivity {
    UserActivity {
        process,
        name: Some(name.to_owned()),
        inode,
        writes,
        waited_for: waits.to_owned(),
        waited_ns: writes.nanos / 2,
        ..UserActivity::default()
    }
}

fn activity() -> Activity {
    let disk = |nsd, writes| DiskActivity { nsd: NsdId(nsd), writes, ..DiskActivity::default() };
    Activity {
        nanos: 4_000_000_000,
        disks: vec![disk(1, tally(40, 80, 40 << 20)), disk(2, tally(40, 3200, 40 << 20))],
        users: vec![
            user(4711, "dd", 12, tally(40, 3600, 40 << 20), "NSD I/O completion"),
            user(815, "rsync\u{1b}[2J", 13, tally(4, 2, 400), ""),
        ],
        links: vec![LinkActivity {
            node: "n2".to_owned(),
            packets: 1000,
            packets_again: 40,
            is_lossy: true,
            trip_ns: Some(1_500_000),
            is_slow: false,
        }],
    }
}

fn findings() -> Vec<Finding> {
    let who = Who {
        process: 4711,
        name: Some("dd".to_owned()),
        inode: 12,
        file: Some("/mnt/demo/film".to_owned()),
        nanos: 3_600_000_000,
    };
    vec![Finding {
        id: "slow-disk".to_owned(),
        title: "The disk nsd2 is slow".to_owned(),
        nanos: 3_000_000_000,
        percent: 83,
        evidence: Vec::new(),
        advice: Vec::new(),
        who: Some(who),
    }]
}

fn look() -> Look {
    let slow = SlowReport {
        asked_ns: 60_000_000_000,
        known_ns: 60_000_000_000,
        busy_ns: 4_000_000_000,
        requests: 44,
        requests_ns: 3_602_000_000,
        busy_requests_ns: 3_602_000_000,
        named_from_ns: 720_000_000,
        spent: Vec::new(),
        findings: findings(),
    };
    let link = LinkRow { connections: 2, silence_ns: 4_200_000_000, ..LinkRow::default() };
    let node = |name: &str, disks: &[&str], is_own: bool, link: Option<LinkRow>| Node {
        name: name.to_owned(),
        roles: "server,client".to_owned(),
        disks: disks.iter().map(|it| (*it).to_owned()).collect(),
        is_mounted: true,
        is_own,
        lately: link.is_some().then(|| activity().links[0].clone()),
        link,
    };
    Look {
        show: show(),
        health: Health::of(vec![
            Component::green("daemon", "process 7"),
            Component::green("nsd1", "up"),
            Component::with("nsd2", &health::NSD_SLOW, "a write takes 80.0 ms, others 2.0 ms"),
            Component::with("nsd3", &health::NSD_LOST, "its container is gone"),
        ]),
        rates: stat::Line { busy_percent: 34.0, written_bytes: 1e7, writes: 10.0, ..rates() },
        activity: activity(),
        waits: vec![WaiterSnapshot {
            thread: "fuse-3".to_owned(),
            reason: "token".to_owned(),
            detail: "inode 12, held by n2".to_owned(),
            since: Timestamp::default(),
            waited: Duration::from_millis(12_300),
            ..WaiterSnapshot::default()
        }],
        slow,
        nodes: vec![
            node("n1", &["nsd1", "nsd2"], true, None),
            node("n2", &["nsd3"], false, Some(link)),
        ],
        tokens: Some(TokensView {
            leader: "n2".to_owned(),
            files: 2,
            hot: vec![HotFile {
                inode: 12,
                taken_per_second: 2.5,
                taken_from: vec![("n2".to_owned(), 150)],
                ..HotFile::default()
            }],
            ..TokensView::default()
        }),
        paths: BTreeMap::from([(12, "/mnt/demo/film".to_owned())]),
    }
}

fn rates() -> stat::Line {
    stat::Line { own_percent: 12.0, disk_ios: 20.0, disk_ms: 41.0, ..stat::Line::default() }
}

/// The frame as text, without blanks at the ends of lines, and what of it is in a colour.
fn frame(screen: &mut Screen, width: u16, height: u16) -> (String, Vec<String>) {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal.draw(|frame| screen.draw(frame)).expect("memory takes all");
    let buffer = terminal.backend().buffer();
    let (mut text, mut coloured) = (String::new(), Vec::new());
    for y in 0..height {
        let (mut line, mut last) = (String::new(), Color::Reset);
        for x in 0..width {
            let cell = &buffer[(x, y)];
            line.push_str(cell.symbol());
            if cell.fg != Color::Reset && cell.fg != last {
                coloured.push(format!("{}: ", cell.fg));
            }
            if let Some(word) = coloured.last_mut().filter(|_| cell.fg != Color::Reset) {
                word.push_str(cell.symbol());
            }
            last = cell.fg;
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    (text, coloured.iter().map(|it| it.split_whitespace().collect::<Vec<_>>().join(" ")).collect())
}

/// The lines above each page.
const HEAD: &str = "\
red demo at /mnt/demo, code 2x, node n1
programs  read 0/s 0 req/s  write 9.5M/s 10 req/s  sync 0/s  names 0/s
machine   cpu 34% own 12%  net in 0/s out 0/s  disks 0/s 20 io/s 41 ms  dirty 0
 1 now!!  2 disks!!  3 nodes!!  4 files!  5 clients!  6 waits!
";

/// The text below them on each page.
const PAGES: [&str; 6] = [
    "\
how      what       why
red!!    nsd3       nsd_lost: its container is gone
yellow!  nsd2       nsd_slow: a write takes 80.0 ms, others 2.0 ms
83%!     slow-disk  The disk nsd2 is slow; most of it: dd (4711), /mnt/demo/film
",
    "\
disk  state   used  rd/s  read  wr/s  writ  sync/s  ms rd  ms wr  ms sync  bad  where
nsd1  up       75%     0     0    10   10M       0      0   2.00        0    0  n1:/srv/nsd1
nsd2  up       50%     0     0    10   10M       0      0    80!        0    0  n2:/srv/nsd2
nsd3  down!!   25%     0     0     0     0       0      0      0        0    0  n3:/srv/nsd3
",
    "\
node  disks up  mounted  trip ms  silent s  again  queued  waits  roles          remarks
n1         2/2  yes            -         -      -       -      0  server,client  this node, cpu 34%
n2        0/1!  yes         1.50       4!!  4.0%!       0      1  server,client  leads
",
    "\
rd/s  read  wr/s  writ  sync/s  names/s    ms  taken/s  waits for           file
   0     0    10   10M       0        0   90!      2.5  NSD I/O completion  /mnt/demo/film
   0     0   1.0   100       0        0  0.50        0                      inode 13
",
    "\
client         rd/s  read  wr/s  writ  sync/s  names/s    ms  waits for           file
dd 4711           0     0    10   10M       0        0   90!  NSD I/O completion  /mnt/demo/film
rsync?[2J 815     0     0   1.0   100       0        0  0.50                      inode 13
mount on n2       -     -     -     -       -        -     -  -                   2.5/s are taken
",
    "\
seconds  thread  waits for
  12.3!  fuse-3  token inode 12, held by n2
",
];

const KEYS: &str = "1-6 page  ↑↓ row  Enter explain  s why is it slow  ? keys  q end\n";

/// The coloured words of each page.
const COLOURS: [&[&str]; 6] = [
    &["Red: red!!", "Yellow: yellow!", "Yellow: 83%!"],
    &["Yellow: 80!", "Red: down!!"],
    &["Yellow: 0/1!", "Red: 4!!", "Yellow: 4.0%!"],
    &["Yellow: 90!"],
    &["Yellow: 90!"],
    &["Yellow: 12.3!"],
];

fn shown() -> Screen {
    let mut screen = Screen::default();
    screen.looked(&look());
    screen
}

/// The text between the head and the keys, without empty lines at the end.
fn middle(screen: &mut Screen) -> String {
    let (text, _) = frame(screen, 110, 12);
    let inside = text.strip_prefix(HEAD).and_then(|text| text.strip_suffix(KEYS));
    format!("{}\n", inside.unwrap_or_else(|| panic!("{text}")).trim_end())
}

#[test]
fn each_page_has_its_key_and_shows_what_is_wrong_in_a_colour_and_by_a_mark() {
    let mut screen = shown();
    for (at, key) in ('1'..='6').enumerate() {
        assert_eq!(screen.key(KeyCode::Char(key)), Effect::Nothing);
        assert_eq!(middle(&mut screen), PAGES[at]);
        let (_, coloured) = frame(&mut screen, 110, 12);
        assert_eq!(coloured[..2], ["Red: red", "Red: 1 now!! 2 disks!! 3 nodes!!"]);
        assert_eq!(coloured[3..], *COLOURS[at]);
    }
    screen.key(KeyCode::Tab);
    assert_eq!(middle(&mut screen), PAGES[0], "behind the last page comes the first one");
    screen.key(KeyCode::Left);
    assert_eq!(middle(&mut screen), PAGES[5]);
}

#[test]
fn enter_explains_the_chosen_row_and_escape_goes_back() {
    let mut screen = shown();
    screen.key(KeyCode::Char('2'));
    screen.key(KeyCode::Down);
    let nsd2 = About::Disk("nsd2".to_owned());
    assert_eq!(screen.key(KeyCode::Enter), Effect::Explain(nsd2.clone()));
    assert_eq!(middle(&mut screen), "nsd2\n…\n");
    screen.explained(&About::Slow, "of an earlier question".to_owned());
    assert_eq!(middle(&mut screen), "nsd2\n…\n");
    screen.explained(&nsd2, "It is slow.\n- Look at it.\u{7}\n".to_owned());
    assert_eq!(middle(&mut screen), "nsd2\nIt is slow.\n- Look at it.?\n");
    screen.looked(&look());
    assert_eq!(middle(&mut screen), "nsd2\nIt is slow.\n- Look at it.?\n", "a look leaves it");
    screen.key(KeyCode::Esc);
    assert_eq!(middle(&mut screen), PAGES[1]);
    assert_eq!(screen.key(KeyCode::Char('s')), Effect::Explain(About::Slow));
    assert_eq!(screen.key(KeyCode::Char('q')), Effect::End);
}

#[test]
fn each_page_knows_what_its_rows_are_about() {
    let mut screen = shown();
    let film = Some("/mnt/demo/film".to_owned());
    let abouts = [
        About::Component("nsd3".to_owned()),
        About::Disk("nsd1".to_owned()),
        About::Node("n1".to_owned()),
        About::File(12, film),
        About::Process(4711, "dd".to_owned()),
        About::Wait("fuse-3".to_owned(), "token".to_owned()),
    ];
    for (key, about) in ('1'..='6').zip(abouts) {
        screen.key(KeyCode::Char(key));
        assert_eq!(screen.key(KeyCode::Enter), Effect::Explain(about));
    }
}

#[test]
fn the_chosen_row_stays_the_same_thing_where_rows_come_and_go() {
    let mut screen = shown();
    let chosen = |screen: &mut Screen| {
        let effect = screen.key(KeyCode::Enter);
        screen.key(KeyCode::Esc);
        effect
    };
    screen.key(KeyCode::Char('2'));
    screen.key(KeyCode::End);
    let nsd3 = Effect::Explain(About::Disk("nsd3".to_owned()));
    assert_eq!(chosen(&mut screen), nsd3);
    let mut later = look();
    later.show.nsds.remove(0);
    screen.looked(&later);
    assert_eq!(chosen(&mut screen), nsd3, "it has moved up");
    later.show.nsds.pop();
    screen.looked(&later);
    assert_eq!(chosen(&mut screen), Effect::Explain(About::Disk("nsd2".to_owned())));
    later.show.nsds.clear();
    screen.looked(&later);
    assert_eq!(chosen(&mut screen), Effect::Nothing);
    let (text, _) = frame(&mut screen, 110, 12);
    assert!(text.contains("\n\nThere is no disk.\n"), "{text}");
}

#[test]
fn more_rows_than_fit_move_with_the_chosen_one() {
    let mut screen = shown();
    screen.key(KeyCode::Char('2'));
    screen.key(KeyCode::PageDown);
    let (text, _) = frame(&mut screen, 60, 7);
    assert!(text.contains("nsd3") && !text.contains("nsd2"), "{text}");
    screen.key(KeyCode::Home);
    let (text, _) = frame(&mut screen, 60, 7);
    assert!(text.contains("nsd1") && !text.contains("nsd2"), "{text}");
    // A terminal without room is no fault.
    for (width, height) in [(1, 1), (3, 5), (200, 2)] {
        frame(&mut screen, width, height);
    }
}

#[test]
fn a_text_moves_and_its_lines_go_on_below_their_first_word() {
    let lines = wrap("1. one two three\n   - four five\n\nabcdefghijklmnop", 12);
    let wanted = ["1. one two", "three", "   - four", "     five", "", "abcdefghijkl", "mnop"];
    assert_eq!(lines, wanted);
    let mut screen = shown();
    screen.key(KeyCode::Char('s'));
    let text: String = (0..30).map(|line| format!("line {line}\n")).collect();
    screen.explained(&About::Slow, text);
    assert!(middle(&mut screen).starts_with("why is it slow  (more below)\nline 0\n"));
    screen.key(KeyCode::End);
    assert!(middle(&mut screen).ends_with("line 28\nline 29\n"));
    screen.key(KeyCode::Up);
    assert!(middle(&mut screen).ends_with("line 27\nline 28\n"), "End went no further than it is");
}

#[test]
fn a_daemon_that_does_not_answer_leaves_the_last_figures_with_their_age() {
    let mut screen = shown();
    screen.aged(Duration::from_secs(12));
    let last = |screen: &mut Screen| {
        let (text, coloured) = frame(screen, 110, 12);
        assert!(text.contains("nsd_lost"), "{text}");
        (text.lines().last().map(str::to_owned), coloured.last().cloned())
    };
    let old = "as of 12 s ago: something does not answer";
    assert_eq!(last(&mut screen), (Some(old.to_owned()), Some(format!("Yellow: {old}"))));
    screen.failed("the daemon is gone".to_owned());
    let gone = "as of 12 s ago: the daemon is gone";
    assert_eq!(last(&mut screen), (Some(gone.to_owned()), Some(format!("Red: {gone}"))));
    screen.looked(&look());
    assert_eq!(middle(&mut screen), PAGES[0]);
}

#[test]
fn nothing_wrong_is_said_in_words() {
    let mut well = look();
    well.health = Health::of(vec![Component::green("daemon", "process 7")]);
    well.slow.findings.clear();
    let mut screen = Screen::default();
    screen.looked(&well);
    let (text, _) = frame(&mut screen, 110, 12);
    assert!(text.starts_with("green demo") && text.contains("All is well"), "{text}");
}
