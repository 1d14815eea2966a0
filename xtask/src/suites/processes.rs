//! Two processes on one file: shared mappings and locks. `mount_probe`, an example of the crate
//! that may map memory, plays both processes.

use super::checks::Checks;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

const SECONDS_MAX: u64 = 60;

const PROBES: &[(&str, &str)] = &[
    ("mmap", "two processes see each other's stores in a shared mapping, and read() sees both"),
    ("mmap-grow", "stores beyond the old end are seen after the file has grown"),
    ("mmap-write", "write() beside stores in the same pages: neither is lost, and both are seen"),
    (
        "handle",
        "a file is found by its handle when the kernel has forgotten it, until it is deleted",
    ),
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
    checks.record("a running program is not truncated by an open that fails", running(&mounted));
    mounted.finish(checks);
    Ok(())
}

/// Opens a running program with `O_RDONLY | O_TRUNC`. The result must be ETXTBSY, and its bytes
/// stay.
fn running(mounted: &Mounted<'_>) -> Result<(), String> {
    const O_TRUNC: i32 = 0o1000;
    const ETXTBSY: i32 = 26;
    let program = mounted.mount.join("sleep");
    let text = |error: std::io::Error| error.to_string();
    let length = std::fs::copy("/bin/sleep", &program).map_err(text)?;
    let mut child = mounted.outside(&program).arg("60").spawn().map_err(text)?;
    let opened = OpenOptions::new().read(true).custom_flags(O_TRUNC).open(&program);
    let errno = opened.err().and_then(|error| error.raw_os_error());
    let alive = child.try_wait().map_err(text)?.is_none();
    child.kill().and_then(|()| child.wait()).map_err(text)?;
    let kept =
        std::fs::read(&program).map_err(text)? == std::fs::read("/bin/sleep").map_err(text)?;
    if errno == Some(ETXTBSY) && alive && kept {
        return Ok(());
    }
    Err(format!("errno {errno:?}, alive {alive}, its {length} bytes kept {kept}"))
}
