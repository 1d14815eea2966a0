//! Lists of nodes, as arguments and files name them.

use super::refused;
use crate::commands::node::read_text;
use std::path::Path;
use strake_proto::Result;

/// A node of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: String,
    /// It shall vote.
    pub(super) is_quorum: bool,
}

impl Named {
    /// Its roles, as `strake node add` has them.
    pub(super) fn roles(&self) -> &'static str {
        if self.is_quorum { "quorum,server,client" } else { "server,client" }
    }
}

/// Reads `NAME[:DESIGNATIONS[:ADMIN]]` with commas between them, or a file with one in each line.
///
/// # Errors
/// `Invalid` for a designation that nobody knows; the host's for a file.
pub(super) fn parse(list: &str) -> Result<Vec<Named>> {
    let path = Path::new(list);
    let text = if path.is_file() { read_text(path)? } else { list.replace(',', "\n") };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let nodes = lines.filter(|line| !line.starts_with('#')).map(one).collect::<Result<Vec<_>>>()?;
    if nodes.is_empty() { Err(refused(format!("{list}: names no node"))) } else { Ok(nodes) }
}

fn one(text: &str) -> Result<Named> {
    let mut fields = text.split(':');
    let name = fields.next().unwrap_or_default().to_owned();
    let designations = fields.next().unwrap_or_default();
    let mut is_quorum = false;
    for word in designations.split('-').filter(|word| !word.is_empty()) {
        match word {
            "quorum" => is_quorum = true,
            "manager" | "client" | "nonquorum" => {}
            _ => {
                let detail = format!(
                    "{text}: a designation is quorum, nonquorum, manager or client, with hyphens \
                     between them"
                );
                return Err(refused(detail));
            }
        }
    }
    Ok(Named { name, is_quorum })
}

/// The names alone.
///
/// # Errors
/// As [`parse`].
pub(super) fn names(list: &str) -> Result<Vec<String>> {
    Ok(parse(list)?.into_iter().map(|node| node.name).collect())
}

/// Names with semicolons between them, as lists of disks have them.
pub(super) fn disks(list: &str) -> Vec<String> {
    let names = list.split(';').map(str::trim).filter(|name| !name.is_empty());
    names.map(|name| name.split(':').next().unwrap_or(name).to_owned()).collect()
}
