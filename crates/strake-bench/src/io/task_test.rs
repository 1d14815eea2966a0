//! Tasks on real files. Every layout and pattern reads back what it wrote. A flipped byte, a
//! misplaced record and a stale record are found. After a stonewall, the readers read what was
//! written.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::super::phase::phase_test::phase;
use super::super::phase::{Counting, Files, Layout, Operation, Phase};
use crate::error::{BenchError, Result};
use crate::outcome::HostOutcome;
use crate::pattern::{Dice, Pattern};
use crate::scratch::{Scratch, fresh_name};
use crate::stop::Stop;
use crate::team::Team;
use crate::work::{Assignment, CacheFlush, Work};

fn run(directory: &Path, phase: &Phase, tasks: u32) -> Result<HostOutcome> {
    let mut team = Team::new(directory.to_path_buf(), Stop::default());
    let work = Work::Io(phase.clone());
    work.validate(tasks)?;
    let assignment = Assignment { work, first_rank: 0, tasks_here: tasks, tasks_total: tasks };
    team.begin(&assignment)?;
    team.release();
    team.collect()
}

fn scratch() -> Scratch {
    Scratch::make(&std::env::temp_dir(), &fresh_name()).unwrap()
}

fn reading(phase: &Phase) -> Phase {
    Phase { operation: Operation::Read, cache: CacheFlush::File, ..phase.clone() }
}

#[test]
fn whatever_is_written_reads_back() {
    for seed in 0..60 {
        let mut dice = Dice::new(seed);
        let scratch = scratch();
        let tasks = 1 + dice.below(4) as u32;
        let mut written = phase();
        written.layout =
            [Layout::FilePerTask, Layout::Segmented, Layout::Interleaved][dice.below(3) as usize];
        written.pattern = [
            Pattern::Sequential,
            Pattern::Backward,
            Pattern::Random,
            Pattern::RandomHint,
            Pattern::Strided { skip: dice.below(9) },
            Pattern::SemiRandom { window: 1 + dice.below(9) },
        ][dice.below(6) as usize];
        written.record_bytes = 1 + dice.below(10_000);
        written.records = 1 + dice.below(40);
        written.fsync =
            [Counting::No, Counting::Counted, Counting::Uncounted][dice.below(3) as usize];
        written.close_counted = dice.below(2) == 0;
        let outcome = run(scratch.path(), &written, tasks).unwrap();
        for task in &outcome.tasks {
            assert_eq!(task.sample.operations, written.records, "seed {seed}");
            assert_eq!(task.sample.bytes, written.records * written.record_bytes, "seed {seed}");
            task.latency.check();
        }
        let mut read = reading(&written);
        read.shift = dice.below(5) as u32;
        read.pattern = Pattern::Random;
        run(scratch.path(), &read, tasks).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

#[test]
fn one_flipped_byte_of_a_file_is_found_and_named() {
    for seed in 0..20 {
        let mut dice = Dice::new(seed);
        let scratch = scratch();
        let written = phase();
        run(scratch.path(), &written, 3).unwrap();
        let path = scratch.path().join(format!("data.0.{}", dice.below(3)));
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let offset = dice.below(file.metadata().unwrap().len());
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        byte[0] ^= 1 << dice.below(8);
        file.write_all_at(&byte, offset).unwrap();
        let error = run(scratch.path(), &reading(&written), 3).unwrap_err();
        assert!(matches!(error, BenchError::Verification(_)), "seed {seed}: {error}");
        assert!(error.to_string().contains(&format!("byte {offset} is")), "seed {seed}: {error}");
    }
}

#[test]
fn a_record_in_the_wrong_place_or_of_an_older_writing_is_found() {
    let scratch = scratch();
    let written = phase();
    run(scratch.path(), &written, 1).unwrap();
    let path = scratch.path().join("data.0.0");
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let (mut first, mut second) = (vec![0; 4096], vec![0; 4096]);
    file.read_exact_at(&mut first, 0).unwrap();
    file.read_exact_at(&mut second, 4096).unwrap();
    file.write_all_at(&second, 0).unwrap();
    assert!(run(scratch.path(), &reading(&written), 1).is_err());
    file.write_all_at(&first, 0).unwrap();
    run(scratch.path(), &reading(&written), 1).unwrap();
    // A rewrite that missed one record leaves the older generation there.
    let mut rewritten = Phase { operation: Operation::Rewrite, generation: 1, ..written.clone() };
    run(scratch.path(), &rewritten, 1).unwrap();
    run(scratch.path(), &reading(&rewritten), 1).unwrap();
    file.write_all_at(&second, 4096).unwrap();
    assert!(run(scratch.path(), &reading(&rewritten), 1).is_err());
    rewritten.generation = 2;
    assert!(run(scratch.path(), &reading(&rewritten), 1).is_err());
}

#[test]
fn a_stonewall_stops_the_writers_and_the_readers_follow() {
    let scratch = scratch();
    let mut written = phase();
    written.records = 1 << 30;
    written.stonewall_seconds = Some(0.02);
    written.layout = Layout::Interleaved;
    let outcome = run(scratch.path(), &written, 2).unwrap();
    let mut read = reading(&written);
    read.stonewall_seconds = None;
    read.visits = outcome.tasks.iter().map(|task| task.sample.operations).collect();
    assert!(read.visits.iter().all(|visits| *visits < written.records));
    read.shift = 1;
    let again = run(scratch.path(), &read, 2).unwrap();
    let operations: u64 = again.tasks.iter().map(|task| task.sample.operations).sum();
    assert_eq!(operations, read.visits.iter().sum::<u64>());
}

#[test]
fn a_file_that_is_missing_or_short_is_an_error_before_or_during_the_run() {
    let scratch = scratch();
    assert!(run(scratch.path(), &reading(&phase()), 2).is_err());
    let mut written = phase();
    written.files = Files::Scratch(1);
    run(scratch.path(), &written, 1).unwrap();
    let mut read = reading(&written);
    read.records *= 2;
    let error = run(scratch.path(), &read, 1).unwrap_err();
    assert!(error.to_string().contains("cannot read"), "{error}");
}
