//! pjdfstest: 398 tests of POSIX file system calls, as root and as two other users.

use super::checks::Checks;
use super::command;
use super::install;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use crate::runner::Tally;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many tests this version has; fewer would mean that some were not run.
const TEST_COUNT: u64 = 398;
const TIME_MAX: Duration = Duration::from_secs(10 * 60);

const CONFIGURATION: &str = r#"[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}

[settings]
naptime = 0.01
allow_remount = true

[dummy_auth]
entries = [["nobody", "nogroup"], ["tests", "tests"]]
"#;

/// Everything in one process.
pub(crate) fn direct(session: &Session, checks: &mut Checks) -> Result<(), String> {
    run(session, checks, Shape::of("4+2p", 6))
}

/// Servers in processes of their own.
pub(crate) fn socket(session: &Session, checks: &mut Checks) -> Result<(), String> {
    run(session, checks, Shape { socket: true, ..Shape::of("4+2p", 6) })
}

fn run(session: &Session, checks: &mut Checks, shape: Shape) -> Result<(), String> {
    let program = install::install(session, &install::PJDFSTEST)?;
    let mounted = Mounted::create(session, checks, "posix", &shape)?;
    let tests = mounted.beside("tools")?;
    let configuration = tests.join("pjdfstest.toml");
    std::fs::write(&configuration, CONFIGURATION).map_err(|error| error.to_string())?;
    let path = std::env::var("PATH").unwrap_or_default();
    let wrapper = mount_wrapper(&tests)?;
    let mut pjdfstest = session.command(program);
    pjdfstest.env("PATH", format!("{}:{path}", wrapper.display()));
    pjdfstest.arg("-c").arg(&configuration).arg("-p").arg(&mounted.mount);
    // Any other file system will do; the host's own is one.
    pjdfstest.arg("-s").arg(mounted.beside("secondary")?);
    let ended = command::run(&mut pjdfstest, &session.log(checks.suite(), "pjdfstest"), TIME_MAX)?;
    let output = ended.output();
    let tally = read_summary(&output).ok_or_else(|| ended.complaint("no summary at the end"))?;
    for line in output.lines() {
        let plain = without_colours(line);
        if plain.ends_with(" FAILED") || plain.ends_with(" skipped") {
            println!("{}", plain.trim_end());
        }
    }
    checks.add(tally);
    let total = tally.passed + tally.failed + tally.skipped;
    checks.hold("all tests were run", total == TEST_COUNT, || {
        format!("{total} instead of {TEST_COUNT}; log {}", ended.log.display())
    });
    mounted.finish(checks);
    Ok(())
}

/// Remounts go through `mount`, which would start a helper program for this type; `-i` tells it
/// to ask the kernel itself.
fn mount_wrapper(tools: &Path) -> Result<PathBuf, String> {
    let directory = tools.join("bin");
    let wrapper = directory.join("mount");
    std::fs::create_dir_all(&directory)
        .and_then(|()| std::fs::write(&wrapper, "#!/bin/sh\nexec /usr/bin/mount -i \"$@\"\n"))
        .and_then(|()| std::fs::set_permissions(&wrapper, PermissionsExt::from_mode(0o755)))
        .map_err(|error| format!("{}: {error}", wrapper.display()))?;
    Ok(directory)
}

/// Reads `Summary: 0 failed, 0 skipped, 398 passed, 0 expected failures, 398 total`.
fn read_summary(output: &str) -> Option<Tally> {
    let line = output.lines().map(without_colours).rfind(|line| line.starts_with("Summary: "))?;
    let mut tally = Tally::default();
    for part in line.strip_prefix("Summary: ")?.split(", ") {
        let (count, name) = part.split_once(' ')?;
        let count: u64 = count.parse().ok()?;
        match name {
            "failed" => tally.failed += count,
            "passed" => tally.passed += count,
            "skipped" => tally.skipped += count,
            // None is expected, so each would be news.
            "expected failures" => tally.failed += count,
            _ => {}
        }
    }
    Some(tally)
}

/// Drops terminal colours (`ESC [ … m`).
fn without_colours(line: &str) -> String {
    let mut parts = line.split("\x1b[");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once('m').map_or("", |(_, text)| text));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_read_with_and_without_colours() {
        let wanted = Some(Tally { passed: 395, failed: 2, skipped: 1 });
        let plain = "x ok\n\nSummary: 2 failed, 1 skipped, 395 passed, 0 expected failures, 398 \
                     total\nError: Some tests have failed\n";
        assert_eq!(read_summary(plain), wanted);
        let coloured = "\x1b[1;31mSummary\x1b[0m: 2 \x1b[1;31mfailed\x1b[0m, 1 \
                        \x1b[1;33mskipped\x1b[0m, 395 \x1b[1;32mpassed\x1b[0m, 0 expected \
                        failures, 398 total";
        assert_eq!(read_summary(coloured), wanted);
        assert_eq!(read_summary("nothing"), None);
    }
}
