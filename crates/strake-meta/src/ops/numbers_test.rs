//! Clients that replay at the same time get the numbers that they were told, and no number is
//! given twice.

use super::RANGE;
use crate::MemoryKv;
use crate::machine::{self, durable_first};
use crate::testing::{configuration, create, new_inode};
use std::collections::BTreeSet;
use strake_env::Rng;
use strake_proto::meta::{CountedEntry, MetaEntry, MetaOp, MetaReply};
use strake_proto::{ClientId, FileType, Ino, Result, Timestamp};

const CLIENTS: u64 = 3;

/// Metadata at a position of its log.
#[derive(Clone, Default)]
struct World {
    kv: MemoryKv,
    position: u64,
}

impl World {
    /// A file system that each client has joined.
    fn new() -> World {
        let mut world = World::default();
        let format = MetaOp::Format(Box::new(configuration()));
        let entry = MetaEntry { sequence: 0, ..change(1, 0, format).entry };
        let (_, changes) = machine::apply(&world.kv, &entry).expect("formats");
        world.kv.apply(&changes);
        world.position = 1;
        for client in 1..=CLIENTS {
            world.apply(&change(client, 1, MetaOp::Join)).expect("joins");
        }
        world
    }

    /// Applies a change. Returns the reply, and what had to be durable before.
    fn apply(&mut self, counted: &CountedEntry) -> Result<(MetaReply, u64)> {
        self.position += 1;
        let (answer, changes) = machine::apply_counted(&self.kv, counted, self.position)?;
        self.kv.apply(&changes);
        let first = durable_first(&self.kv, counted, &answer)?;
        Ok((answer.outcome?, first))
    }
}

fn change(client: u64, sequence: u64, op: MetaOp) -> CountedEntry {
    let time = Timestamp { seconds: sequence as i64, nanos: 0 };
    let entry = MetaEntry { client: ClientId(client), sequence, time, op };
    CountedEntry { life: client, oldest: sequence.max(1), entry }
}

fn make(client: u64, sequence: u64) -> CountedEntry {
    let name = format!("{client}-{sequence}");
    change(client, sequence, create(Ino::ROOT, &name, new_inode(FileType::Regular)))
}

fn ino_of(reply: &MetaReply) -> Option<Ino> {
    match reply {
        MetaReply::Inode(inode) => Some(inode.attr.ino),
        _ => None,
    }
}

/// Each client's changes in their order, the clients mixed. Returns the replies of each.
fn run(world: &mut World, rng: &mut Rng, told: Option<&[Vec<MetaReply>]>) -> Vec<Vec<MetaReply>> {
    let count = 200;
    let mut replies = vec![Vec::new(); CLIENTS as usize];
    while let Some(client) = {
        let open: Vec<usize> = (0..replies.len()).filter(|at| replies[*at].len() < count).collect();
        (!open.is_empty()).then(|| open[rng.index(open.len())])
    } {
        let (number, done) = (client as u64 + 1, replies[client].len());
        let sequence = done as u64 + 4;
        let last: Option<Ino> = replies[client].last().and_then(ino_of);
        let counted = match (last, sequence % 3, replies[client].last()) {
            (Some(ino), 0, _) => change(number, sequence, MetaOp::NewObject { ino }),
            (_, 1, Some(MetaReply::Object(_))) => {
                change(number, sequence, MetaOp::ReserveObjects { count: 3 })
            }
            (_, _, Some(MetaReply::Inos(reserved))) => {
                let (name, new) = (format!("{number}-{sequence}"), new_inode(FileType::Regular));
                let (parent, name, ino) = (Ino::ROOT, name.into_bytes(), reserved[0]);
                change(number, sequence, MetaOp::CreateAs { parent, name, new, ino })
            }
            _ if sequence.is_multiple_of(5) => {
                change(number, sequence, MetaOp::ReserveInodes { count: 2 })
            }
            _ => make(number, sequence),
        };
        let (reply, _) = world.apply(&counted).expect("applied");
        if let Some(told) = told {
            assert_eq!(reply, told[client][done], "client {number}, change {sequence}");
        }
        replies[client].push(reply);
    }
    replies
}

#[test]
fn replays_in_any_mixture_get_the_numbers_that_were_told() {
    for seed in strake_env::rng::test_seeds(0, 10) {
        let (mut world, mut rng) = (World::new(), Rng::new(seed));
        for client in 1..=CLIENTS {
            // The ranges are taken, and durable.
            let (reply, _) = world.apply(&make(client, 2)).expect("made");
            let ino = ino_of(&reply).expect("an inode");
            world.apply(&change(client, 3, MetaOp::NewObject { ino })).expect("made");
        }
        let durable = world.clone();
        let told = run(&mut world, &mut rng, None);
        for _ in 0..3 {
            run(&mut durable.clone(), &mut rng, Some(&told));
        }
    }
}

#[test]
fn no_number_is_given_twice_and_each_range_is_durable_before_it_is_used() {
    let mut world = World::new();
    let mut inos = BTreeSet::new();
    let mut since = [0; CLIENTS as usize];
    for at in 0..RANGE + 2 {
        for client in 1..=CLIENTS {
            let (reply, first) = world.apply(&make(client, at + 2)).expect("made");
            let ino = ino_of(&reply).expect("an inode");
            assert!(inos.insert(ino), "{ino} is given twice");
            let is_first = at % RANGE == 0;
            assert_eq!(is_first, first == world.position, "change {at} of client {client}");
            assert!(is_first || first == since[client as usize - 1]);
            since[client as usize - 1] = first;
        }
    }
    let faults = crate::check::check(&world.kv).expect("walks").faults;
    assert_eq!(faults, Vec::<String>::new());
}

#[test]
fn an_entry_of_an_earlier_time_gets_the_number_that_it_got_then() {
    let mut world = World::new();
    let mut last = Ino(0);
    for (sequence, client) in (2..20).flat_map(|sequence| [(sequence, 1), (sequence, 2)]) {
        world.position += 1;
        let counted = make(client, sequence);
        let applied = machine::apply_counted_before(&world.kv, &counted, world.position);
        let (answer, changes) = applied.expect("applied");
        world.kv.apply(&changes);
        let ino = ino_of(&answer.outcome.expect("made")).expect("an inode");
        assert!(last == Ino(0) || ino.0 == last.0 + 1, "one counter for all");
        last = ino;
    }
    let (reply, first) = world.apply(&make(1, 20)).expect("made");
    assert!(ino_of(&reply) > Some(last) && first == world.position, "and then a range");
}
