//! `strake cluster recover` and `strake fs recover`: what goes on without a majority. Both say what
//! is lost, and ask.

use crate::commands::fs::utc;
use crate::commands::node::NodeTarget;
use crate::node::{GoesOn, LeaderRequest, LostMajority, NodeDir, Recovery};
use crate::output;
use clap::Args;
use std::io::Write;
use strake_proto::{Error, ErrorKind, Result};

/// The options of `strake fs recover`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake fs recover demo            says what would be lost, and asks
  strake fs recover demo --yes")]
pub(crate) struct RecoverArgs {
    /// The file system's name.
    #[arg(value_name = "NAME")]
    name: String,
    /// Do not ask.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    target: NodeTarget,
}

/// Runs `strake fs recover`.
pub(crate) fn of_file_system(args: &RecoverArgs) -> Result<()> {
    let ask = |agreed| {
        let request = LeaderRequest::RecoverFs { fs: args.name.clone(), agreed };
        args.target.ask_leader::<LostMajority>(request)
    };
    let found = ask(None)?;
    if !args.target.json {
        say_what_is_lost(&found);
    }
    let copy = found.goes_on.map_err(|reason| Error::new(ErrorKind::Invalid, reason))?;
    if !args.target.json {
        println!("If a lost disk with a copy can still come back, stop here and bring it back.");
    }
    if !args.yes {
        ask_for_name("To go on all the same", "file system's", &found.name)?;
    }
    let found = ask(Some(copy.nsd.0))?;
    if args.target.json {
        return output::print_json(&found);
    }
    println!("{} goes on with the copy of {} on {}.", found.name, copy.node, copy.nsd.1);
    if let [(_, first), ..] = found.lost_nsds.as_slice() {
        println!(
            "Replace the disks that are lost: `strake disk replace {first} NSD`, then `strake fs \
             check`."
        );
    }
    Ok(())
}

/// Runs `strake cluster recover`.
pub(super) fn of_cluster(dir: NodeDir, is_agreed: bool) -> Result<()> {
    let root = dir.root().display().to_string();
    let found = Recovery::prepare(dir)?;
    let (term, entry) = found.last;
    let (node, silent) = (found.node().to_owned(), found.silent.join(", "));
    println!("{silent} keep records of the cluster and do not answer.");
    println!("{node} has them up to entry {entry} of term {term}. It would go on with these:");
    let records = &found.records;
    println!(
        "  {} nodes, {} NSDs, {} file systems, revision {}",
        records.nodes.len(),
        records.nsds.len(),
        records.file_systems.len(),
        records.revision
    );
    println!("Changes that only nodes have which do not answer are lost for good.");
    found.metadata.iter().for_each(say_what_is_lost);
    if let Some(issuers) = found.lost_issuers() {
        println!(
            "{node} has no copy of the key that {issuers} issued certificates with. Until that is \
             back, no node can be added."
        );
    }
    println!("If these nodes can still come back, stop here and bring them back.");
    if !is_agreed {
        ask_for_name("To go on all the same", "cluster's", &records.name)?;
    }
    let records = found.carry_out()?;
    println!(
        "{node} keeps the records now, as generation {}: `strake node start --dir {root}`",
        records.generation
    );
    Ok(())
}

/// Asks for the name of a cluster or a file system, so that nobody agrees by accident.
///
/// # Errors
/// `Invalid` for another answer.
pub(super) fn ask_for_name(to: &str, whose: &str, name: &str) -> Result<()> {
    print!("{to}, type the {whose} name ({name}): ");
    std::io::stdout().flush()?;
    let mut typed = String::new();
    std::io::stdin().read_line(&mut typed)?;
    if typed.trim() != name {
        return Err(Error::new(ErrorKind::Invalid, "nothing was changed"));
    }
    Ok(())
}

/// Says what becomes of the metadata of a file system, and what may be lost.
fn say_what_is_lost(lost: &LostMajority) {
    let (fs, nodes) = (&lost.name, lost.nodes.join(", "));
    println!("The metadata of {fs} is on {nodes}, and has lost its majority.");
    let GoesOn { node, nsd: (_, nsd), last: (term, entry), changed } = match &lost.goes_on {
        Ok(goes_on) => goes_on,
        Err(reason) => {
            println!(
                "  It is not brought back: {reason}. Stop here if another of these nodes is left, \
                 and recover on that one. Otherwise {fs} cannot be used until a majority of them \
                 is back, with their disks."
            );
            return;
        }
    };
    println!("  It goes on with the copy of {node} on {nsd}, up to entry {entry} of term {term}.");
    if let Some(changed) = changed {
        println!("  The last change in it was made at {}.", utc(changed.seconds));
    }
    println!(
        "  Later changes are lost, those that a sync has confirmed among them: files made since are \
         gone, and files deleted since are back, in part empty."
    );
    let lost_nsds: Vec<&str> = lost.lost_nsds.iter().map(|(_, name)| name.as_str()).collect();
    if !lost_nsds.is_empty() {
        println!(
            "  {} do not answer. Data that has more strips on them than its code tolerates cannot \
             be read.",
            lost_nsds.join(", ")
        );
    }
    println!(
        "  Mounts of {fs} go on, without what was not durable yet. Files that are open give errors \
         until they are opened again."
    );
}
