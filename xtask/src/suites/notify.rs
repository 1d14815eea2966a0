//! The way back to the kernel: the kernel is told to drop names, attributes and pages, because they
//! change underneath. `notify_probe` (an example of `strake-fuse`) mounts a file system in memory
//! that does so, and looks at it as programs do. It runs through `/dev/fuse` and through rings.

use super::checks::Checks;
use super::rings::Offer;
use super::session::Session;
use crate::runner::Tally;
use std::path::Path;

const SECONDS_MAX: u64 = 120;

const PROBES: &[(&str, &str)] = &[
    ("names", "names that change, go and come elsewhere are seen once invalidated"),
    ("all-names", "so they are when all names are dropped, absent ones too"),
    ("gone", "a file and a directory removed elsewhere while they are in use"),
    ("attributes", "attributes that change elsewhere are seen once invalidated"),
    ("late-attributes", "attributes that were asked for before a change do not hide it"),
    ("pages", "so are pages, of the range and no others, and a longer or shorter file"),
    ("mapped", "so are mapped pages; stores are written back first"),
    ("listing", "so are listings"),
    ("renamed-directory", "a program works on in a directory that is renamed elsewhere"),
    ("mount-below", "a directory with a mount below stays usable"),
    ("create-waits", "a create that waits holds up names of its directory, and nothing else"),
    ("lookup-waits", "so does a lookup that waits"),
    ("read-waits", "a read that waits holds up its pages, and nothing else"),
    ("write-back-waits", "a write-back that waits holds up its pages, and loses no store"),
    ("storm", "four programs and two threads that invalidate what they work with"),
    ("storm-mapped", "stores to pages that are dropped all the time are not lost"),
    ("unmount-busy", "the mount is taken away while two threads invalidate"),
    ("unmount-held", "the mount leaves the tree while an invalidation waits"),
    ("number-reused", "a daemon that ends leaves the mount alone that has its number now"),
];

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    probe(session, checks, "");
    if !Offer::is_possible() {
        println!("SKIPPED: this kernel has no FUSE over io_uring (Linux 6.14 and later have)");
        checks.add(Tally { skipped: PROBES.len() as u64, ..Default::default() });
        return Ok(());
    }
    let _offer = Offer::make()?;
    probe(session, checks, "--rings");
    Ok(())
}

fn probe(session: &Session, checks: &mut Checks, option: &str) {
    for (probe, about) in PROBES {
        let mount = session.root.join(session.next_number().to_string());
        let outcome = std::fs::create_dir(&mount)
            .map_err(|error| format!("{}: {error}", mount.display()))
            .and_then(|()| run_one(session, checks, probe, &mount, option));
        checks.record(&format!("{option} {about}"), outcome);
    }
}

fn run_one(
    session: &Session,
    checks: &Checks,
    probe: &str,
    mount: &Path,
    option: &str,
) -> Result<(), String> {
    let mut command = session.command(session.probe.with_file_name("notify_probe"));
    command.arg(probe).arg(mount).args(Some(option).filter(|option| !option.is_empty()));
    let name = format!("{probe}{option}");
    session.run(checks.suite(), &name, SECONDS_MAX, &mut command).map(drop)
}
