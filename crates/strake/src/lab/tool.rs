//! Runs programs that a lab needs, with a time limit: iproute2, nftables, and Strake's own commands
//! inside a node's network namespace.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;
use strake_env::{Clock, RealClock};
use strake_proto::{Error, ErrorKind, Result};

/// How often to look whether a program has ended.
const LOOK: Duration = Duration::from_millis(3);
/// For one change of the network.
const NETWORK_MAX: Duration = Duration::from_secs(20);

/// What a program that ran to its end has written.
pub(super) struct Output {
    pub(super) succeeded: bool,
    pub(super) text: String,
    pub(super) errors: String,
}

/// Runs `ip` or `tc` of iproute2.
///
/// # Errors
/// `NotFound` if the program is missing; `Io` with what it says if it fails; `TimedOut`.
pub(super) fn iproute(program: &str, words: &[&str]) -> Result<String> {
    network(program, words, "iproute2")
}

/// Runs `nft` of nftables in a network namespace.
///
/// # Errors
/// `NotFound` if `nft` is missing; `Io` with what it says if it fails; `TimedOut`.
pub(super) fn nft_in(namespace: &str, words: &[&str]) -> Result<String> {
    // `nsenter` is there wherever labs are, so what is missing is looked for here.
    let is_there = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|it| it.join("nft").exists()));
    if !is_there {
        let detail = "losing packets and `--from` need the program nft: install nftables";
        return Err(Error::new(ErrorKind::NotFound, detail));
    }
    let net = format!("--net={}", super::network::path(namespace).display());
    let words = [&[&net, "--", "nft"], words].concat();
    network("nsenter", &words, "util-linux")
}

/// Runs a program that changes or shows the network.
fn network(program: &str, words: &[&str], package: &str) -> Result<String> {
    let mut command = Command::new(program);
    command.args(words);
    let output = run(&mut command, NETWORK_MAX).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let detail = format!("a lab needs the program {program}: install {package}");
            Error::new(ErrorKind::NotFound, detail)
        }
        _ => error,
    })?;
    if output.succeeded {
        return Ok(output.text);
    }
    let detail = format!("{program} {}: {}", words.join(" "), output.errors.trim());
    Err(Error::new(ErrorKind::Io, detail))
}

/// Runs a command of this program in a network namespace. A daemon that it starts is in the
/// namespace too, and so is each mount that the daemon starts. Only the network is another one:
/// mounts are seen by the whole machine.
///
/// # Errors
/// `Io` with what the command says; `TimedOut`.
pub(super) fn strake_in(namespace: &str, words: &[&str], limit: Duration) -> Result<String> {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", super::network::path(namespace).display()));
    command.arg("--").arg(crate::supervisor::own_program()?).args(words);
    // Otherwise a command that means a node would take the user's.
    command.env_remove("STRAKE_NODE").env_remove("STRAKE_DATA");
    let output = run(&mut command, limit)?;
    if output.succeeded {
        return Ok(output.text);
    }
    let said = output.errors.trim();
    let said = said.strip_prefix("strake: ").unwrap_or(said);
    let shown = words.iter().take(2).copied().collect::<Vec<_>>().join(" ");
    Err(Error::new(ErrorKind::Io, format!("`strake {shown}`: {said}")))
}

/// Runs a program to its end. Its output goes to files in memory, which never fill up as a pipe
/// does, and which no daemon that it starts can keep open for us.
fn run(command: &mut Command, limit: Duration) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (mut text, mut errors) = (in_memory()?, in_memory()?);
    // A group of its own: Ctrl-C ends the lab's command, which then cleans up in order.
    command.process_group(0).stdin(Stdio::null());
    command.stdout(text.try_clone()?).stderr(errors.try_clone()?);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::new(ErrorKind::NotFound, format!("no {name}")),
        _ => Error::from(error).context(&name),
    })?;
    let end = RealClock.monotonic() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if RealClock.monotonic() >= end {
            child.kill()?;
            child.wait()?;
            let detail = format!("{name} has not ended after {} s", limit.as_secs());
            return Err(Error::new(ErrorKind::TimedOut, detail));
        }
        RealClock.sleep(LOOK);
    };
    let (text, errors) = (read(&mut text)?, read(&mut errors)?);
    Ok(Output { succeeded: status.success(), text, errors })
}

fn in_memory() -> Result<File> {
    let file = rustix::fs::memfd_create("strake-lab", rustix::fs::MemfdFlags::CLOEXEC);
    Ok(file.map_err(std::io::Error::from)?.into())
}

fn read(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<Output> {
        run(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn a_program_says_what_it_says_and_may_leave_another_behind() {
        let output = shell("echo out; echo err >&2; sleep 5 & exit 3", Duration::from_secs(4));
        let output = output.expect("it does not wait for what is left behind");
        assert_eq!((output.text.as_str(), output.errors.as_str()), ("out\n", "err\n"));
        assert!(!output.succeeded);
        assert!(shell("true", Duration::from_secs(20)).expect("runs").succeeded);
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let error = shell("exec sleep 60", Duration::from_millis(20)).err().expect("given up");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run(&mut Command::new("strake-no-such"), Duration::from_secs(1)).err();
        let error = error.expect("missing");
        assert_eq!(
            (error.kind(), error.to_string()),
            (ErrorKind::NotFound, "no strake-no-such".into())
        );
    }
}
