//! Wrong arguments end with exit code 2 and a sentence that says what to write instead.

use super::checks::Checks;
use super::command;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use std::time::Duration;

const TIME_MAX: Duration = Duration::from_secs(30);

/// Arguments for when no file system exists, and a word that the advice must contain. `DATA` and
/// `MNT` stand for fresh paths.
const FRESH: &[(&str, &str)] = &[
    ("", "Usage"),
    ("upp", "up"),
    ("up", "--data"),
    ("up --data DATA", "--mount"),
    ("up --data DATA --mount DATA", "choose two"),
    ("up --data DATA --mount MNT --code 5+5p", "4+2p"),
    ("up --data DATA --mount MNT --code 8+2p --nsds 4", "10"),
    ("up --data DATA --mount MNT --block-size 3M", "power of two"),
    ("up --data DATA --mount MNT --block-size 1K", "256 KiB"),
    ("up --data DATA --mount MNT --nsd-size 1M", "64 MiB"),
    ("up --data DATA --mount MNT --nsd-size lots", "lots"),
    ("up --data DATA --mount MNT --set pagepol=1G", "pagepool"),
    ("up --data DATA --mount MNT --set pagepool=1", "16 MiB"),
    ("up --data DATA --mount MNT --set rpc=tcp", "socket"),
    ("up --data DATA --mount MNT --set metrics=everywhere", "127.0.0.1:7791"),
    ("up --data DATA --mount MNT --set log_level=loud", "debug or error"),
    ("up --data DATA --mount MNT --name a/b", "letters"),
    ("down", "--data"),
    ("fs", "check"),
    ("fs chekc", "check"),
    ("diag", "iohist"),
    ("diag explain", "FILE"),
    ("diag explain --blocks few /", "few"),
    ("diag explain slow --since never", "10m"),
    ("diag explain slow --since 1h", "10m"),
    ("diag explain slow --pid me", "--pid"),
    ("health everything", "everything"),
    ("stat 0", "1..=3600"),
    ("stat often", "often"),
    ("stat 1 0", "0"),
    ("mon io_s -i DATA", "--input"),
    ("mon --timeout 0 io_s", "0"),
    ("mon --repeat few io_s", "few"),
    ("diag trace", "report"),
    ("diag trace stat", "start"),
    ("diag trace start --events 5", "1024"),
    ("diag trace start --events many", "1024"),
    ("diag trace report --rows 0", "from 1"),
    ("diag trace report --by colour", "process"),
    ("diag trace report --pid me", "--pid"),
    ("diag trace report --of read", "--picture"),
    ("diag trace report --json --chrome DATA", "--chrome"),
];

/// Arguments for a file system that exists, made with code 2x on four NSDs.
const PRESENT: &[(&str, &str)] = &[
    ("up --data DATA --mount MNT --code 4+2p", "2x"),
    ("up --data DATA --mount MNT --nsds 6", "4"),
    ("up --data DATA --mount MNT --block-size 4M", "1 MiB"),
    ("up --data DATA --mount MNT --set pagepool=128M", "take it down"),
    ("up --data DATA --mount MNT2", "take it down"),
    ("disk replace nsd1 /proc/x --data DATA", "block device"),
    ("disk replace nsd1 /dev/null --data DATA", "block device"),
    ("disk replace nsd1 /nowhere/new --data DATA", "block device"),
    ("disk replace nsd1 MNT --data DATA", "itself"),
    ("disk replace nsd1 MNT2 --data DATA --size 1M", "64 MiB"),
    ("disk replace nsd1 MNT2 --data DATA --rate lots", "lots"),
    ("disk replace nsd9 MNT2 --data DATA", "nsd4"),
    ("disk add --data DATA", "<NEW>"),
    ("disk add /proc/x --data DATA", "block device"),
    ("disk add MNT --data DATA", "itself"),
    ("disk add MNT2 --data DATA --size 1M", "64 MiB"),
    ("disk delete nsd9 --data DATA", "nsd4"),
    ("disk delete nsd1 --data DATA --rate lots", "lots"),
    ("disk start nsd9 --data DATA", "nsd4"),
    ("disk suspend nsd9 --data DATA", "nsd4"),
    ("disk resume nsd9 --data DATA", "nsd4"),
    ("mon iosss --data DATA", "fs_io_s"),
    ("mon once --data DATA", "fs_io_s"),
    ("mon rhist nr 4m;1m 1 --data DATA", "range error"),
    ("mon nlist add nowhere --data DATA", "only this node"),
    ("mon source /nowhere/requests --data DATA", "/nowhere/requests"),
    ("mon -i /nowhere/requests --data DATA", "/nowhere/requests"),
    ("diag explain /proc --data DATA", "is not in the file system"),
    ("diag explain slow --path /proc --data DATA", "is not in the file system"),
    ("diag trace report --nsd nsd9 --data DATA", "nsd4"),
    ("diag trace report --file /proc --data DATA", "is not in the file system"),
];

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let fresh = session.root.join("usage-fresh");
    std::fs::create_dir(&fresh).map_err(|error| error.to_string())?;
    for (words, advice) in FRESH {
        refused(session, checks, &fresh, words, advice);
        let left = fresh.join("data").exists() || fresh.join("mnt").exists();
        checks.hold(&format!("'{words}' leaves nothing behind"), !left, || {
            "DATA or MNT exists now".to_owned()
        });
        let _ = std::fs::remove_dir_all(fresh.join("data"));
        let _ = std::fs::remove_dir_all(fresh.join("mnt"));
    }
    let mounted = Mounted::create(session, checks, "present", &Shape::of("2x", 4))?;
    let root = mounted.data().parent().map(std::path::Path::to_owned).ok_or("no parent")?;
    for (words, advice) in PRESENT {
        refused(session, checks, &root, words, advice);
    }
    checks.hold("they leave nothing behind", !root.join("mnt2").exists(), || {
        "MNT2 exists now".to_owned()
    });
    checks.record("a second up of what is up says so", mounted.daemon().map(drop));
    mounted.finish(checks);
    Ok(())
}

fn refused(
    session: &Session,
    checks: &mut Checks,
    root: &std::path::Path,
    words: &str,
    advice: &str,
) {
    let mut strake = session.command(&session.strake);
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        match word {
            "DATA" => strake.arg(root.join("data")),
            "MNT" => strake.arg(root.join("mnt")),
            "MNT2" => strake.arg(root.join("mnt2")),
            word => strake.arg(word),
        };
    }
    let log = session.log(checks.suite(), words);
    let outcome = command::run(&mut strake, &log, TIME_MAX).and_then(|ended| {
        match (ended.status.code(), ended.output().contains(advice)) {
            (Some(2), true) => Ok(()),
            (Some(2), false) => Err(ended.complaint(&format!("the advice lacks '{advice}'"))),
            _ => Err(ended.complaint("the exit code is not 2")),
        }
    });
    checks.record(&format!("'strake {words}' is refused with advice"), outcome);
}
