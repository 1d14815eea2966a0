//! fio writes blocks that carry their own checksum, and reads every one of them back.

use super::checks::Checks;
use super::mounted::{Mounted, Shape};
use super::session::Session;

const JOB_SECONDS_MAX: u64 = 240;

/// The name and the options of each job.
const JOBS: &[(&str, &str)] = &[
    ("sequential", "--rw=write --bs=1M --size=256M --ioengine=psync"),
    ("sequential odd sizes", "--rw=write --bs=33k --size=64M --ioengine=psync"),
    ("sequential direct", "--rw=write --bs=1M --size=128M --ioengine=psync --direct=1"),
    ("random 4k", "--rw=randwrite --bs=4k --size=8M --ioengine=psync"),
    ("random 4k direct", "--rw=randwrite --bs=4k --size=8M --ioengine=psync --direct=1"),
    ("random sizes", "--rw=randwrite --bsrange=512-256k --size=24M --ioengine=psync"),
    (
        "asynchronous",
        "--rw=randwrite --bs=64k --size=32M --ioengine=libaio --direct=1 --iodepth=16",
    ),
    ("memory mapped", "--rw=randwrite --bs=8k --size=16M --ioengine=mmap"),
    ("with fsync", "--rw=write --bs=128k --size=16M --ioengine=psync --fsync=16"),
    ("four jobs", "--rw=randwrite --bs=16k --size=6M --ioengine=psync --numjobs=4"),
    ("four jobs mixed", "--rw=randrw --bs=32k --size=12M --ioengine=psync --numjobs=4"),
];

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    for shape in [Shape::of("4+2p", 6), Shape { block_size: "4M", ..Shape::of("2x", 4) }] {
        let mounted = Mounted::create(session, checks, shape.code, &shape)?;
        for (name, options) in JOBS {
            let mut fio = mounted.outside("fio");
            fio.arg(format!("--name={}", name.replace(' ', "-")));
            fio.arg("--directory").arg(&mounted.mount).args(options.split(' '));
            // `verify_fatal` stops fio at the first bad block; the exit code shows it.
            fio.args(["--verify=crc32c", "--do_verify=1", "--verify_fatal=1", "--fallocate=none"]);
            fio.args(["--randseed=7", "--group_reporting"]);
            let outcome = mounted.program(&format!("fio {name}"), JOB_SECONDS_MAX, &mut fio);
            checks.record(&format!("{} {name}", shape.code), outcome.map(drop));
        }
        mounted.finish(checks);
    }
    Ok(())
}
