//! One directory with very many names: they are made, listed while names come and go, listed again
//! from remembered places, taken down and up, and removed. This shows operations whose time per
//! name grows with the number of names.

use super::checks::Checks;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use crate::runner::now;

const NAMES: u64 = 1_000_000;
const NAMES_QUICK: u64 = 20_000;
const SECONDS_MAX: u64 = 3600;

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let mounted = Mounted::create(session, checks, "4+2p", &Shape::of("4+2p", 6))?;
    let names = if session.quick { NAMES_QUICK } else { NAMES };
    // Ten times as many names should take about ten times as long. The times are printed but not
    // judged.
    for count in [names / 10, names] {
        let started = now();
        let mut walk = mounted.outside(session.probe.with_file_name("differential"));
        walk.arg("walk").arg(mounted.mount.join(count.to_string()));
        walk.args([&count.to_string(), &session.seed.to_string()]);
        let outcome = mounted.program(&format!("walk {count}"), SECONDS_MAX, &mut walk).map(drop);
        let seconds = (now() - started).as_secs_f64();
        checks.record(&format!("{count} names: listed under change in {seconds:.1} s"), outcome);
    }
    let directory = mounted.mount.join("kept");
    std::fs::create_dir(&directory).map_err(|error| error.to_string())?;
    let kept = names / 10;
    for number in 0..kept {
        std::fs::File::create(directory.join(format!("{number}")))
            .map_err(|error| format!("file {number}: {error}"))?;
    }
    mounted.down()?;
    mounted.up()?;
    let found = std::fs::read_dir(&directory).map_err(|error| error.to_string())?.count() as u64;
    checks.hold("after down and up all names are there", found == kept, || {
        format!("{found} of {kept}")
    });
    mounted.finish(checks);
    Ok(())
}
