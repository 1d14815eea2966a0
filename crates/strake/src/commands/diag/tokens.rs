//! `strake diag tokens`: the files that nodes take from each other.

use crate::admin::{self, Request};
use crate::commands::fs::Target;
use crate::output;
use crate::registry;
use clap::Args;
use strake_observe::{TokensView, print_tokens};
use strake_proto::{Error, ErrorKind, Result};

/// Show the files that nodes take from each other, who holds them, and who waits for them.
///
/// A mount of a cluster holds a token for each file that it uses. Where another mount wants to
/// change that file, the leader takes the token back. Each time what was written goes to the disks
/// first. *taken/s* is how often that happened each second of the last minute.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake diag tokens
  strake diag tokens --json")]
pub(crate) struct TokensArgs {
    #[command(flatten)]
    target: Target,
}

/// Runs `strake diag tokens`.
pub(super) fn run(args: &TokensArgs) -> Result<()> {
    let dir = registry::find(args.target.data.as_deref())?;
    let view: TokensView = admin::ask(&dir, &Request::Tokens)?;
    if args.target.json {
        return output::print_json(&view);
    }
    let mut text = String::new();
    print_tokens(&mut text, &view)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    print!("{text}");
    Ok(())
}
