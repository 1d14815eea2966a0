//! `strake mm NAME`, and links named like the commands: the interface of Spectrum Scale, which
//! administrators know. Each command is translated into calls that the native commands make.
//!
//! Commands that change something become words of native commands ([`words`]), and those run.
//! Listings ask what the native listings ask, and print it in the layouts that scripts expect
//! ([`listing`], [`layout`]). Nothing is decided here. `docs/mm.md` says what differs.

mod absent;
mod here;
mod layout;
mod listing;
mod nodes;
mod words;

use crate::output;
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use strake_proto::{Error, ErrorKind, Result};

/// Use the commands of Spectrum Scale. A link named like a command does the same.
#[derive(Subcommand, Debug)]
#[command(
    disable_help_subcommand = true,
    after_help = "Examples:
  strake mm mmlsfs all
  strake mm mmdf lab -Y
  strake mm mmlsdisk lab -e
  strake mm mmdiag --waiters
  ln -s $(command -v strake) /usr/local/sbin/mmlsnsd     a link does the same

STRAKE_NODE names the directory of a node, and STRAKE_DATA a data directory, where there are several
on this machine. `strake help mm-commands` says what is the same, what differs, and what is missing."
)]
pub(crate) enum MmCommand {
    /// Show the cluster and its nodes.
    Mmlscluster(Parsable),
    /// Show whether nodes are up.
    Mmgetstate(Getstate),
    /// List NSDs and the nodes that serve them.
    Mmlsnsd(Lsnsd),
    /// Show the attributes of a file system.
    Mmlsfs(Lsfs),
    /// Show the state of the disks of a file system.
    Mmlsdisk(Lsdisk),
    /// Show the space of a file system and its disks.
    Mmdf(Df),
    /// Show settings.
    Mmlsconfig(Lsconfig),
    /// Say how settings are changed here.
    Mmchconfig(Chconfig),
    /// Show what the daemon does and waits for.
    Mmdiag(Diag),
    /// Count what programs do: `strake mon`.
    Mmpmon(Pmon),
    /// Make a cluster of this machine, and invite the other nodes.
    Mmcrcluster(Box<Crcluster>),
    /// Invite nodes to the cluster.
    Mmaddnode(NodeList),
    /// Delete nodes of the cluster.
    Mmdelnode(NodeList),
    /// Make NSDs.
    Mmcrnsd(Crnsd),
    /// Delete NSDs that belong to no file system.
    Mmdelnsd(Delnsd),
    /// Make a file system.
    Mmcrfs(Box<Crfs>),
    /// Delete a file system with everything in it.
    Mmdelfs(Delfs),
    /// Mount a file system.
    Mmmount(Mount),
    /// Unmount a file system.
    #[command(alias = "mmunmount")]
    Mmumount(Umount),
    /// Start the server process of this machine's node.
    Mmstartup(Nodes),
    /// End the server process of this machine's node.
    Mmshutdown(Nodes),
    /// Verify a file system.
    Mmfsck(Fsck),
    /// Change how disks are used.
    Mmchdisk(Chdisk),
    /// Replace a disk.
    Mmrpldisk(Rpldisk),
    /// Add disks to a file system.
    Mmadddisk(Adddisk),
    /// Delete disks of a file system.
    Mmdeldisk(Deldisk),
    /// Accepted: no licence is needed.
    Mmchlicense(Chlicense),
    /// Show that no licence is needed.
    Mmlslicense(Lslicense),
    /// Trace what happens: `strake diag trace`.
    Mmtracectl(Tracectl),
    /// Any other command says what to do in its place.
    #[command(external_subcommand)]
    Other(Vec<OsString>),
}

/// The form of a listing.
#[derive(Args, Debug)]
pub(crate) struct Parsable {
    /// One line for each row, with fields between colons.
    #[arg(short = 'Y')]
    y: bool,
}

/// Some nodes, or all.
#[derive(Args, Debug, Default)]
pub(crate) struct Nodes {
    /// All nodes.
    #[arg(short = 'a', conflicts_with = "nodes")]
    all: bool,
    /// Names of nodes with commas between them, or a file with one in each line.
    #[arg(short = 'N', value_name = "NODES")]
    nodes: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Getstate {
    #[command(flatten)]
    nodes: Nodes,
    /// Show the quorum, and how many nodes are up.
    #[arg(short = 'L')]
    long: bool,
    #[command(flatten)]
    parsable: Parsable,
}

#[derive(Args, Debug)]
pub(crate) struct Lsnsd {
    /// All NSDs, as without it.
    #[arg(short = 'a')]
    all: bool,
    /// Only those that belong to no file system.
    #[arg(short = 'F', conflicts_with = "device")]
    free: bool,
    /// Only those of a file system.
    #[arg(short = 'f', value_name = "DEVICE")]
    device: Option<String>,
    /// Only these, with semicolons between them.
    #[arg(short = 'd', value_name = "DISKS")]
    disks: Option<String>,
    /// Show their identities.
    #[arg(short = 'L', conflicts_with = "extended")]
    long: bool,
    /// Show their identities and devices.
    #[arg(short = 'X')]
    extended: bool,
    #[command(flatten)]
    parsable: Parsable,
}

#[derive(Args, Debug)]
pub(crate) struct Lsfs {
    /// The file system, or `all`.
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Attributes, such as -B, and -Y for one line each with fields between colons.
    #[arg(value_name = "FLAGS", allow_hyphen_values = true, trailing_var_arg = true)]
    flags: Vec<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Lsdisk {
    /// The file system.
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Only these, with semicolons between them.
    #[arg(short = 'd', value_name = "DISKS")]
    disks: Option<String>,
    /// Only those that are not up and ready.
    #[arg(short = 'e')]
    exceptions: bool,
    /// Show their numbers.
    #[arg(short = 'L')]
    long: bool,
    #[command(flatten)]
    parsable: Parsable,
}

#[derive(Args, Debug)]
pub(crate) struct Df {
    /// The file system.
    #[arg(value_name = "DEVICE")]
    device: String,
    #[command(flatten)]
    parsable: Parsable,
}

#[derive(Args, Debug)]
pub(crate) struct Lsconfig {
    /// Only these settings, with commas between them.
    #[arg(value_name = "SETTINGS", value_delimiter = ',')]
    names: Vec<String>,
    #[command(flatten)]
    parsable: Parsable,
}

#[derive(Args, Debug)]
pub(crate) struct Chconfig {
    /// Settings and values, with commas between them.
    #[arg(value_name = "KEY=VALUE", required = true)]
    changes: Vec<String>,
    /// At once, and kept.
    #[arg(short = 'i')]
    immediately: bool,
    /// At once, and not kept.
    #[arg(short = 'I')]
    only_now: bool,
    #[command(flatten)]
    nodes: Nodes,
}

#[derive(Args, Debug)]
pub(crate) struct Diag {
    /// Show everything that can be shown.
    #[arg(long)]
    all: bool,
    /// Show the version.
    #[arg(long)]
    version: bool,
    /// Show what waits.
    #[arg(long)]
    waiters: bool,
    /// Show what the daemon holds in memory.
    #[arg(long)]
    memory: bool,
    /// Show the connections with other nodes.
    #[arg(long)]
    network: bool,
    /// Show the settings.
    #[arg(long)]
    config: bool,
    /// Show the last I/Os.
    #[arg(long)]
    iohist: bool,
    /// Show which files nodes take from each other.
    #[arg(long)]
    tokenmgr: bool,
    /// Show counts and times of operations.
    #[arg(long)]
    stats: bool,
    /// For --waiters, --config and --version: fields between colons.
    #[arg(short = 'Y')]
    y: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Pmon {
    /// Read requests from a file.
    #[arg(short = 'i', value_name = "FILE")]
    input: Option<PathBuf>,
    /// Milliseconds between repetitions.
    #[arg(short = 'd', value_name = "MS")]
    delay: Option<u64>,
    /// Answer for programs.
    #[arg(short = 'p')]
    parsable: bool,
    /// Repeat the requests.
    #[arg(short = 'r', value_name = "N")]
    repeat: Option<u64>,
    /// Print no prompt.
    #[arg(short = 's')]
    silent: bool,
    /// Wait at most so many seconds for an answer.
    #[arg(short = 't', value_name = "S")]
    timeout: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct Crcluster {
    /// Nodes as NAME[:quorum-manager], with commas between them, or a file with one in each line.
    /// The first is this machine.
    #[arg(short = 'N', short_alias = 'n', value_name = "NODES")]
    nodes: String,
    /// The cluster's name [default: the first node's].
    #[arg(short = 'C', value_name = "NAME")]
    name: Option<String>,
    /// Accepted and ignored, as -s, -r, -R, -U, -A and --ccr-enable: the nodes of the quorum keep
    /// the records, and no remote shell is used.
    #[arg(short = 'p', value_name = "NODE")]
    primary: Option<String>,
    #[arg(short = 's', value_name = "NODE", hide = true)]
    secondary: Option<String>,
    #[arg(short = 'r', value_name = "PROGRAM", hide = true)]
    shell: Option<String>,
    #[arg(short = 'R', value_name = "PROGRAM", hide = true)]
    copy: Option<String>,
    #[arg(short = 'U', value_name = "DOMAIN", hide = true)]
    domain: Option<String>,
    #[arg(short = 'A', hide = true)]
    autostart: bool,
    #[arg(long, hide = true)]
    ccr_enable: bool,
}

#[derive(Args, Debug)]
pub(crate) struct NodeList {
    /// Nodes as NAME[:quorum-manager], with commas between them, or a file with one in each line.
    #[arg(short = 'N', short_alias = 'n', value_name = "NODES")]
    #[arg(required_unless_present = "all")]
    nodes: Option<String>,
    /// All nodes.
    #[arg(short = 'a')]
    all: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Crnsd {
    /// The file with stanzas or descriptors.
    #[arg(short = 'F', value_name = "FILE")]
    file: PathBuf,
    /// `no` uses devices even if they hold something else.
    #[arg(short = 'v', value_name = "yes|no", default_value = "yes", action = clap::ArgAction::Set, value_parser = yes_or_no)]
    verify: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Delnsd {
    /// Names of NSDs, with semicolons between them.
    #[arg(value_name = "DISKS", required_unless_present = "file")]
    disks: Option<String>,
    /// The file that describes the NSDs.
    #[arg(short = 'F', value_name = "FILE", conflicts_with = "disks")]
    file: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct Crfs {
    /// The name, with the mount point before it, or behind it as -T.
    #[arg(value_name = "MNT DEVICE", num_args = 1..=3, required = true)]
    names: Vec<String>,
    /// The file that describes its NSDs.
    #[arg(short = 'F', value_name = "FILE")]
    file: Option<PathBuf>,
    /// The mount point.
    #[arg(short = 'T', value_name = "MNT")]
    mount: Option<String>,
    /// The block size.
    #[arg(short = 'B', value_name = "SIZE")]
    block_size: Option<String>,
    /// Copies of data, or a code of Strake such as 4+2p [default: 4+2p].
    #[arg(short = 'r', value_name = "CODE")]
    replicas: Option<String>,
    /// Quotas: only `no`.
    #[arg(short = 'Q', value_name = "yes|no", value_parser = yes_or_no)]
    quotas: Option<bool>,
    /// DMAPI: only `no`.
    #[arg(short = 'z', value_name = "yes|no", value_parser = yes_or_no)]
    dmapi: Option<bool>,
    /// Accepted and ignored, as -A, -D, -E, -i, -I, -j, -k, -K, -L, -m, -M, -R, -S and -v: there is
    /// nothing to choose.
    #[arg(short = 'n', value_name = "N")]
    nodes: Option<u64>,
    #[command(flatten)]
    ignored: CrfsIgnored,
}

/// Attributes that have one value here.
#[derive(Args, Debug)]
pub(crate) struct CrfsIgnored {
    #[arg(short = 'A', hide = true)]
    automount: Option<String>,
    #[arg(short = 'D', hide = true)]
    locking: Option<String>,
    #[arg(short = 'E', hide = true)]
    mtime: Option<String>,
    #[arg(short = 'i', hide = true)]
    inode_size: Option<String>,
    #[arg(short = 'I', hide = true)]
    indirect_size: Option<String>,
    #[arg(short = 'j', hide = true)]
    allocation: Option<String>,
    #[arg(short = 'k', hide = true)]
    acls: Option<String>,
    #[arg(short = 'K', hide = true)]
    strict: Option<String>,
    #[arg(short = 'L', hide = true)]
    log_size: Option<String>,
    #[arg(short = 'm', hide = true)]
    metadata_replicas: Option<String>,
    #[arg(short = 'M', hide = true)]
    metadata_replicas_max: Option<String>,
    #[arg(short = 'R', hide = true)]
    replicas_max: Option<String>,
    #[arg(short = 'S', hide = true)]
    atime: Option<String>,
    #[arg(short = 'v', hide = true)]
    verify: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Delfs {
    /// The file system.
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Accepted and ignored.
    #[arg(short = 'p')]
    permanently: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Mount {
    /// The file system, its mount point, or `all`.
    #[arg(value_name = "DEVICE")]
    device: String,
    #[command(flatten)]
    nodes: Nodes,
    /// Options as mount(8) has them.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Umount {
    /// The file system, its mount point, or `all`.
    #[arg(value_name = "DEVICE")]
    device: String,
    #[command(flatten)]
    nodes: Nodes,
    /// Even while programs use it.
    #[arg(short = 'f')]
    force: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Fsck {
    /// The file system.
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Change nothing, as always.
    #[arg(short = 'n')]
    change_nothing: bool,
    /// While it is mounted, as always.
    #[arg(short = 'o')]
    online: bool,
    /// Accepted and ignored.
    #[arg(short = 'v')]
    verbose: bool,
    /// Repair: the message says how.
    #[arg(short = 'y', conflicts_with = "change_nothing")]
    repair: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Chdisk {
    /// The file system.
    #[arg(value_name = "DEVICE")]
    device: String,
    /// `start`, `suspend` or `resume`.
    #[arg(value_name = "ACTION")]
    action: String,
    /// Names of disks, with semicolons between them.
    #[arg(short = 'd', value_name = "DISKS", required_unless_present = "all")]
    disks: Option<String>,
    /// With `start`: all disks that are not up.
    #[arg(short = 'a')]
    all: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Rpldisk {
    /// The file system.
    #[arg(value_name = "DEVICE")]
    device: String,
    /// The disk that goes.
    #[arg(value_name = "DISK")]
    old: String,
    /// The disk that comes: a device, an empty directory, or in a cluster an NSD.
    #[arg(value_name = "NEW")]
    new: String,
    /// `no` uses the device even if it holds something else.
    #[arg(short = 'v', value_name = "yes|no", default_value = "yes", action = clap::ArgAction::Set, value_parser = yes_or_no)]
    verify: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Adddisk {
    /// The file system.
    #[arg(value_name = "DEVICE")]
    device: String,
    /// The disks that come, with semicolons between them: devices, empty directories, or in a
    /// cluster NSDs.
    #[arg(value_name = "DISKS", required_unless_present = "file", conflicts_with = "file")]
    disks: Option<String>,
    /// A file with the stanzas or descriptors of the NSDs.
    #[arg(short = 'F', value_name = "FILE")]
    file: Option<PathBuf>,
    /// `no` uses a device even if it holds something else.
    #[arg(short = 'v', value_name = "yes|no", default_value = "yes", action = clap::ArgAction::Set, value_parser = yes_or_no)]
    verify: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Deldisk {
    /// The file system.
    #[arg(value_name = "DEVICE")]
    device: String,
    /// Names of disks, with semicolons between them.
    #[arg(value_name = "DISKS")]
    disks: String,
}

#[derive(Args, Debug)]
pub(crate) struct Chlicense {
    /// The kind of licence.
    #[arg(value_name = "server|fpo|client")]
    kind: String,
    /// Accepted and ignored.
    #[arg(long)]
    accept: bool,
    /// Accepted and ignored.
    #[arg(short = 'N', value_name = "NODES")]
    nodes: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Lslicense {
    /// A row for each node.
    #[arg(short = 'L')]
    long: bool,
}

#[derive(Args, Debug)]
#[command(group(clap::ArgGroup::new("action").required(true).multiple(true)))]
pub(crate) struct Tracectl {
    /// Begin to trace.
    #[arg(long, group = "action")]
    start: bool,
    /// Stop. The report can still be read.
    #[arg(long, group = "action", conflicts_with = "start")]
    stop: bool,
    /// Stop, as --stop.
    #[arg(long, group = "action", conflicts_with_all = ["start", "stop"])]
    off: bool,
    /// Accepted: there is one kind of trace, and it is in memory.
    #[arg(long, group = "action")]
    set: bool,
    #[arg(long, value_name = "WHAT", hide = true)]
    trace: Option<String>,
    #[arg(long, value_name = "MODE", hide = true)]
    tracedev_write_mode: Option<String>,
    #[arg(long, value_name = "SIZE", hide = true)]
    tracedev_overwrite_buffer_size: Option<String>,
    #[arg(short = 'N', value_name = "NODES", hide = true)]
    nodes: Option<String>,
}

/// A command under its own name.
#[derive(Parser, Debug)]
#[command(name = "strake", disable_help_subcommand = true)]
struct ByName {
    #[command(subcommand)]
    command: MmCommand,
}

fn yes_or_no(text: &str) -> std::result::Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("yes or no".to_owned()),
    }
}

/// Runs the command that the program's name stands for. `None` for any other name.
pub(crate) fn run_by_name() -> Option<ExitCode> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let name = Path::new(words.first()?).file_name()?.to_str()?;
    let is_known = ByName::command().find_subcommand(name).is_some() || absent::is_known(name);
    is_known
        .then(|| parse_and_run(std::iter::once(OsString::from(name)).chain(words[1..].to_vec())))
}

/// Runs `strake mm WORDS`, if the program was started so.
pub(crate) fn run_after_mm() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    (words.next()? == "mm").then(|| parse_and_run(words))
}

/// Parses a command and its arguments, and runs it. A message about a flag that does not exist is
/// followed by those that do.
fn parse_and_run(words: impl Iterator<Item = OsString>) -> ExitCode {
    let words: Vec<OsString> = words.collect();
    let name = words.first().and_then(|word| word.to_str()).unwrap_or_default().to_owned();
    match ByName::try_parse_from(std::iter::once(OsString::from("strake mm")).chain(words)) {
        Ok(ByName { command }) => run(command),
        Err(error) => {
            let _ = error.print();
            if let Some(choices) = choices(&name).filter(|_| error.use_stderr()) {
                output::tell(&choices);
            }
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
    }
}

/// The arguments that a command has, for a message about one that it does not have.
fn choices(name: &str) -> Option<String> {
    let mut all = ByName::command();
    all.build();
    let command = all.find_subcommand_mut(name)?;
    let mut text = format!("{name} has:");
    for argument in command.get_arguments().filter(|it| !it.is_hide_set()) {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        text.push_str(&format!("\n  {:<24} {help}", argument.to_string()));
    }
    Some(text)
}

/// Runs a command.
pub(crate) fn run(command: MmCommand) -> ExitCode {
    let listed = match &command {
        MmCommand::Mmlscluster(args) => listing::cluster(args),
        MmCommand::Mmgetstate(args) => listing::states(args),
        MmCommand::Mmlsnsd(args) => listing::nsds(args),
        MmCommand::Mmlsfs(args) => listing::file_systems(args),
        MmCommand::Mmlsdisk(args) => listing::disks(args),
        MmCommand::Mmdf(args) => listing::space(args),
        MmCommand::Mmlsconfig(args) => listing::settings(args),
        MmCommand::Mmlslicense(args) => listing::licences(args),
        MmCommand::Mmdiag(args) => return diag(args),
        MmCommand::Other(words) => Err(absent::refusal(words)),
        changing => return run_plan(words::of(changing, &here::Here::look())),
    };
    output::finish(listed.map(|text| print!("{text}")))
}

/// The native step that a command becomes.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// The words of a native command.
    Run(Vec<String>),
    /// A sentence.
    Say(String),
}

/// Runs native commands, and ends with the first that fails.
fn run_plan(plan: Result<Vec<Step>>) -> ExitCode {
    let steps = match plan {
        Ok(steps) => steps,
        Err(error) => return output::finish(Err(error)),
    };
    for step in steps {
        match step {
            Step::Say(sentence) => println!("{sentence}"),
            Step::Run(words) => {
                let ended = crate::run_words(&words);
                if ended != ExitCode::SUCCESS {
                    return ended;
                }
            }
        }
    }
    ExitCode::SUCCESS
}

/// The parts of `mmdiag` in the order in which they are shown, each with the native command.
fn diag(args: &Diag) -> ExitCode {
    if args.y {
        return output::finish(listing::parsable_diag(args).map(|text| print!("{text}")));
    }
    let parts: [(bool, &str, &[&str]); 8] = [
        (args.version, "version", &["version"]),
        (args.waiters, "waiters", &["diag", "waiters"]),
        (args.memory, "memory", &["diag", "memory"]),
        (args.network, "network", &["diag", "network"]),
        (args.config, "config", &["config", "show"]),
        (args.iohist, "iohist", &["diag", "iohist"]),
        (args.tokenmgr, "tokenmgr", &["diag", "tokens"]),
        (args.stats, "stats", &["diag", "stats"]),
    ];
    if !args.all && parts.iter().all(|(is_wanted, ..)| !is_wanted) {
        output::tell(&choices("mmdiag").unwrap_or_default());
        return ExitCode::from(2);
    }
    let mut outcome = ExitCode::SUCCESS;
    for (is_wanted, name, words) in parts {
        if !(args.all || is_wanted) {
            continue;
        }
        println!("\n=== mmdiag: {name} ===");
        if name == "iohist" {
            println!("\nI/O history:\n");
        }
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        let ended = crate::run_words(&words);
        // A file system without a cluster has no tokens: that is no failure of `--all`.
        if ended != ExitCode::SUCCESS && !args.all {
            outcome = ended;
        }
    }
    outcome
}

fn refused(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, detail.into())
}

#[cfg(test)]
#[path = "mm_test.rs"]
mod mm_test;
