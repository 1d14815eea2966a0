//! Names that caches keep against the names that are there: a model of a kernel and of other
//! clients, with random steps.

use super::*;
use strake_env::Rng;

const DIRECTORIES: [Ino; 3] = [Ino(10), Ino(11), Ino(12)];
const NAMES: usize = 2;
/// Answers are valid for so long.
const HOLD: Duration = Duration::from_secs(8);

type Place = (usize, usize);
/// The inode that a name leads to.
type Found = Option<u64>;

/// A name in the kernel, with what its answer said and its time. It moves with a rename.
#[derive(Clone, Copy)]
struct Entry {
    id: u64,
    found: Found,
    epoch: u64,
    until: Duration,
}

/// A lookup on its way.
struct Lookup {
    place: Place,
    /// The kernel's epoch when it asked.
    asked: u64,
    /// The entry that it asks about again. Else the directory is locked.
    again: Option<u64>,
    stage: LookupStage,
}

enum LookupStage {
    Asked,
    Announced(Option<u64>),
    Found(Option<u64>, Found),
    Answered(Found, Duration),
}

/// A rename on its way, between two names in directories that are locked.
struct Rename {
    from: Place,
    to: Place,
    is_exchange: bool,
    stage: u32,
}

enum Giving {
    Begun,
    Ordered(Order),
    RunsOut(Order, Duration),
    Done,
}

struct World {
    rng: Rng,
    now: Duration,
    names: ShownNames,
    truth: [[Found; NAMES]; 3],
    held: [bool; 3],
    giving: [Option<Giving>; 3],
    epoch: u64,
    kernel: HashMap<Place, Entry>,
    lookups: Vec<Lookup>,
    rename: Option<Rename>,
    last: u64,
    /// Answers that the kernel kept, looks that they saved, and renames.
    kept: u64,
    used: u64,
    renames: u64,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            rng: Rng::new(seed),
            now: Duration::ZERO,
            names: ShownNames::default(),
            truth: Default::default(),
            held: [true; 3],
            giving: [const { None }; 3],
            epoch: 0,
            kernel: HashMap::new(),
            lookups: Vec::new(),
            rename: None,
            last: 0,
            kept: 0,
            used: 0,
            renames: 0,
        }
    }

    fn place(&mut self) -> Place {
        (self.rng.index(3), self.rng.index(NAMES))
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn may_use(&self, directory: usize) -> bool {
        self.held[directory] && self.giving[directory].is_none()
    }

    fn is_locked(&self, directory: usize) -> bool {
        self.rename.as_ref().is_some_and(|it| it.from.0 == directory || it.to.0 == directory)
    }

    /// A program looks at a name.
    fn look(&mut self) {
        if self.lookups.len() >= 2 {
            return;
        }
        let place = self.place();
        let entry = self.kernel.get(&place).copied().filter(|entry| entry.epoch >= self.epoch);
        let again = match entry {
            Some(entry) if self.now < entry.until => {
                self.used += 1;
                return;
            }
            Some(entry) if entry.found.is_some() => Some(entry.id),
            _ if self.is_locked(place.0) => return,
            _ => None,
        };
        let stage = LookupStage::Asked;
        self.lookups.push(Lookup { place, asked: self.epoch, again, stage });
    }

    /// A lookup goes on.
    fn look_on(&mut self) {
        if self.lookups.is_empty() {
            return;
        }
        let at = self.rng.index(self.lookups.len());
        let (directory, name) = self.lookups[at].place;
        let ino = DIRECTORIES[directory];
        let next = match self.lookups[at].stage {
            LookupStage::Asked => LookupStage::Announced(self.names.begin(ino, self.now)),
            LookupStage::Announced(_) if !self.may_use(directory) => return,
            LookupStage::Announced(mark) => LookupStage::Found(mark, self.truth[directory][name]),
            LookupStage::Found(mark, found) => {
                let until = self.now + HOLD;
                let is_kept = self.held[directory]
                    && mark.is_some_and(|epoch| self.names.is_kept(epoch, until));
                LookupStage::Answered(found, if is_kept { until } else { Duration::ZERO })
            }
            LookupStage::Answered(found, until) => return self.take_in(at, found, until),
        };
        self.lookups[at].stage = next;
    }

    /// The kernel takes an answer in.
    fn take_in(&mut self, at: usize, found: Found, until: Duration) {
        let lookup = self.lookups.swap_remove(at);
        self.kept += u64::from(until > self.now);
        match lookup.again {
            None => {
                let id = self.number();
                self.kernel.insert(lookup.place, Entry { id, found, epoch: lookup.asked, until });
            }
            // The entry may have moved meanwhile.
            Some(id) => {
                let entry = self.kernel.iter_mut().find(|(_, entry)| entry.id == id);
                let Some((&place, entry)) = entry else { return };
                if entry.found == found {
                    entry.until = until;
                } else {
                    self.kernel.remove(&place);
                }
            }
        }
    }

    fn rename_on(&mut self) {
        let Some(rename) = &self.rename else { return self.begin_rename() };
        let (from, to, is_exchange) = (rename.from, rename.to, rename.is_exchange);
        match rename.stage {
            0 => self.names.rename([DIRECTORIES[from.0], DIRECTORIES[to.0]], self.now),
            1 if !self.may_use(from.0) || !self.may_use(to.0) => return,
            1 => {
                let left = self.truth[to.0][to.1].filter(|_| is_exchange);
                self.truth[to.0][to.1] = self.truth[from.0][from.1];
                self.truth[from.0][from.1] = left;
            }
            2 => self.names.renamed([DIRECTORIES[from.0], DIRECTORIES[to.0]]),
            _ => {
                let moved = [self.kernel.remove(&from), self.kernel.remove(&to)];
                if let Some(entry) = moved[0] {
                    self.kernel.insert(to, entry);
                }
                if let Some(entry) = moved[1].filter(|_| is_exchange) {
                    self.kernel.insert(from, entry);
                }
                self.rename = None;
                return;
            }
        }
        self.rename.as_mut().expect("it is under way").stage += 1;
    }

    fn begin_rename(&mut self) {
        let (from, to) = (self.place(), self.place());
        let is_busy =
            |it: &Lookup| it.again.is_none() && (it.place.0 == from.0 || it.place.0 == to.0);
        let is_exchange = self.rng.index(2) == 0 && self.truth[to.0][to.1].is_some();
        if from == to || self.truth[from.0][from.1].is_none() || self.lookups.iter().any(is_busy) {
            return;
        }
        // The kernel looks at both before, and forgets what is not so.
        for place in [from, to] {
            let found = self.truth[place.0][place.1];
            let is_right = |entry: &Entry| entry.epoch >= self.epoch && entry.found == found;
            if !self.kernel.get(&place).is_some_and(is_right) {
                self.kernel.remove(&place);
            }
        }
        self.renames += 1;
        self.rename = Some(Rename { from, to, is_exchange, stage: 0 });
    }

    fn give_on(&mut self, directory: usize) {
        let ino = DIRECTORIES[directory];
        self.giving[directory] = match self.giving[directory].take() {
            None if !self.held[directory] => return,
            None => Some(Giving::Begun),
            Some(Giving::Begun) => {
                Some(self.names.take(ino, self.now).map_or(Giving::Done, Giving::Ordered))
            }
            Some(Giving::Ordered(order)) if self.rng.index(100) == 0 => {
                Some(Giving::RunsOut(order, self.names.refused(self.now)))
            }
            Some(Giving::Ordered(order)) => {
                self.epoch += 1;
                self.names.dropped(order);
                Some(Giving::Done)
            }
            Some(Giving::RunsOut(order, until)) if self.now < until => {
                Some(Giving::RunsOut(order, until))
            }
            Some(Giving::RunsOut(order, _)) => {
                self.names.dropped(order);
                Some(Giving::Done)
            }
            Some(Giving::Done) => {
                self.held[directory] = false;
                None
            }
        };
    }

    /// Another client has a directory: it changes names, or gives it back.
    fn others(&mut self, directory: usize) {
        if self.held[directory] {
            return;
        }
        let name = self.rng.index(NAMES);
        match self.rng.index(3) {
            0 => self.truth[directory][name] = None,
            1 => self.truth[directory][name] = Some(self.number()),
            _ => self.held[directory] = true,
        }
    }

    fn step(&mut self) {
        let directory = self.rng.index(3);
        match self.rng.index(24) {
            0..6 => self.look(),
            6..16 => self.look_on(),
            16..18 => self.rename_on(),
            18..20 if self.giving[directory].is_some() || self.rng.index(20) == 0 => {
                self.give_on(directory);
            }
            20..23 => self.others(directory),
            23 => self.now += Duration::from_millis(self.rng.below(1000)),
            _ => {}
        }
    }

    fn check(&self, context: &str) {
        for (&(directory, name), entry) in &self.kernel {
            if entry.epoch < self.epoch || self.now >= entry.until || self.moves(directory, name) {
                continue;
            }
            let found = self.truth[directory][name];
            assert_eq!(entry.found, found, "{context}: name {name} of directory {directory}");
        }
    }

    /// Whether a rename of this name was made that the kernel has not heard of. Others may only
    /// change the name later.
    fn moves(&self, directory: usize, name: usize) -> bool {
        let Some(rename) = self.rename.as_ref().filter(|rename| rename.stage > 1) else {
            return false;
        };
        self.held[rename.from.0]
            && self.held[rename.to.0]
            && [rename.from, rename.to].contains(&(directory, name))
    }
}

#[test]
fn caches_keep_no_name_that_others_have_changed() {
    let mut counts = [0; 3];
    for seed in 0..500 {
        let mut world = World::new(seed);
        for step in 0..3000 {
            world.step();
            world.check(&format!("seed {seed}, step {step}"));
        }
        let [kept, used, renames] = &mut counts;
        *kept += world.kept;
        *used += world.used;
        *renames += world.renames;
    }
    let [kept, used, renames] = counts;
    println!("answers that were kept: {kept}; looks that they saved: {used}; renames: {renames}");
    assert!(counts.iter().all(|count| *count > 5000), "the model does too little: {counts:?}");
}

#[test]
fn a_directory_that_is_taken_again_and_again_rests_longer_each_time() {
    let (mut names, directory) = (ShownNames::default(), DIRECTORIES[0]);
    let mut now = Duration::from_secs(5);
    for length in [2, 4, 8, 16] {
        assert!(names.begin(directory, now).is_some());
        let order = names.take(directory, now).expect("it was shown");
        names.dropped(order);
        assert_eq!(names.take(directory, now), None, "it was not shown since");
        now += Duration::from_secs(length) - Duration::from_millis(1);
        assert_eq!(names.begin(directory, now), None, "it rests");
        assert!(names.begin(DIRECTORIES[1], now).is_some(), "others do not");
        now += Duration::from_millis(1);
    }
    now += Duration::from_secs(16 * u64::from(RESTS_REMEMBERED));
    assert!(names.begin(directory, now).is_some());
    names.take(directory, now).expect("it was shown");
    now += REST_MIN;
    assert!(names.begin(directory, now).is_some(), "that was long ago");
}

#[test]
fn a_rename_between_resting_directories_ends_before_they_are_shown() {
    let (mut names, [one, other, third]) = (ShownNames::default(), DIRECTORIES);
    for directory in [one, other] {
        names.begin(directory, Duration::ZERO);
        let order = names.take(directory, Duration::ZERO).expect("it was shown");
        names.dropped(order);
    }
    names.rename([one, other], Duration::ZERO);
    // An answer about the old name could be kept for the new one.
    assert_eq!([one, other].map(|it| names.begin(it, REST_MIN)), [None; 2]);
    assert!(names.begin(third, REST_MIN).is_some());
    names.renamed([one, other]);
    assert_eq!(names.take(other, REST_MIN), None, "it was not shown");
    assert!(names.begin(one, REST_MIN).is_some());
    names.rename([one, other], REST_MIN);
    names.take(other, REST_MIN).expect("a name moves there that may be kept");
}

#[test]
fn one_order_covers_all_that_was_shown_before() {
    let (mut names, now) = (ShownNames::default(), Duration::ZERO);
    let [one, other, third] = DIRECTORIES;
    names.begin(one, now);
    names.begin(other, now);
    let first = names.take(one, now).expect("it was shown");
    let again = names.take(other, now).expect("nobody knows that the first order is done");
    names.begin(third, now);
    names.dropped(first);
    names.dropped(again);
    assert_eq!(names.take(other, now), None);
    names.take(third, now).expect("it was shown after the orders");
    names.refused(now);
    assert_eq!(names.begin(Ino(99), now + REFUSED / 2), None, "nothing is shown");
    assert!(names.begin(Ino(99), now + REFUSED).is_some());
}
