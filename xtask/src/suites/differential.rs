//! The same random operations of several processes on a Strake mount and on XFS in a loop device;
//! results, errors, attributes and contents must be equal (see the program `differential` of
//! `strake-fuse`, which lists what may differ). After each round the mount goes down and up, and
//! the trees are compared once more: then nothing comes from the kernel's caches.

use super::checks::Checks;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use std::path::{Path, PathBuf};
use std::process::Command;

const SEED_SECONDS_MAX: u64 = 240;
const TOOL_SECONDS_MAX: u64 = 60;
const STEPS: u64 = 2000;

/// A shape, the NSD that is missing meanwhile, and how many seeds (quick, long).
struct Round {
    name: &'static str,
    shape: Shape,
    missing: Option<u16>,
    seeds: (u64, u64),
}

const fn small(code: &'static str, nsds: u16, socket: bool) -> Shape {
    Shape { block_size: "256K", socket, ..Shape::of(code, nsds) }
}

const ROUNDS: [Round; 4] = [
    Round { name: "4+2p", shape: small("4+2p", 6, false), missing: None, seeds: (4, 40) },
    Round { name: "2x", shape: small("2x", 4, false), missing: Some(2), seeds: (2, 20) },
    Round { name: "8+2p", shape: small("8+2p", 10, true), missing: None, seeds: (1, 20) },
    Round { name: "1", shape: small("1", 4, false), missing: None, seeds: (0, 20) },
];

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let reference = Reference::mount(session, checks)?;
    let mut seed = session.seed;
    for round in &ROUNDS {
        let seeds = if session.quick { round.seeds.0 } else { round.seeds.1 };
        if seeds > 0 {
            one_round(session, checks, &reference, round, seed..seed + seeds)?;
        }
        seed += seeds;
    }
    Ok(())
}

fn one_round(
    session: &Session,
    checks: &mut Checks,
    reference: &Reference<'_>,
    round: &Round,
    seeds: std::ops::Range<u64>,
) -> Result<(), String> {
    let mounted = Mounted::create(session, checks, round.name, &round.shape)?;
    if let Some(nsd) = round.missing {
        mounted.down()?;
        mounted.remove_nsd(nsd)?;
        mounted.up()?;
    }
    let mut trees = Vec::new();
    for seed in seeds {
        let pair = [mounted.mount.join(seed.to_string()), reference.mount.join(seed.to_string())];
        for tree in &pair {
            std::fs::create_dir(tree).map_err(|error| format!("{}: {error}", tree.display()))?;
        }
        let steps = session.log(checks.suite(), &format!("{} steps {seed}", round.name));
        let mut command = mounted.outside(session.probe.with_file_name("differential"));
        command.arg("run").args([&seed.to_string(), &STEPS.to_string()]).arg(steps).args(&pair);
        let name = format!("seed {seed}");
        let agreed = mounted.program(&name, SEED_SECONDS_MAX, &mut command).map(drop);
        if checks.record(&format!("{} seed {seed}: {STEPS} steps agree", round.name), agreed) {
            trees.push((seed, pair));
        }
    }
    if let Some(nsd) = round.missing {
        mounted.down()?;
        mounted.return_nsd(nsd)?;
    } else {
        mounted.down()?;
    }
    mounted.up()?;
    for (seed, pair) in trees {
        let mut command = mounted.outside(session.probe.with_file_name("differential"));
        command.arg("compare").args(&pair);
        let agreed = mounted.program(&format!("again {seed}"), SEED_SECONDS_MAX, &mut command);
        let what = format!("{} seed {seed}: still equal after down and up", round.name);
        checks.record(&what, agreed.map(drop));
        let _ = std::fs::remove_dir_all(&pair[1]);
    }
    mounted.finish(checks);
    Ok(())
}

/// XFS in a file of the session's directory; dropped, it is unmounted, which frees its loop device.
struct Reference<'a> {
    session: &'a Session,
    suite: &'static str,
    mount: PathBuf,
}

impl<'a> Reference<'a> {
    fn mount(session: &'a Session, checks: &Checks) -> Result<Reference<'a>, String> {
        let directory = session.root.join("reference");
        let (image, mount) = (directory.join("image"), directory.join("mnt"));
        let text = |error: std::io::Error| format!("{}: {error}", directory.display());
        std::fs::create_dir_all(&mount).map_err(text)?;
        std::fs::File::create(&image).and_then(|file| file.set_len(8 << 30)).map_err(text)?;
        let reference = Reference { session, suite: checks.suite(), mount };
        reference.tool("mkfs.xfs", &["-q"], &[&image])?;
        reference.tool("mount", &["-o", "loop"], &[&image, &reference.mount])?;
        Ok(reference)
    }

    fn tool(&self, program: &str, words: &[&str], paths: &[&Path]) -> Result<(), String> {
        let mut command: Command = self.session.command(program);
        command.args(words).args(paths);
        self.session.run(self.suite, program, TOOL_SECONDS_MAX, &mut command).map(drop)
    }
}

impl Drop for Reference<'_> {
    fn drop(&mut self) {
        // If this fails, the janitor detaches it.
        let _ = self.tool("umount", &[], &[&self.mount]);
    }
}
