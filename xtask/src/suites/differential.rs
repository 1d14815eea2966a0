//! Runs the same random operations of several processes on a Strake mount and on XFS in a loop
//! device. Results, errors, attributes and contents must be equal. The program `differential` of
//! `strake-fuse` does this, and lists what may differ. After each round the mount goes down and up,
//! and the trees are compared again. That second comparison cannot be answered from the kernel's
//! caches.

use super::checks::Checks;
use super::mounted::{Mounted, Shape};
use super::reference::Xfs;
use super::session::Session;

const SEED_SECONDS_MAX: u64 = 240;
const STEPS: u64 = 2000;

/// A shape, the NSD that is missing during the round, and how many seeds it gets (quick, long).
struct Round {
    name: &'static str,
    shape: Shape,
    missing: Option<u16>,
    seeds: (u64, u64),
}

const fn small(code: &'static str, nsds: u16, socket: bool) -> Shape {
    // Where the server is a process of its own, blocks go as patches wherever they can.
    Shape { block_size: "256K", socket, patches_always: socket, ..Shape::of(code, nsds) }
}

const ROUNDS: [Round; 4] = [
    Round { name: "4+2p", shape: small("4+2p", 6, false), missing: None, seeds: (4, 40) },
    Round { name: "2x", shape: small("2x", 4, false), missing: Some(2), seeds: (2, 20) },
    Round { name: "8+2p", shape: small("8+2p", 10, true), missing: None, seeds: (1, 20) },
    Round { name: "1", shape: small("1", 4, false), missing: None, seeds: (0, 20) },
];

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let reference = Xfs::mount(session, checks, "reference", 8 << 30)?;
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
    reference: &Xfs<'_>,
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
