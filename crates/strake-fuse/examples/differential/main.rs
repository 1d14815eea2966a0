//! The same random operations on two trees, compared step by step: `differential run SEED STEPS LOG
//! TREE TREE`; the first is under test, the second is the reference. `differential compare TREE
//! TREE` compares what they hold, `differential walk PATH COUNT SEED` tests the listing of one
//! large directory. Exit code 0 if all is well, else 1 with the step, both answers, and the seed.
//!
//! Who acts: for each tree one process per actor (root and two ordinary users), each with open
//! files of its own. `generate` makes steps as lines of words from the seed alone, never from
//! answers, so that a seed replays; `worker` executes a line and answers with one line: the result
//! or errno, and what became of every inode the step names and of the directories above. Most steps
//! go one by one; in between, all actors work at once, each in a directory of its own.
//!
//! Every step is in LOG before it is sent, with both answers after it. What may differ, and why, is
//! the list [`ALLOWED`]; nothing else may.
#![allow(unsafe_code)]

mod calls;
mod generate;
mod tree;
mod worker;

use generate::{ACTORS, Generator, Step};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

type Failure = Box<dyn std::error::Error>;

/// After so many steps one by one, the actors work side by side.
const SERIAL_STEPS: usize = 250;
/// Steps of each actor while they do.
const PARALLEL_STEPS: usize = 40;

/// What may differ between a Strake mount and XFS: (operation, answer of the first tree, answer of
/// the second). `*` stands for anything.
const ALLOWED: &[(&str, &str, &str)] = &[
    // POSIX lets a file system choose; ours answers as most others, and as `rmdir` does.
    ("rename", "E39", "E17"),
    // A file system with direct I/O in sectors refuses what ours can do.
    ("direct", "*", "E22"),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["run", seed, steps, log, ours, theirs] => run(seed, steps, log, [ours, theirs]),
        ["compare", ours, theirs] => compare([ours, theirs]),
        ["walk", path, count, seed] => walk_alone(path, count, seed),
        ["worker", actor, tree] => worker::main(actor, tree),
        _ => {
            eprintln!("differential run SEED STEPS LOG TREE TREE | compare TREE TREE | walk …");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// `differential walk PATH COUNT SEED`: the listing test of a directory as large as wanted, alone.
fn walk_alone(path: &str, count: &str, seed: &str) -> Result<(), Failure> {
    let verdict = worker::walk(path, count.parse()?, seed.parse()?)
        .map_err(std::io::Error::from_raw_os_error)?;
    if verdict == "sound" { Ok(()) } else { Err(format!("seed {seed}: {verdict}").into()) }
}

/// One process on one tree.
struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(actor: usize, tree: &str) -> Result<Worker, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["worker", &actor.to_string(), tree]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("no stdin")?;
        let output = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        Ok(Worker { child, input, output })
    }

    fn tell(&mut self, line: &str) -> Result<(), Failure> {
        writeln!(self.input, "{line}")?;
        Ok(())
    }

    fn hear(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        if line.is_empty() {
            return Err(format!("a worker died: {:?}", self.child.wait()).into());
        }
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Both trees, and all who act on them.
struct Pair {
    workers: [Vec<Worker>; 2],
    log: File,
    count: usize,
}

impl Pair {
    fn start(log: &str, trees: [&str; 2]) -> Result<Pair, Failure> {
        let team = |tree: &str| -> Result<Vec<Worker>, Failure> {
            (0..ACTORS).map(|actor| Worker::start(actor, tree)).collect()
        };
        let log = File::create(log)?;
        Ok(Pair { workers: [team(trees[0])?, team(trees[1])?], log, count: 0 })
    }

    /// One step on both trees.
    fn step(&mut self, step: &Step) -> Result<(), Failure> {
        self.count += 1;
        let line = step.words.join(" ");
        writeln!(self.log, "{} actor {}: {line}", self.count, step.actor)?;
        for team in &mut self.workers {
            team[step.actor].tell(&line)?;
        }
        self.answers(step)
    }

    fn answers(&mut self, step: &Step) -> Result<(), Failure> {
        let ours = self.workers[0][step.actor].hear()?;
        let theirs = self.workers[1][step.actor].hear()?;
        let operation = step.words.iter().find(|word| *word != "quiet").map_or("", String::as_str);
        let good = agree(operation, &ours, &theirs);
        if good && ours == theirs {
            writeln!(self.log, "    {ours}")?;
        } else {
            writeln!(self.log, "    {ours}\n    {theirs}{}", if good { " allowed" } else { "" })?;
        }
        if good {
            return Ok(());
        }
        let (number, actor, line) = (self.count, step.actor, step.words.join(" "));
        Err(format!("step {number}, actor {actor}: {line}\n  ours   {ours}\n  theirs {theirs}")
            .into())
    }

    /// All actors at once, each with steps of its own.
    fn side_by_side(&mut self, steps: &[Step]) -> Result<(), Failure> {
        for step in steps {
            writeln!(self.log, "beside actor {}: {}", step.actor, step.words.join(" "))?;
            for team in &mut self.workers {
                team[step.actor].tell(&step.words.join(" "))?;
            }
        }
        steps.iter().try_for_each(|step| {
            self.count += 1;
            self.answers(step)
        })
    }
}

/// Whether two answers are equal, or differ as they may.
fn agree(operation: &str, ours: &str, theirs: &str) -> bool {
    // An access list that says no more than the mode did: only ours counts that as a change.
    if operation == "setacl" && ours.replace(" c=now", "") == theirs.replace(" c=now", "") {
        return true;
    }
    let result = |answer: &str| answer.split(" | ").next().unwrap_or_default().to_owned();
    let fits = |pattern: &str, answer: &str| pattern == "*" || pattern == result(answer);
    ours == theirs
        || ALLOWED
            .iter()
            .any(|(name, one, other)| *name == operation && fits(one, ours) && fits(other, theirs))
}

fn run(seed: &str, steps: &str, log: &str, trees: [&str; 2]) -> Result<(), Failure> {
    let (seed, steps): (u64, usize) = (seed.parse()?, steps.parse()?);
    let mut generator = Generator::new(seed);
    let mut pair = Pair::start(log, trees)?;
    let outcome = walk(&mut generator, &mut pair, steps, trees);
    outcome.map_err(|error| format!("seed {seed}, {error}").into())
}

fn walk(
    generator: &mut Generator,
    pair: &mut Pair,
    steps: usize,
    trees: [&str; 2],
) -> Result<(), Failure> {
    for step in generator.beginning() {
        pair.step(&step)?;
    }
    let mut left = steps;
    while left > 0 {
        for _ in 0..SERIAL_STEPS.min(left) {
            pair.step(&generator.step())?;
        }
        left -= SERIAL_STEPS.min(left);
        let steps: Vec<Step> = (0..PARALLEL_STEPS)
            .flat_map(|_| (0..ACTORS).map(|actor| generator.step_beside(actor)).collect::<Vec<_>>())
            .collect();
        pair.side_by_side(&steps)?;
        compare(trees).map_err(|error| format!("after step {}: {error}", pair.count))?;
    }
    Ok(())
}

/// Compares everything that can be seen of both trees.
fn compare(trees: [&str; 2]) -> Result<(), Failure> {
    let (ours, theirs) = (tree::describe(Path::new(trees[0])), tree::describe(Path::new(trees[1])));
    if ours == theirs {
        return Ok(());
    }
    let mut text = String::from("the trees differ");
    for line in ours.iter().filter(|line| !theirs.contains(line)).take(5) {
        text.push_str(&format!("\n  ours   {line}"));
    }
    for line in theirs.iter().filter(|line| !ours.contains(line)).take(5) {
        text.push_str(&format!("\n  theirs {line}"));
    }
    Err(text.into())
}
