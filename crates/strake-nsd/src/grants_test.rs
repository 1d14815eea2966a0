//! Grants against a model: clients that write within what they were told, a disk that must have
//! space for it, and a journal that a power cut shortens.

use super::*;
use strake_env::Rng;
use strake_env::rng::{test_scale, test_seeds};

/// A strip of a whole block; floors are two of them.
const STRIP: u64 = 8;
const FLOOR: u64 = 2 * STRIP;
const TOTAL: u64 = 2000;
const CLIENTS: u64 = 4;

fn holder(number: u64) -> Holder {
    (ClientId(number), Epoch(1))
}

/// What a mount knows and owes.
#[derive(Clone)]
struct Client {
    holder: Holder,
    number: u64,
    /// What it may still send, as far as it knows.
    view: u64,
    target: u64,
    /// Accepted from applications and not sent.
    claimed: u64,
    /// Replaced, and freed with the next commit.
    replaced: u64,
    /// Stored and not replaced.
    stored: u64,
}

/// What the server's journal says, in order.
#[derive(Clone, Copy)]
enum Change {
    Growth(Holder, u64),
    Overwrite(Holder, u64),
    Grants,
}

/// An entry of the journal. Each has what changed of the grants.
struct Entry {
    change: Change,
    grants: Vec<(Holder, Option<Grant>)>,
}

struct World {
    rng: Rng,
    grants: Grants,
    used: u64,
    clients: Vec<Client>,
    lives: u64,
    /// Entries that a power cut may take.
    journal: Vec<Entry>,
    durable: BTreeMap<Holder, Grant>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut world = World {
            rng: Rng::new(seed),
            grants: Grants::default(),
            used: 0,
            clients: Vec::new(),
            lives: 0,
            journal: Vec::new(),
            durable: BTreeMap::new(),
        };
        (0..CLIENTS).for_each(|_| world.join());
        world
    }

    fn supply(&self) -> Supply {
        Supply { free: TOTAL - self.used, total: TOTAL }
    }

    fn join(&mut self) {
        self.lives += 1;
        let holder = holder(self.lives);
        self.clients.push(Client {
            holder,
            number: 0,
            view: 0,
            target: 0,
            claimed: 0,
            replaced: 0,
            stored: 0,
        });
        self.ask(self.clients.len() - 1, 0, u64::MAX);
    }

    fn ask(&mut self, at: usize, extra: u64, ahead: u64) {
        let supply = self.supply();
        let client = &mut self.clients[at];
        client.number += 1;
        let need = client.claimed + FLOOR + extra;
        let ask = Ask { number: client.number, floor: FLOOR, need, ahead };
        let answer = self.grants.ask(client.holder, ask, supply).expect("few clients");
        (client.view, client.target) = (answer.granted, answer.target);
        self.note(Change::Grants);
        self.sync();
    }

    fn note(&mut self, change: Change) {
        let grants = self.grants.take_changes();
        self.journal.push(Entry { change, grants });
    }

    fn sync(&mut self) {
        for (holder, grant) in self.journal.drain(..).flat_map(|entry| entry.grants) {
            match grant {
                Some(grant) => self.durable.insert(holder, grant),
                None => self.durable.remove(&holder),
            };
        }
    }

    fn claim(&mut self, at: usize) {
        let more = 1 + self.rng.below(3 * STRIP);
        for attempt in 0..2 {
            let client = &mut self.clients[at];
            if client.claimed + more + FLOOR <= client.view {
                client.claimed += more;
                return;
            }
            if attempt == 0 {
                self.ask(at, more, u64::MAX);
            }
        }
    }

    fn take(&mut self, at: usize, units: u64, what: &str) {
        let holder = self.clients[at].holder;
        let client = &mut self.clients[at];
        let free = TOTAL - self.used;
        assert!(units <= free, "the disk is full: {what}");
        assert!(self.grants.may_take(Some(client.holder), units, free), "refused: {what}");
        self.grants.take(Some(holder), units);
        self.grants.land(Some(holder), units);
        self.used += units;
        client.view = client.view.saturating_sub(units);
    }

    /// Sends what was accepted. It must find space.
    fn send(&mut self, at: usize, most: u64) {
        let units = self.clients[at].claimed.min(most);
        self.take(at, units, "what was accepted");
        let client = &mut self.clients[at];
        client.claimed -= units;
        client.stored += units;
        let holder = client.holder;
        self.note(Change::Growth(holder, units));
    }

    /// Sends a block that overwrites, if there is room for it now. True if it did.
    fn overwrite(&mut self, at: usize) -> bool {
        let client = &self.clients[at];
        let may = client.target >= FLOOR
            && client.stored >= STRIP + client.replaced
            && client.claimed + STRIP <= client.view;
        if may {
            self.take(at, STRIP, "what overwrites");
            let client = &mut self.clients[at];
            client.replaced += STRIP;
            let holder = client.holder;
            self.note(Change::Overwrite(holder, STRIP));
        }
        may
    }

    fn commit(&mut self, at: usize) {
        let replaced = std::mem::take(&mut self.clients[at].replaced);
        self.used -= replaced;
        let answer = self.grants.top_up(self.clients[at].holder, self.supply());
        self.note(Change::Grants);
        self.sync();
        (self.clients[at].view, self.clients[at].target) = (answer.granted, answer.target);
    }

    /// The server dies and starts again. What was not durable may be gone, from some entry on.
    fn restart(&mut self) {
        let kept = self.rng.index(self.journal.len() + 1);
        let lost = self.journal.split_off(kept);
        self.sync();
        for entry in lost.into_iter().rev() {
            let find = |holder: Holder| move |client: &&mut Client| client.holder == holder;
            match entry.change {
                Change::Growth(holder, units) => {
                    self.used -= units;
                    // What a dead client wrote is nobody's.
                    if let Some(client) = self.clients.iter_mut().find(find(holder)) {
                        client.claimed += units;
                        client.stored -= units;
                    }
                }
                Change::Overwrite(holder, units) => {
                    self.used -= units;
                    if let Some(client) = self.clients.iter_mut().find(find(holder)) {
                        // It is dirty again. That it replaces something helps nobody here.
                        client.replaced -= units;
                        client.claimed += units;
                    }
                }
                Change::Grants => {}
            }
        }
        self.grants = Grants::default();
        for (holder, grant) in &self.durable {
            self.grants.restore(*holder, *grant).expect("few clients");
        }
        self.grants.take_changes();
    }

    /// A client dies, and is fenced. Another one comes.
    fn fence(&mut self, at: usize) {
        let dead = self.clients.swap_remove(at);
        self.grants.remove(dead.holder);
        self.note(Change::Grants);
        self.used -= dead.replaced;
        self.join();
    }

    /// One client writes all that it can have.
    fn take_all(&mut self, at: usize) {
        loop {
            let before = self.clients[at].claimed;
            self.claim(at);
            if self.clients[at].claimed == before {
                return self.send(at, u64::MAX);
            }
        }
    }

    fn delete(&mut self, at: usize) {
        self.sync();
        let client = &mut self.clients[at];
        let most = client.stored - client.replaced;
        let units = self.rng.below(most + 1);
        client.stored -= units;
        self.used -= units;
    }

    /// Somebody without a grant writes, as repair does.
    fn write_without_grant(&mut self) {
        let units = 1 + self.rng.below(STRIP);
        let free = TOTAL - self.used;
        if self.grants.may_take(None, units, free) {
            self.grants.take(None, units);
            self.used += units;
            // And is gone again before long.
            self.used -= units;
        }
    }

    fn step(&mut self) {
        let at = self.rng.index(self.clients.len());
        match self.rng.below(20) {
            0..=6 => self.claim(at),
            7..=9 => {
                let most = self.rng.below(4 * STRIP);
                self.send(at, most);
            }
            10..=12 => {
                self.overwrite(at);
            }
            13..=15 => self.commit(at),
            16 => self.ask(at, 0, 0),
            17 if self.rng.one_in(3) => self.delete(at),
            18 if self.rng.one_in(4) => {
                self.restart();
                if self.rng.one_in(2) {
                    self.take_all(at);
                }
            }
            19 if self.rng.one_in(4) => self.fence(at),
            _ => self.write_without_grant(),
        }
        self.grants.check();
        assert!(self.grants.granted() <= TOTAL - self.used, "more is granted than is free");
    }

    /// In the end each sends all that it accepted, and what it has, it can write anew.
    fn end(mut self) -> u64 {
        for at in 0..self.clients.len() {
            self.send(at, u64::MAX);
            self.commit(at);
            self.ask(at, 0, 0);
        }
        for _ in 0..3 {
            for at in 0..self.clients.len() {
                let client = &self.clients[at];
                if client.target >= FLOOR && client.stored >= STRIP {
                    assert!(self.overwrite(at), "a full file system can be written anew");
                }
            }
            (0..self.clients.len()).for_each(|at| self.commit(at));
        }
        self.used
    }
}

#[test]
fn what_is_accepted_finds_space_whatever_clients_and_the_server_do() {
    let (mut fullest, mut sum) = (0, 0);
    for seed in test_seeds(1, 300 * test_scale()) {
        println!("seed {seed}");
        let mut world = World::new(seed);
        let steps = 50 + world.rng.below(600);
        for _ in 0..steps {
            world.step();
        }
        let used = world.end();
        fullest = fullest.max(used);
        sum += used;
    }
    // The model is worth something only if the disk runs full.
    assert!(fullest > TOTAL * 8 / 10, "the fullest disk had {fullest} of {TOTAL} units");
    assert!(sum > 0);
}

/// A client with so many units asked for, and all the rest of the arguments usual.
fn ask(number: u64, need: u64, ahead: u64) -> Ask {
    Ask { number, floor: FLOOR, need, ahead }
}

fn empty(free: u64) -> Supply {
    Supply { free, total: TOTAL }
}

#[test]
fn two_clients_are_never_granted_the_same_unit() {
    let mut grants = Grants::default();
    let one = grants.ask(holder(1), ask(1, 1200, 0), empty(TOTAL)).expect("few");
    let two = grants.ask(holder(2), ask(1, 1200, 0), empty(TOTAL)).expect("few");
    assert_eq!(one.granted, 1200);
    assert!(one.granted + two.granted <= TOTAL && two.granted > 600, "{two:?}");
    assert!(!grants.may_take(Some(holder(2)), two.granted + 200, TOTAL), "into the other's");
    assert!(!grants.may_take(None, 900, TOTAL), "into anybody's");
}

#[test]
fn an_ask_that_was_overtaken_changes_nothing() {
    let mut grants = Grants::default();
    grants.ask(holder(1), ask(2, 500, 0), empty(TOTAL)).expect("few");
    for number in [1, 2] {
        let late = grants.ask(holder(1), ask(number, 100, 0), empty(TOTAL)).expect("few");
        assert_eq!(late.granted, 500, "ask {number} is late");
    }
    let newer = grants.ask(holder(1), ask(3, 100, 0), empty(TOTAL)).expect("few");
    assert_eq!(newer.granted, 100);
}

#[test]
fn a_client_that_comes_when_all_is_granted_gets_its_floor_from_the_pool() {
    let mut grants = Grants::default();
    let greedy = |grants: &mut Grants, number| {
        let asked = Ask { floor: 0, ..ask(number, TOTAL, 0) };
        grants.ask(holder(1), asked, empty(TOTAL)).expect("few").granted
    };
    assert!(greedy(&mut grants, 1) < TOTAL - FLOOR);
    let late = grants.ask(holder(2), ask(1, FLOOR, u64::MAX), empty(TOTAL)).expect("few");
    assert_eq!((late.granted, late.target), (FLOOR, FLOOR));
    assert!(late.is_short);
    let before = grants.granted();
    greedy(&mut grants, 2);
    assert_eq!(grants.granted(), before, "the pool is for those who come");
}

#[test]
fn what_a_floor_lacks_is_kept_from_those_who_grow() {
    let mut grants = Grants::default();
    grants.ask(holder(1), ask(1, FLOOR, 0), empty(TOTAL)).expect("few");
    grants.ask(holder(2), ask(1, TOTAL, 0), empty(TOTAL)).expect("few");
    // The first overwrites, and what it replaced is free then.
    let free = TOTAL - FLOOR;
    assert!(grants.may_take(Some(holder(1)), FLOOR, TOTAL));
    grants.take(Some(holder(1)), FLOOR);
    // Until then nothing is there to be granted again, and it stays owed.
    let owed = grants.ask(holder(1), ask(2, FLOOR, 0), empty(grants.granted())).expect("few");
    assert_eq!((owed.granted, owed.target), (0, FLOOR));
    let before = grants.granted();
    grants.ask(holder(2), ask(2, TOTAL, 0), empty(free + FLOOR)).expect("few");
    assert_eq!(grants.granted(), before, "it is the first one's");
    assert_eq!(grants.top_up(holder(1), empty(free + FLOOR)).granted, FLOOR);
}

#[test]
fn who_holds_more_than_it_needs_is_known_to_others() {
    let mut grants = Grants::default();
    let first = grants.ask(holder(1), ask(1, 100, u64::MAX), empty(TOTAL)).expect("few");
    let second = grants.ask(holder(2), ask(1, 100, 0), empty(TOTAL)).expect("few");
    assert_eq!(second.elsewhere, first.granted - 100);
    grants.ask(holder(1), ask(2, 100, 0), empty(TOTAL)).expect("few");
    let second = grants.ask(holder(2), ask(2, 100, 0), empty(TOTAL)).expect("few");
    assert_eq!(second.elsewhere, 0, "nothing to wait for");
    grants.ask(holder(1), Ask { number: 3, ..Ask::default() }, empty(TOTAL)).expect("few");
    assert!(grants.of(holder(1)).is_none(), "it has ended");
}
