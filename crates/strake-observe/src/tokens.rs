//! The files that mounts take from each other, as the leader's table of tokens and a mount see
//! them: for `strake diag tokens`, and for what waits for a file.

use crate::slow::time;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The tokens of a file system.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokensView {
    /// The node that leads.
    pub leader: String,
    /// The files of which some mount holds a token.
    pub files: u64,
    /// Files, the one that was taken from mounts most often at the top.
    pub hot: Vec<HotFile>,
    /// What waits for files, in the order in which it came.
    pub waits: Vec<FileWait>,
    /// How long the leader has not heard of nodes, in nanoseconds.
    pub silent: Vec<(String, u64)>,
}

/// A file that several mounts use, or that was taken from one lately.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HotFile {
    /// The file or directory.
    pub inode: u64,
    /// Its path, if it is known.
    #[serde(default)]
    pub path: Option<String>,
    /// How often it was taken from mounts, each second of the last minute.
    pub taken_per_second: f64,
    /// From which nodes, each with how often in the last minute.
    pub taken_from: Vec<(String, u64)>,
    /// Who holds what of it.
    pub holders: Vec<FileHolder>,
}

/// A mount that holds a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileHolder {
    /// The mount's node.
    pub node: String,
    /// `shared`, `exclusive`, `writing` beside others, or `open`.
    pub mode: String,
}

/// A request of a mount that waits for files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileWait {
    /// The node that waits.
    pub node: String,
    /// The files.
    pub inodes: Vec<u64>,
    /// The nodes that hold them.
    pub holders: Vec<String>,
}

impl HotFile {
    /// The file as people read it.
    pub fn name(&self) -> String {
        self.path.clone().unwrap_or_else(|| format!("inode {}", self.inode))
    }

    /// The nodes that it was taken from.
    pub fn nodes(&self) -> String {
        list(self.taken_from.iter().map(|(node, _)| node.as_str()))
    }
}

impl TokensView {
    /// The nodes that hold what this node waits for at a file.
    pub fn holders_for(&self, node: &str, inode: u64) -> Vec<&str> {
        let own = self.waits.iter().filter(|it| it.node == node && it.inodes.contains(&inode));
        let mut holders: Vec<&str> =
            own.flat_map(|it| it.holders.iter().map(String::as_str)).collect();
        holders.sort_unstable();
        holders.dedup();
        holders
    }

    /// How long the leader has not heard of a node, if that is long.
    pub fn silence_of(&self, node: &str) -> Option<u64> {
        self.silent.iter().find(|(of, _)| of == node).map(|(_, nanos)| *nanos)
    }
}

/// Words with commas, and `and` before the last one.
pub(crate) fn list<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let words: Vec<&str> = words.collect();
    match words.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// Prints files and waits for people.
///
/// # Errors
/// Those of `out`.
pub fn print_tokens(out: &mut dyn fmt::Write, view: &TokensView) -> fmt::Result {
    writeln!(out, "{} leads. Mounts hold tokens of {} files.", view.leader, view.files)?;
    if view.hot.is_empty() {
        writeln!(out, "No file was taken from a mount in the last minute.")?;
    } else {
        writeln!(out, "\n{:>8}  {:<28}  {:<36}  file", "taken/s", "taken from", "holders")?;
    }
    for file in &view.hot {
        let taken = file.taken_from.iter().map(|(node, count)| format!("{node} {count}"));
        let taken = taken.collect::<Vec<_>>().join(", ");
        let held = file.holders.iter().map(|it| format!("{} {}", it.node, it.mode));
        let held = held.collect::<Vec<_>>().join(", ");
        let rate = file.taken_per_second;
        let or = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        writeln!(out, "{rate:>8.1}  {:<28}  {:<36}  {}", or(taken), or(held), file.name())?;
    }
    if !view.waits.is_empty() {
        writeln!(out)?;
    }
    for wait in &view.waits {
        let files = wait.inodes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
        let holders = list(wait.holders.iter().map(String::as_str));
        write!(out, "{} waits for inode {files}", wait.node)?;
        match holders.is_empty() {
            true => writeln!(out, ", and earlier requests come first")?,
            false => writeln!(out, ", held by {holders}")?,
        }
    }
    for (node, nanos) in &view.silent {
        writeln!(out, "{node} has been silent for {}", time(*nanos))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> TokensView {
        let holder = |node: &str, mode: &str| FileHolder { node: node.into(), mode: mode.into() };
        TokensView {
            leader: "node1".into(),
            files: 1204,
            hot: vec![
                HotFile {
                    inode: 42,
                    path: Some("/mnt/lab/counter".into()),
                    taken_per_second: 84.25,
                    taken_from: vec![("node1".into(), 2500), ("node2".into(), 2555)],
                    holders: vec![holder("node2", "exclusive")],
                },
                HotFile {
                    inode: 1,
                    holders: vec![holder("node1", "shared"), holder("node2", "shared")],
                    ..HotFile::default()
                },
            ],
            waits: vec![FileWait {
                node: "node1".into(),
                inodes: vec![42],
                holders: vec!["node2".into()],
            }],
            silent: vec![("node2".into(), 4_000_000_000)],
        }
    }

    #[test]
    fn hot_files_and_waits_are_shown_with_their_holders() {
        let mut text = String::new();
        print_tokens(&mut text, &view()).expect("prints");
        let wanted = "\
node1 leads. Mounts hold tokens of 1204 files.

 taken/s  taken from                    holders                               file
    84.2  node1 2500, node2 2555        node2 exclusive                       /mnt/lab/counter
     0.0  -                             node1 shared, node2 shared            inode 1

node1 waits for inode 42, held by node2
node2 has been silent for 4.00 s
";
        assert_eq!(text, wanted);
    }

    #[test]
    fn the_holders_of_what_a_node_waits_for_are_found() {
        let view = view();
        assert_eq!(view.holders_for("node1", 42), ["node2"]);
        assert!(
            view.holders_for("node1", 43).is_empty() && view.holders_for("node2", 42).is_empty()
        );
        assert_eq!(view.silence_of("node2"), Some(4_000_000_000));
        assert_eq!(list(["a", "b", "c"].into_iter()), "a, b and c");
    }
}
