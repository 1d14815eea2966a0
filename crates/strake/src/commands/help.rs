//! `strake help`: the help of a command, or a document of this version.
//!
//! The documents are within the program, so that they are at hand on a machine without a network,
//! and speak of the version that runs there.

use crate::Cli;
use clap::CommandFactory;
use std::fmt::Write as _;
use std::io::Write as _;
use strake_proto::{Error, ErrorKind, Result};

/// A document: its name as a topic, what it is about, and its text.
struct Topic(&'static str, &'static str, &'static str);

const TOPICS: [Topic; 12] = [
    Topic("start", "what Strake is, and the first hour", include_str!("../../../../README.md")),
    Topic(
        "operating",
        "daily work: disks, mounts, settings, waits",
        include_str!("../../../../docs/operating.md"),
    ),
    Topic(
        "packages",
        "packages, start at boot, upgrades",
        include_str!("../../../../docs/operating/packages.md"),
    ),
    Topic(
        "why-slow",
        "why is it slow, and what to do about it",
        include_str!("../../../../docs/operating/why-is-it-slow.md"),
    ),
    Topic(
        "semantics",
        "what each system call promises",
        include_str!("../../../../docs/SEMANTICS.md"),
    ),
    Topic(
        "promises",
        "what is promised, and which test holds it",
        include_str!("../../../../docs/promises.md"),
    ),
    Topic("glossary", "the words and codes", include_str!("../../../../docs/GLOSSARY.md")),
    Topic(
        "first-cluster",
        "several machines, step by step",
        include_str!("../../../../docs/operating/first-cluster.md"),
    ),
    Topic(
        "first-lab",
        "several nodes on one machine, to try",
        include_str!("../../../../docs/operating/lab.md"),
    ),
    Topic(
        "mm-commands",
        "the commands of Spectrum Scale, and what differs",
        include_str!("../../../../docs/mm.md"),
    ),
    Topic("benchmarks", "measuring and comparing", include_str!("../../../../docs/bench.md")),
    Topic("planning", "designing a system", include_str!("../../../../docs/plan.md")),
];

/// Print the help of a command, or a document.
#[derive(clap::Args)]
#[command(after_help = format!("Topics:\n{}
Examples:
  strake help fs create           as strake fs create --help
  strake help semantics | less    a document", topics()))]
pub(crate) struct HelpArgs {
    /// A command such as `fs create`, or a topic; none for the list of commands.
    #[arg(value_name = "COMMAND|TOPIC")]
    words: Vec<String>,
}

/// A line for each topic.
fn topics() -> String {
    TOPICS.iter().fold(String::new(), |mut lines, Topic(name, about, _)| {
        // A string takes any text.
        let _ = writeln!(lines, "  {name:14} {about}");
        lines
    })
}

/// Prints what `args` asks for.
///
/// # Errors
/// `Invalid` if there is no such command and no such topic; the host's for the output.
pub(crate) fn run(args: &HelpArgs) -> Result<()> {
    let text = text_of(&args.words)?;
    match std::io::stdout().write_all(text.as_bytes()) {
        // A pager that was closed has shown enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

fn text_of(words: &[String]) -> Result<String> {
    let mut command = Cli::command();
    // Gives each subcommand its whole name.
    command.build();
    let found = words.iter().try_fold(&mut command, |at, word| at.find_subcommand_mut(word));
    if let Some(command) = found {
        return Ok(command.render_long_help().to_string());
    }
    let topic = TOPICS.iter().find(|topic| words.len() == 1 && words[0] == topic.0);
    topic.map(|topic| topic.2.to_owned()).ok_or_else(|| {
        let message = format!(
            "there is no command and no topic '{}'. `strake help` lists the commands. Topics:\n{}",
            words.join(" "),
            topics().trim_end()
        );
        Error::new(ErrorKind::Invalid, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help(words: &[&str]) -> Result<String> {
        text_of(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn commands_topics_and_neither() {
        assert!(help(&[]).expect("the commands").contains("strake up --data"));
        assert!(help(&["fs", "create"]).expect("a command").contains("Usage: strake fs create"));
        assert!(help(&["semantics"]).expect("a topic").starts_with("# "));
        for wrong in [&["nothing"] as &[&str], &["fs", "nothing"], &["semantics", "more"]] {
            let error = help(wrong).expect_err("neither");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("glossary"), "{error}");
        }
    }

    #[test]
    fn no_topic_hides_behind_a_command() {
        for Topic(name, ..) in TOPICS {
            assert!(Cli::command().find_subcommand(name).is_none(), "{name}");
        }
    }
}
