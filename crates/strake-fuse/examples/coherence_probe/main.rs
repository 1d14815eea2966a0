//! What one mount does, every other sees, through the kernel: `coherence_probe PROBE DIR` mounts
//! one file system three times below `DIR` and works on it from all mounts at once, as programs do.
//! Exit code 0 if every mount saw what it must, else 1 with a sentence.
#![allow(unsafe_code)]

mod beside;
mod kept_names;
mod locks;
mod mapped;
#[path = "../shared/mapping.rs"]
mod mapping;
mod peer;
mod probes;
mod world;

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use strake_env::{Clock, RealClock};
use world::World;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Mounts of the file system.
const MOUNTS: usize = 3;
/// A probe that is not done by then hangs.
const PROBE_LIMIT: Duration = Duration::from_secs(100);

/// The byte of a file that is written in a round.
pub(crate) fn byte(at: usize, round: usize) -> u8 {
    (at / 5 + at / 4099 + 31 * round) as u8
}

fn run(name: &str, dir: &str) -> Outcome {
    let (_, probe) = probes::ALL.iter().find(|(known, _)| *known == name).ok_or_else(|| {
        let known: Vec<&str> = probes::ALL.iter().map(|(name, _)| *name).collect();
        format!("there is no probe {name}: choose one of {}", known.join(", "))
    })?;
    let world = World::mount(Path::new(dir), MOUNTS as u64)?;
    let hang = world.hang();
    strake_env::thread::spawn(move || {
        RealClock.sleep(PROBE_LIMIT);
        hang.report_and_abort();
    });
    let outcome = probe(&world);
    world.end()?;
    outcome
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [probe, dir] = &arguments[..] else {
        eprintln!("usage: coherence_probe PROBE DIR");
        return ExitCode::from(2);
    };
    let outcome = match probe.as_str() {
        "peer-locks" => locks::peer(Path::new(dir)),
        "peer-mapped" => mapped::peer(Path::new(dir)),
        probe => run(probe, dir),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("coherence_probe: {probe}: {error}");
            ExitCode::FAILURE
        }
    }
}
