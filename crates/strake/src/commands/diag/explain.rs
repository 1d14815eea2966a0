//! `strake diag explain FILE`: what is known of one file.

use super::file::inode_of;
use super::slow::{self, SlowArgs};
use crate::admin::{self, Request};
use crate::commands::fs::Target;
use crate::output;
use crate::registry;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use strake_proto::{ByteCount, Error, ErrorKind, Result};

/// Arguments of `strake diag explain`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "Examples:
  strake diag explain slow                              why it is slow, in words
  strake diag explain /mnt/strake/film.mkv              where it lies and what is in memory
  strake diag explain --blocks 100000 /mnt/strake/big   look for more of its blocks on the disks
  strake diag explain --json /mnt/strake/film.mkv")]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    target: Target,
    /// Look for at most N blocks on the disks, spread evenly over the file.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    blocks: u64,
    /// A file or directory of the file system.
    #[arg(value_name = "FILE", required = true)]
    file: Option<PathBuf>,
    #[command(subcommand)]
    what: Option<What>,
}

/// What is explained, if it is no file.
#[derive(Subcommand, Debug)]
enum What {
    Slow(SlowArgs),
}

/// The answer to [`Request::ExplainFile`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explained {
    pub(crate) inode: u64,
    pub(crate) file_type: String,
    pub(crate) size_bytes: u64,
    pub(crate) allocated_bytes: u64,
    pub(crate) contents: Contents,
    pub(crate) open_handles: u32,
    pub(crate) memory: Memory,
    /// The token of this mount: `shared`, `exclusive` or `none`. Absent if the mount is the only
    /// one, which needs none.
    pub(crate) token: Option<String>,
    /// Locks of programs, as the kernel lists them.
    #[serde(default)]
    pub(crate) locks: Vec<String>,
}

/// The place of the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum Contents {
    /// It is no regular file.
    NoFile,
    /// It has only zeros, or nothing.
    Nowhere,
    /// In the inode, in the metadata.
    Inode { bytes: u64 },
    /// In blocks.
    Blocks {
        code: String,
        block_size: u32,
        object: u64,
        layout_version: u32,
        /// Up to the size.
        blocks: u64,
        /// How many of them were looked for.
        looked: u64,
        /// How many of these are stored nowhere.
        holes: u64,
        /// How many of these lack strips, for which others make up.
        degraded: u64,
        /// How many of these cannot be read now.
        unreadable: u64,
        nsds: Vec<OnNsd>,
    },
}

/// What one NSD has of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct OnNsd {
    pub(crate) nsd: String,
    pub(crate) availability: String,
    pub(crate) strips: u64,
    pub(crate) missing: u64,
    pub(crate) damaged: u64,
    pub(crate) away: u64,
}

/// What is in memory of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Memory {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) dirty_blocks: u64,
    pub(crate) unstable_blocks: u64,
    pub(crate) in_metadata_log: bool,
}

/// Runs `strake diag explain`.
pub(super) fn run(args: &ExplainArgs) -> Result<()> {
    let file = match (&args.what, &args.file) {
        (Some(What::Slow(args)), _) => return slow::run(args),
        (None, Some(file)) => file,
        (None, None) => return Err(Error::new(ErrorKind::Invalid, "name a FILE, or `slow`")),
    };
    let dir = registry::find(args.target.data.as_deref())?;
    let inode = inode_of(&dir, file)?;
    let request = Request::ExplainFile { inode, blocks: args.blocks };
    let mut explained: Explained = admin::ask(&dir, &request)?;
    explained.locks = locks_of(file, inode)?;
    if args.target.json {
        return output::print_json(&explained);
    }
    let mut text = String::new();
    print(&mut text, &file.display().to_string(), &explained)
        .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    print!("{text}");
    Ok(())
}

/// The locks of programs on a file, as `/proc/locks` has them.
pub(crate) fn locks_of(path: &Path, inode: u64) -> Result<Vec<String>> {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::symlink_metadata(path)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let listed = std::fs::read_to_string("/proc/locks")?;
    Ok(locks_in(&listed, &format!("{major:02x}:{minor:02x}:{inode}")))
}

/// The lines about one file: `POSIX WRITE lock of process 12, bytes 0 to EOF`.
fn locks_in(listed: &str, file: &str) -> Vec<String> {
    let lock = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // A process that waits has an arrow behind the number of the lock that it waits for.
        let waits = words.get(1) == Some(&"->");
        let words = words.get(if waits { 2 } else { 1 }..)?;
        let [kind, _, mode, process, of, from, to] = words[..] else { return None };
        let what = if waits { "wanted by" } else { "of" };
        let found = format!("{kind} {mode} lock {what} process {process}, bytes {from} to {to}");
        (of == file).then_some(found)
    };
    listed.lines().filter_map(lock).collect()
}

fn bytes(count: u64) -> String {
    format!("{count} bytes ({})", ByteCount(count))
}

/// Prints what is known of a file, for people.
///
/// # Errors
/// None: a string takes all.
pub(crate) fn print(out: &mut String, path: &str, it: &Explained) -> std::fmt::Result {
    writeln!(out, "{path}: {}, inode {}", it.file_type, it.inode)?;
    writeln!(out, "size        {}", bytes(it.size_bytes))?;
    writeln!(out, "on disks    {}, without parity", bytes(it.allocated_bytes))?;
    match &it.contents {
        Contents::NoFile => writeln!(out, "contents    in the metadata")?,
        Contents::Nowhere => {
            writeln!(out, "contents    none are stored: it is empty, or all zeros")?
        }
        Contents::Inode { bytes } => {
            writeln!(out, "contents    {bytes} bytes in its inode, in the metadata")?;
        }
        Contents::Blocks { .. } => print_blocks(out, &it.contents)?,
    }
    let Memory { blocks, bytes: held, dirty_blocks, unstable_blocks, in_metadata_log } = &it.memory;
    writeln!(
        out,
        "in memory   {} in {blocks} blocks, {dirty_blocks} of them not yet sent, \
         {unstable_blocks} sent and not yet stable",
        bytes(*held),
    )?;
    if *in_metadata_log {
        writeln!(out, "            small synchronous writes are in the log of the metadata")?;
    }
    writeln!(out, "open        {} handles of this mount", it.open_handles)?;
    match &it.token {
        None => writeln!(out, "token       none is needed: no other mount")?,
        Some(token) => writeln!(out, "token       {token}")?,
    }
    if it.locks.is_empty() {
        writeln!(out, "locks       none")?;
    }
    it.locks.iter().try_for_each(|lock| writeln!(out, "locks       {lock}"))
}

fn print_blocks(out: &mut String, contents: &Contents) -> std::fmt::Result {
    let Contents::Blocks {
        code,
        block_size,
        object,
        layout_version,
        blocks,
        looked,
        holes,
        degraded,
        unreadable,
        nsds,
    } = contents
    else {
        return Ok(());
    };
    let size = ByteCount(u64::from(*block_size));
    writeln!(
        out,
        "contents    {blocks} blocks of {size} with code {code}, object {object}, layout version \
         {layout_version}"
    )?;
    let part = if looked < blocks { format!("of {looked} blocks, ") } else { String::new() };
    let health = match (*unreadable, *degraded) {
        (0, 0) => "all strips are there".to_owned(),
        (0, some) => format!("{some} blocks lack strips, and others make up for these"),
        (some, _) => format!("{some} blocks CANNOT BE READ now"),
    };
    writeln!(out, "health      {part}{health}; {holes} are not stored")?;
    writeln!(
        out,
        "            {:<16} {:<12} {:>9} {:>9} {:>9} {:>9}",
        "NSD", "availability", "strips", "missing", "damaged", "unknown"
    )?;
    nsds.iter().try_for_each(|nsd| {
        writeln!(
            out,
            "            {:<16} {:<12} {:>9} {:>9} {:>9} {:>9}",
            nsd.nsd, nsd.availability, nsd.strips, nsd.missing, nsd.damaged, nsd.away
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locks_of_a_file_are_found_among_all() {
        let listed = "\
1: POSIX  ADVISORY  WRITE 100 00:31:20 0 EOF
1: -> POSIX  ADVISORY  READ 101 00:31:20 5 9
2: FLOCK  ADVISORY  READ 102 00:31:20 0 EOF
3: POSIX  ADVISORY  WRITE 103 00:31:21 0 EOF
4: OFDLCK ADVISORY  READ -1 08:01:20 0 EOF
5: strange
";
        assert_eq!(
            locks_in(listed, "00:31:20"),
            [
                "POSIX WRITE lock of process 100, bytes 0 to EOF",
                "POSIX READ lock wanted by process 101, bytes 5 to 9",
                "FLOCK READ lock of process 102, bytes 0 to EOF",
            ]
        );
    }

    #[test]
    fn a_file_is_shown_with_its_disks_and_what_is_wrong() {
        let nsd = |nsd: &str, strips, away| OnNsd {
            nsd: nsd.to_owned(),
            availability: if away > 0 { "down" } else { "up" }.to_owned(),
            strips,
            missing: 0,
            damaged: 0,
            away,
        };
        let contents = Contents::Blocks {
            code: "2x".to_owned(),
            block_size: 1 << 20,
            object: 7,
            layout_version: 1,
            blocks: 3000,
            looked: 1000,
            holes: 0,
            degraded: 1000,
            unreadable: 0,
            nsds: vec![nsd("nsd1", 1000, 0), nsd("nsd2", 0, 1000)],
        };
        let explained = Explained {
            inode: 12,
            file_type: "regular file".to_owned(),
            size_bytes: 3000 << 20,
            allocated_bytes: 3000 << 20,
            contents,
            open_handles: 1,
            memory: Memory {
                blocks: 2,
                bytes: 2 << 20,
                dirty_blocks: 1,
                unstable_blocks: 0,
                in_metadata_log: true,
            },
            token: None,
            locks: vec!["FLOCK READ lock of process 102, bytes 0 to EOF".to_owned()],
        };
        let mut text = String::new();
        print(&mut text, "/mnt/a", &explained).expect("a string takes all");
        let expected = "\
/mnt/a: regular file, inode 12
size        3145728000 bytes (2.92 GiB)
on disks    3145728000 bytes (2.92 GiB), without parity
contents    3000 blocks of 1 MiB with code 2x, object 7, layout version 1
health      of 1000 blocks, 1000 blocks lack strips, and others make up for these; 0 are not stored
            NSD              availability    strips   missing   damaged   unknown
            nsd1             up                1000         0         0         0
            nsd2             down                 0         0         0      1000
in memory   2097152 bytes (2 MiB) in 2 blocks, 1 of them not yet sent, 0 sent and not yet stable
            small synchronous writes are in the log of the metadata
open        1 handles of this mount
token       none is needed: no other mount
locks       FLOCK READ lock of process 102, bytes 0 to EOF
";
        assert_eq!(text, expected);
        let json = serde_json::to_string(&explained).expect("it has a form");
        assert_eq!(serde_json::from_str::<Explained>(&json).expect("it is one"), explained);
    }
}
