//! Measures the table of tokens with many clients. Run it with
//! `cargo run --release -p strake-token --example authority_scale -- [CLIENTS] [TOKENS]`.
//!
//! Prints a line for each figure: its name, a tab, the value, a tab, the unit. Everything runs on
//! one thread, as at a leader, where one lock guards the table.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};
use strake_proto::{ClientId, GrantNumber, Ino};
use strake_token::Mode;
use strake_token::authority::{Authority, Effect, Times};
use strake_token::held::{Held, Want};
use strake_token::message::{Reply, Request, RequestId, Term};

const TERM: Term = Term(1);
const TIMES: Times =
    Times { hold_min: Duration::from_millis(1), repeat: Duration::from_millis(500) };
/// Moved on by that much before each message, so that no revoke is put off.
const STEP: Duration = Duration::from_millis(2);

/// A table, with its clock and what it has said.
struct Table {
    authority: Authority,
    now: Duration,
    reserved: GrantNumber,
    request: u64,
    said: Vec<(ClientId, Reply)>,
}

impl Table {
    fn new(clients: u64) -> Table {
        let reserved = GrantNumber(1);
        let mut authority = Authority::new(TERM, TIMES, &[], reserved);
        (0..clients).for_each(|client| authority.join(ClientId(client)));
        Table { authority, now: STEP, reserved, request: 0, said: Vec::new() }
    }

    fn receive(&mut self, client: u64, message: Request) {
        self.now += STEP;
        let effects = self.authority.receive(ClientId(client), TERM, message, self.now);
        self.perform(effects.expect("a message that makes sense"));
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(client, reply) => self.said.push((client, reply)),
                Effect::Reserve(upto) => {
                    let more = self.authority.reserved(self.reserved, upto, self.now);
                    self.reserved = upto;
                    self.perform(more);
                }
            }
        }
    }

    fn ask(&mut self, client: u64, ino: u64, mode: Mode) {
        self.request += 1;
        let want = Want { ino: Ino(ino), inode: Some(mode), open: false, range: None };
        let request = RequestId(self.request);
        self.receive(client, Request::Ask { request, wants: vec![want] });
    }

    /// Every client that was asked to gives up all. Returns how many.
    fn answer_revokes(&mut self) -> u64 {
        let mut count = 0;
        for (client, reply) in std::mem::take(&mut self.said) {
            if let Reply::Revoke { ino, upto, .. } = reply {
                count += 1;
                self.receive(client.0, Request::GivenUp { ino, upto, keeps: Held::default() });
            }
        }
        count
    }
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut next = |default| numbers.next().unwrap_or(Ok(default));
    let (Ok(clients @ 2..), Ok(tokens @ 1..)) = (next(1000), next(2_000_000)) else {
        eprintln!("usage: authority_scale [CLIENTS] [TOKENS]      at least two clients");
        std::process::exit(2);
    };
    one_file(clients);
    for waiting in [10, 100, clients - 1].into_iter().filter(|count| *count < clients) {
        queue(clients, waiting);
    }
    others_wait(clients);
    // Last, because the allocator would be busy with what it leaves.
    own_files(clients, tokens);
}

fn print(name: &str, value: f64, unit: &str) {
    println!("{name}\t{value:.4}\t{unit}");
}

fn nanos_each(start: Instant, count: u64) -> f64 {
    start.elapsed().as_nanos() as f64 / count as f64
}

/// Each client takes its share of the files, and gives it back.
fn own_files(clients: u64, tokens: u64) {
    let mut table = Table::new(clients);
    let mut numbers = vec![GrantNumber(1); usize::try_from(tokens).expect("they fit memory")];
    let before = resident();
    let start = Instant::now();
    for file in 0..tokens {
        table.ask(file % clients, file, Mode::Exclusive);
        for (_, reply) in table.said.drain(..) {
            let Reply::Grant { grants, .. } = reply else {
                panic!("nobody else has it: {reply:?}")
            };
            numbers[file as usize] = grants[0].number;
        }
    }
    print("a file of one's own is granted", nanos_each(start, tokens), "ns");
    let bytes = resident().saturating_sub(before) as f64 / tokens as f64;
    print("memory of a token", bytes, "bytes");
    let start = Instant::now();
    for file in 0..tokens {
        let (ino, upto) = (Ino(file), numbers[file as usize]);
        table.receive(file % clients, Request::GivenUp { ino, upto, keeps: Held::default() });
        table.said.clear();
    }
    print("it is given back", nanos_each(start, tokens), "ns");
}

/// All clients look at one file, and then one of them changes it.
fn one_file(clients: u64) {
    let mut table = Table::new(clients);
    let start = Instant::now();
    for client in 0..clients {
        table.ask(client, 1, Mode::Shared);
    }
    print("one file of all clients is granted", nanos_each(start, clients), "ns");
    table.said.clear();
    let start = Instant::now();
    table.ask(0, 1, Mode::Exclusive);
    let revoked = table.answer_revokes();
    assert!(revoked >= clients - 1, "every other client was asked");
    print("it is taken from all of them, for each", nanos_each(start, revoked), "ns");
}

/// One file passes from client to client while others wait for it.
fn queue(clients: u64, waiting: u64) {
    let mut table = Table::new(clients);
    for client in 0..=waiting {
        table.ask(client, 1, Mode::Exclusive);
    }
    let (start, mut passed) = (Instant::now(), 0);
    while passed < 2000 {
        let revoked = std::mem::take(&mut table.said);
        let mut client = None;
        for (from, reply) in revoked {
            if let Reply::Revoke { ino, upto, .. } = reply {
                client = Some(from.0);
                table.receive(from.0, Request::GivenUp { ino, upto, keeps: Held::default() });
            }
        }
        match client {
            Some(client) => {
                passed += 1;
                table.ask(client, 1, Mode::Exclusive);
            }
            None => {
                table.now += STEP;
                let effects = table.authority.tick(table.now);
                table.perform(effects);
            }
        }
    }
    print(&format!("a file passes on, {waiting} wait for it"), nanos_each(start, passed), "ns");
}

/// One file passes to and fro between two clients, while each of the others waits for a file of its
/// own that is not given up.
fn others_wait(clients: u64) {
    let mut table = Table::new(clients + 1);
    for client in 2..clients {
        table.ask(clients, client, Mode::Exclusive);
        table.ask(client, client, Mode::Exclusive);
    }
    table.said.clear();
    table.ask(0, 1, Mode::Exclusive);
    table.ask(1, 1, Mode::Exclusive);
    let (start, mut passed) = (Instant::now(), 0);
    while passed < 2000 {
        for (from, reply) in std::mem::take(&mut table.said) {
            if let Reply::Revoke { ino, upto, .. } = reply
                && ino == Ino(1)
            {
                passed += 1;
                table.receive(from.0, Request::GivenUp { ino, upto, keeps: Held::default() });
                table.ask(from.0, 1, Mode::Exclusive);
            }
        }
    }
    let name = format!("a file passes on, {} wait for others", clients - 2);
    print(&name, nanos_each(start, passed), "ns");
}

/// The memory of this process, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}
