//! A model of a kernel, whose programs ask for attributes and change inodes in any order: once a
//! change is answered, no program sees what was before.

use super::*;
use strake_env::Rng;
use strake_env::rng::{test_scale, test_seeds};

const THREADS: u32 = 4;
const INODES: u64 = 3;
const STEPS: u64 = 3000;

/// The kernel's attributes of an inode.
#[derive(Clone, Copy, Default)]
struct Cached {
    value: u64,
    is_valid: bool,
    version: u64,
}

#[derive(Clone, Copy)]
enum Request {
    None,
    Asked { ino: usize, asking: Asking, version: u64 },
    Read { ino: usize, asking: Asking, version: u64, value: u64 },
    Answered { ino: usize, version: u64, value: u64, is_kept: bool },
    Changing { ino: usize, asking: Asking },
    Changed { ino: usize, asking: Asking },
    Told { ino: usize },
}

struct Model {
    late: LateAnswers,
    /// The attributes of each inode, as a count of its changes.
    values: [u64; INODES as usize],
    cached: [Cached; INODES as usize],
    version: u64,
    requests: [Request; THREADS as usize],
    /// How often the kernel was told, and how often it kept an answer.
    counts: (u64, u64),
}

impl Model {
    fn new() -> Model {
        Model {
            late: LateAnswers::default(),
            values: Default::default(),
            cached: Default::default(),
            version: 1,
            requests: [Request::None; THREADS as usize],
            counts: (0, 0),
        }
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn step(&mut self, rng: &mut Rng) {
        // Thread 0 is one that the kernel cannot name.
        let thread = rng.below(u64::from(THREADS)) as u32;
        let next = match self.requests[thread as usize] {
            Request::None => {
                let (ino, asking) = (rng.below(INODES) as usize, self.late.asking(thread));
                match rng.one_in(3) {
                    true => Request::Changing { ino, asking },
                    false => Request::Asked { ino, asking, version: self.version },
                }
            }
            Request::Asked { ino, asking, version } => {
                Request::Read { ino, asking, version, value: self.values[ino] }
            }
            Request::Read { ino, asking, version, value } => {
                let is_kept = self.late.show(number(ino), asking);
                Request::Answered { ino, version, value, is_kept }
            }
            Request::Answered { ino, version, value, is_kept } => {
                if self.cached[ino].version <= version {
                    let version = self.next_version();
                    self.cached[ino] = Cached { value, is_valid: is_kept, version };
                    self.counts.1 += u64::from(is_kept);
                }
                Request::None
            }
            Request::Changing { ino, asking } => {
                self.values[ino] += 1;
                Request::Changed { ino, asking }
            }
            Request::Changed { ino, asking } => {
                if self.late.changed(number(ino), asking) {
                    let version = self.next_version();
                    let value = self.cached[ino].value;
                    self.cached[ino] = Cached { value, is_valid: false, version };
                    self.counts.0 += 1;
                }
                Request::Told { ino }
            }
            Request::Told { ino } => {
                self.cached[ino].is_valid = false;
                Request::None
            }
        };
        self.requests[thread as usize] = next;
    }

    fn check(&self, what: &str) {
        for (ino, cached) in self.cached.iter().enumerate() {
            let is_changing = self.requests.iter().any(|request| match request {
                Request::Changed { ino: changing, .. } | Request::Told { ino: changing } => {
                    *changing == ino
                }
                _ => false,
            });
            let is_old = cached.is_valid && cached.value != self.values[ino];
            assert!(is_changing || !is_old, "{what}: old attributes of inode {ino} are kept");
        }
    }
}

/// Two inodes are in one table, and one is in another.
fn number(ino: usize) -> Ino {
    Ino([1, 2, 1 + SHARDS as u64][ino])
}

#[test]
fn no_late_answer_makes_old_attributes_right_again() {
    let (mut told, mut kept) = (0, 0);
    for seed in test_seeds(1, 20 * test_scale()) {
        let (mut rng, mut model) = (Rng::new(seed), Model::new());
        for step in 0..STEPS {
            model.step(&mut rng);
            model.check(&format!("seed {seed}, step {step}"));
        }
        told += model.counts.0;
        kept += model.counts.1;
    }
    assert!(told > 0 && kept > 0, "told {told}, kept {kept}");
}

#[test]
fn a_thread_that_works_alone_in_a_directory_costs_no_notifications() {
    let late = LateAnswers::default();
    let (directory, other) = (Ino(7), Ino(7 + SHARDS as u64));
    assert!(late.changed(directory, late.asking(5)), "anybody may have seen it");
    for _ in 0..10 {
        assert!(late.show(directory, late.asking(5)));
        assert!(!late.changed(directory, late.asking(5)));
    }
    assert!(late.show(directory, late.asking(6)));
    assert!(late.changed(directory, late.asking(5)), "another thread has seen it");
    assert!(late.show(directory, late.asking(5)) && late.show(directory, late.asking(6)));
    assert!(late.changed(directory, late.asking(5)), "two have");
    let early = late.asking(6);
    assert!(!late.changed(directory, late.asking(5)));
    assert!(!late.show(directory, early), "it was read before, perhaps");
    late.made(other, late.asking(5));
    assert!(!late.changed(other, late.asking(5)), "nobody else knows a new directory");
    assert!(late.show(directory, late.asking(0)), "a thread without a number");
    assert!(late.changed(directory, late.asking(0)), "two of them are not the same");
}

#[test]
fn what_is_noted_is_limited() {
    let late = LateAnswers::default();
    let inodes = || (0..2 * INODES_MAX as u64).map(|number| Ino(number * SHARDS as u64));
    inodes().for_each(|ino| late.made(ino, late.asking(5)));
    assert!(late.shards[0].lock().shown.len() <= INODES_MAX);
    let told = inodes().filter(|ino| late.changed(*ino, late.asking(5))).count();
    assert!(told >= INODES_MAX, "what was forgotten may have been seen by anybody: {told}");
}
