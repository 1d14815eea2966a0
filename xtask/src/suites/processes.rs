//! Two processes on one file: shared mappings and locks. `mount_probe` (an example of the crate
//! that may map memory) plays both.

use super::checks::Checks;
use super::mounted::{Mounted, Shape};
use super::session::Session;

const SECONDS_MAX: u64 = 60;

const PROBES: &[(&str, &str)] = &[
    ("mmap", "two processes see each other's stores in a shared mapping, and read() sees both"),
    ("mmap-grow", "stores beyond the old end are seen after the file has grown"),
    ("fcntl", "fcntl: refused while another holds it, granted when it lets go"),
    ("flock", "flock: refused while another holds it, granted when it lets go"),
    ("fcntl-death", "fcntl: the lock of a killed process is free"),
    ("flock-death", "flock: the lock of a killed process is free"),
    ("fcntl-interrupt", "fcntl: a process that waits can be killed, the lock stays whole"),
    ("flock-interrupt", "flock: a process that waits can be killed, the lock stays whole"),
    ("append", "O_APPEND from four processes loses nothing"),
];

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let mounted = Mounted::create(session, checks, "4+2p", &Shape::of("4+2p", 6))?;
    for (probe, about) in PROBES {
        let mut command = mounted.outside(&session.probe);
        command.arg(probe).arg(mounted.mount.join(probe));
        checks.record(about, mounted.program(probe, SECONDS_MAX, &mut command).map(drop));
    }
    mounted.finish(checks);
    Ok(())
}
