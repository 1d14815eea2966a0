//! pjdfstest: 398 tests of POSIX file system calls, as root and as two other users.
//!
//! The tests run in two processes. Some tests leave files open for writing until their process
//! ends. No file system can then be remounted read-only, which the `erofs` tests do. If the `erofs`
//! tests come after such tests, they fail on ext4 too; the order depends on the linker. So the
//! first process may not remount, and skips exactly the tests that the second process runs.
//!
//! One test asks the C library for the largest link count, and skips itself if that library does
//! not know the file system. The runner does the same test itself ([`links_up_to_the_limit`]).

use super::checks::Checks;
use super::command;
use super::install;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use crate::runner::Tally;
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many tests this version has. A smaller number would mean that some were not run.
const TEST_COUNT: u64 = 398;
const TIME_MAX: Duration = Duration::from_secs(10 * 60);

/// The test that runs only on file systems that the C library knows.
const LINK_COUNT_TEST: &str = "link::link_count_max";
/// The most names one file can have (`strake_proto::limits::LINK_COUNT_MAX`).
const LINK_COUNT_MAX: u64 = 65000;

fn configuration(allow_remount: bool) -> String {
    format!(
        "[features]
posix_fallocate = {{}}
rename_ctime = {{}}
utimensat = {{}}
utime_now = {{}}

[settings]
naptime = 0.01
allow_remount = {allow_remount}

[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"tests\", \"tests\"]]
"
    )
}

/// Everything runs in one process.
pub(crate) fn direct(session: &Session, checks: &mut Checks) -> Result<(), String> {
    run(session, checks, Shape::of("4+2p", 6))
}

/// Servers run in processes of their own.
pub(crate) fn socket(session: &Session, checks: &mut Checks) -> Result<(), String> {
    run(session, checks, Shape { socket: true, ..Shape::of("4+2p", 6) })
}

pub(crate) fn run(session: &Session, checks: &mut Checks, shape: Shape) -> Result<(), String> {
    let program = install::install(session, &install::PJDFSTEST)?;
    let before = checks.total();
    let mounted = Mounted::create(session, checks, "posix", &shape)?;
    let most = part(session, checks, &mounted, &program, "")?;
    let remounting = part(session, checks, &mounted, &program, "erofs")?;
    let mut results = BTreeMap::new();
    for (name, result) in most.into_iter().chain(remounting) {
        // The second process decides on the tests that the first one skipped.
        results.insert(name, result);
    }
    if results.get(LINK_COUNT_TEST).is_some_and(|result| result == "skipped") {
        results.remove(LINK_COUNT_TEST);
        let outcome = links_up_to_the_limit(&mounted.mount);
        checks.record("link::link_count_max, done by the runner", outcome);
    }
    for (name, result) in &results {
        if result != "ok" {
            println!("{result:>16}  {name}");
        }
    }
    let count = |wanted: &str| results.values().filter(|result| *result == wanted).count() as u64;
    let (passed, skipped) = (count("ok"), count("skipped"));
    let failed = results.len() as u64 - passed - skipped;
    checks.add(Tally { passed, failed, skipped });
    let total = checks.total() - before;
    checks.hold("all tests were run", total == TEST_COUNT, || {
        format!("{total} instead of {TEST_COUNT}")
    });
    mounted.finish(checks);
    Ok(())
}

/// Runs the tests whose names contain `pattern`. Returns their names and results.
fn part(
    session: &Session,
    checks: &Checks,
    mounted: &Mounted<'_>,
    program: &Path,
    pattern: &str,
) -> Result<Vec<(String, String)>, String> {
    let tools = mounted.beside("tools")?;
    let file = tools.join("pjdfstest.toml");
    std::fs::write(&file, configuration(!pattern.is_empty())).map_err(|error| error.to_string())?;
    let path = std::env::var("PATH").unwrap_or_default();
    let wrapper = mount_wrapper(&tools)?;
    let mut pjdfstest = session.command(program);
    pjdfstest.env("PATH", format!("{}:{path}", wrapper.display()));
    pjdfstest.arg("-c").arg(&file).arg("-p").arg(&mounted.mount);
    // The secondary file system can be any other; the host's own will do.
    pjdfstest.arg("-s").arg(mounted.beside("secondary")?).arg(pattern);
    let log = session.log(checks.suite(), &format!("pjdfstest {pattern}"));
    let ended = command::run(&mut pjdfstest, &log, TIME_MAX)?;
    let output = ended.output();
    let results = read_results(&output);
    for (name, _) in results.iter().flatten().filter(|(_, result)| result == "FAILED") {
        println!("{name}:\n    {}", message_of(&output, name).join("\n    "));
    }
    results.ok_or_else(|| ended.complaint("no results, or not as many as the summary says"))
}

/// Gives one file names until that is refused. The refusal must come at the limit, with EMLINK.
fn links_up_to_the_limit(mount: &Path) -> Result<(), String> {
    const EMLINK: i32 = 31;
    let directory = mount.join("links");
    let file = directory.join("0");
    let text = |error: std::io::Error| error.to_string();
    std::fs::create_dir(&directory).map_err(text)?;
    std::fs::write(&file, b"").map_err(text)?;
    for number in 1..LINK_COUNT_MAX {
        std::fs::hard_link(&file, directory.join(number.to_string()))
            .map_err(|error| format!("link {number}: {error}"))?;
    }
    let refused = std::fs::hard_link(&file, directory.join("one too many"));
    let errno = refused.err().and_then(|error| error.raw_os_error());
    let count = std::fs::metadata(&file).map_err(text)?.nlink();
    std::fs::remove_dir_all(&directory).map_err(text)?;
    if errno == Some(EMLINK) && count == LINK_COUNT_MAX {
        Ok(())
    } else {
        Err(format!("errno {errno:?} with {count} names"))
    }
}

/// Tests remount with the program `mount`, which would start a helper program for this type of file
/// system. The option `-i` makes it ask the kernel itself.
fn mount_wrapper(tools: &Path) -> Result<PathBuf, String> {
    let directory = tools.join("bin");
    let wrapper = directory.join("mount");
    std::fs::create_dir_all(&directory)
        .and_then(|()| std::fs::write(&wrapper, "#!/bin/sh\nexec /usr/bin/mount -i \"$@\"\n"))
        .and_then(|()| std::fs::set_permissions(&wrapper, PermissionsExt::from_mode(0o755)))
        .map_err(|error| format!("{}: {error}", wrapper.display()))?;
    Ok(directory)
}

/// Reads lines `NAME ok|FAILED|skipped|…` up to `Summary: …, 398 total`, whose total must be their
/// number.
fn read_results(output: &str) -> Option<Vec<(String, String)>> {
    const RESULTS: [&str; 5] =
        ["ok", "FAILED", "skipped", "PASSED UNEXPECTEDLY", "failed as expected"];
    let mut results = Vec::new();
    for line in output.lines().map(without_colours) {
        if let Some(counts) = line.strip_prefix("Summary: ") {
            let total = counts.rsplit_once(", ")?.1.strip_suffix(" total")?;
            return (total.parse() == Ok(results.len())).then_some(results);
        }
        let Some((name, result)) = line.split_once(' ') else { continue };
        if RESULTS.contains(&result.trim()) && !name.starts_with('\t') {
            results.push((name.to_owned(), result.trim().to_owned()));
        }
    }
    None
}

/// What the suite said about a failed test: the lines below its name.
fn message_of<'a>(output: &'a str, name: &str) -> Vec<&'a str> {
    const LINES_MAX: usize = 8;
    let is_head = |line: &&str| {
        let plain = without_colours(line);
        plain.starts_with(name) && plain.trim_end().ends_with("FAILED")
    };
    let below = output.lines().skip_while(|line| !is_head(line)).skip(1);
    below.take_while(|line| line.starts_with('\t')).take(LINES_MAX).map(str::trim).collect()
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
    fn results_are_read_with_colours_and_must_be_complete() {
        let text = "\x1b[34mlink::erofs\x1b[0m                   \x1b[33mskipped\x1b[0m\n\t\
                    not allowed\nopen::a     \x1b[32mok\x1b[0m\nopen::b  FAILED\n\tpanicked\n\n\
                    \x1b[1;31mSummary\x1b[0m: 1 \x1b[1mfailed\x1b[0m, 1 skipped, 1 passed, 0 \
                    expected failures, 3 total\nError: Some tests have failed\n";
        let pair = |name: &str, result: &str| (name.to_owned(), result.to_owned());
        let wanted =
            vec![pair("link::erofs", "skipped"), pair("open::a", "ok"), pair("open::b", "FAILED")];
        assert_eq!(read_results(text), Some(wanted));
        assert_eq!(read_results(&text.replace("3 total", "4 total")), None);
        let said = text.replace("\tpanicked", "\tassertion failed: 1 == 2\n\tat open.rs:7");
        assert_eq!(message_of(&said, "open::b"), ["assertion failed: 1 == 2", "at open.rs:7"]);
        assert_eq!(message_of(&said, "open::a"), Vec::<&str>::new(), "it did not fail");
        assert_eq!(read_results("open::a ok\n"), None, "it died before its summary");
    }
}
