//! fsx: random reads, writes, mappings, truncations and punches of one file. Each read is compared
//! with what was written.

use super::checks::Checks;
use super::install;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use std::path::{Path, PathBuf};

const RUN_SECONDS_MAX: u64 = 300;

/// Each code, its number of NSDs, and the NSD that is missing while fsx works.
const CODES: [(Shape, Option<u16>); 4] = [
    (Shape::of("1", 4), None),
    (Shape::of("2x", 4), Some(2)),
    (Shape::of("4+2p", 6), Some(3)),
    (Shape::of("8+2p", 10), None),
];

/// A way to use a file: the sizes and weights of the operations.
struct Profile {
    name: &'static str,
    configuration: &'static str,
}

/// Sizes of any kind on a file of a few blocks. The size is never 0, because fsx takes the `EINVAL`
/// of a posix_fallocate of no bytes for a lack of support.
const MIXED: Profile = Profile {
    name: "mixed",
    configuration: "flen = 6000000
[opsize]
min = 1
max = 200000
[weights]
close_open = 3
invalidate = 2
mapread = 15
mapwrite = 20
read = 15
write = 20
truncate = 25
fsync = 1
fdatasync = 1
posix_fallocate = 4
punch_hole = 20
sendfile = 2
posix_fadvise = 1
copy_file_range = 6
",
};

/// Every operation is on sector boundaries, as for programs with O_DIRECT. Most are punches. There
/// is no posix_fallocate: fsx rounds its length down but not its place, so near the end of the file
/// no length is left, which is EINVAL.
const ALIGNED: Profile = Profile {
    name: "aligned",
    configuration: "flen = 4194304
[opsize]
min = 512
max = 65536
align = 512
[weights]
close_open = 5
invalidate = 5
mapread = 5
mapwrite = 5
read = 20
write = 25
truncate = 20
fsync = 2
fdatasync = 1
punch_hole = 25
copy_file_range = 5
",
};

/// A few bytes at a time. The whole file fits into its inode at first, and then outgrows it.
const SMALL: Profile = Profile {
    name: "small",
    configuration: "flen = 12000
[opsize]
min = 1
max = 1500
[weights]
close_open = 5
invalidate = 5
mapread = 10
mapwrite = 10
read = 20
write = 20
truncate = 25
fsync = 3
fdatasync = 1
posix_fallocate = 3
punch_hole = 10
copy_file_range = 5
",
};

/// Several seeds on every code, in one process. Two of the codes have a missing NSD.
pub(crate) fn direct(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let first = session.seed;
    let (seeds, count) =
        if session.quick { (vec![first], 1000) } else { ((first..first + 5).collect(), 4000) };
    for (shape, missing) in CODES {
        run(session, checks, &shape, missing, &seeds, count)?;
    }
    Ok(())
}

/// One seed on every code, with servers in processes of their own, and patches wherever they can
/// be.
pub(crate) fn socket(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let first = session.seed + 10;
    let (seeds, count) =
        if session.quick { (vec![first], 1000) } else { (vec![first, first + 1], 3000) };
    for (shape, _) in CODES {
        let shape = Shape { socket: true, patches_always: true, ..shape };
        run(session, checks, &shape, None, &seeds, count)?;
    }
    Ok(())
}

pub(crate) fn run(
    session: &Session,
    checks: &mut Checks,
    shape: &Shape,
    missing: Option<u16>,
    seeds: &[u64],
    count: u64,
) -> Result<(), String> {
    let fsx = install::install(session, &install::FSX)?;
    let mounted = Mounted::create(session, checks, shape.code, shape)?;
    if let Some(nsd) = missing {
        mounted.down()?;
        mounted.remove_nsd(nsd)?;
        mounted.up()?;
    }
    let without = missing.map_or(String::new(), |nsd| format!(" without nsd{nsd}"));
    for &seed in seeds {
        for profile in [&MIXED, &ALIGNED, &SMALL] {
            let what = format!("{}{without} {} seed {seed}", shape.code, profile.name);
            let outcome = exercise(&mounted, &fsx, profile, seed, count);
            checks.record(&what, outcome);
        }
    }
    if let Some(nsd) = missing {
        checks.record(&format!("{}: clean while nsd{nsd} is missing", shape.code), mounted.check());
        mounted.down()?;
        mounted.return_nsd(nsd)?;
        mounted.up()?;
    }
    mounted.finish(checks);
    Ok(())
}

/// Runs fsx once.
fn exercise(
    mounted: &Mounted<'_>,
    fsx: &Path,
    profile: &Profile,
    seed: u64,
    count: u64,
) -> Result<(), String> {
    let beside: PathBuf = mounted.beside("fsx")?;
    let configuration = beside.join(format!("{}.toml", profile.name));
    std::fs::write(&configuration, profile.configuration).map_err(|error| error.to_string())?;
    let file = mounted.mount.join(format!("{}-{seed}", profile.name));
    let mut command = mounted.outside(fsx);
    command.arg("-f").arg(&configuration).arg("-P").arg(&beside);
    command.args(["-N", &count.to_string(), "-S", &seed.to_string()]).arg(&file);
    let name = format!("fsx {} {seed}", profile.name);
    mounted.program(&name, RUN_SECONDS_MAX, &mut command)?;
    Ok(())
}
