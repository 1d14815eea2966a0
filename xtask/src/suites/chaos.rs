//! Random faults on a lab of five nodes under work that is verified: see `chaos.py`. Afterwards
//! `fs check` is clean, a scrub finds nothing, and nothing of the lab stays.
//!
//! With odd seeds each disk has two servers.
//!
//! `make test` leaves this suite to `make soak`. It takes minutes, and each run has other faults:
//! `STRAKE_SEED` names them.

use super::checks::Checks;
use super::cluster_disks::wait_until;
use super::command::{self, Ended};
use super::session::Session;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const PROGRAM: &str = include_str!("chaos.py");
const SECONDS: u64 = 600;
const QUICK_SECONDS: u64 = 90;
/// The work ends so long after its time at most: each fault heals, and all is verified.
const END_MAX: Duration = Duration::from_secs(600);
const COMMAND_SECONDS_MAX: u64 = 120;

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let dir = session.root.join(session.next_number().to_string());
    let outcome = story(session, &dir, checks);
    let down = run_strake(session, "down", &["lab", "down", "--dir"], &dir);
    checks.record("the lab is taken down", down.map(drop));
    outcome
}

/// Runs a command whose last word is a directory.
fn run_strake(session: &Session, name: &str, words: &[&str], dir: &Path) -> Result<Ended, String> {
    let mut command = session.command(&session.strake);
    command.args(words).arg(dir);
    session.run("chaos", name, COMMAND_SECONDS_MAX, &mut command)
}

fn story(session: &Session, dir: &Path, checks: &mut Checks) -> Result<(), String> {
    let servers = (1 + session.seed % 2).to_string();
    let up = "lab up --nodes 5 --code 2x --nsd-size 512M --servers-per-nsd";
    let up: Vec<&str> = up.split(' ').chain([&*servers, "--dir"]).collect();
    run_strake(session, "up", &up, dir)?;
    let kept = session.root.join("kept");
    pack(session, &kept)?;
    let seconds = if session.quick { QUICK_SECONDS } else { SECONDS };
    let mut work: Command = session.command("/usr/bin/python3");
    work.args(["-c", PROGRAM]).arg(&session.strake).arg(dir).arg(&kept);
    work.args([session.seed, seconds].map(|number| number.to_string()));
    let log = session.log("chaos", "work");
    let limit = Duration::from_secs(seconds) + END_MAX;
    let worked = command::run(&mut work, &log, limit)?;
    checks.record(
        &format!("seed {}: nothing is lost, old, torn or refused", session.seed),
        worked.success().map(drop),
    );
    let mount = dir.join("node1/mount/lab");
    let checked = run_strake(session, "check", &["fs", "check", "--data"], &mount);
    checks.record("strake fs check is clean", checked.map(drop));
    checks.record("a scrub finds nothing", scrub(session, &mount));
    Ok(())
}

fn scrub(session: &Session, mount: &Path) -> Result<(), String> {
    run_strake(session, "scrub", &["fs", "scrub", "start", "--data"], mount)?;
    wait_until(|| {
        let words = ["fs", "scrub", "status", "--data"];
        let status = run_strake(session, "scrub-status", &words, mount)?.output();
        Ok((status.contains("complete") && status.contains(" 0 strips bad"), status))
    })
}

/// Packs the repository's documents, which one of the nodes unpacks.
fn pack(session: &Session, kept: &Path) -> Result<(), String> {
    let script = "mkdir $1 && cp -r $2 $1/tree && tar -C $1/tree -cf $1/tree.tar .";
    let mut shell = session.command("sh");
    shell.args(["-euc", script, "sh"]).arg(kept).arg(session.repository.join("docs"));
    session.run("chaos", "pack", COMMAND_SECONDS_MAX, &mut shell).map(drop)
}
