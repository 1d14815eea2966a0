//! A process that writes files and makes each one durable. Only then it prints the file's number.
//! Every file whose number was printed must be there after any crash of the file system under the
//! process.

use super::command::pause;
use super::manifest;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// The hidden command of `xtask` that is the writer: `suites-writer DIRECTORY [MILLISECONDS]`. It
/// rests so long between two files.
pub(crate) const COMMAND: &str = "suites-writer";

/// Writes until the file system goes away. Prints one line `NUMBER` for each durable file.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let (directory, rest) = match arguments {
        [directory] => (directory, Ok(0)),
        [directory, rest] => (directory, rest.parse()),
        _ => return ExitCode::from(2),
    };
    let Ok(rest) = rest.map(Duration::from_millis) else { return ExitCode::from(2) };
    let directory = Path::new(directory);
    for number in 0.. {
        if let Err(error) = write_durably(directory, number) {
            eprintln!("file {number}: {error}");
            break;
        }
        println!("{number}");
        pause(rest);
    }
    ExitCode::SUCCESS
}

/// Writes one file durably. Every third file is replaced once by rename, as editors do.
fn write_durably(directory: &Path, number: u64) -> std::io::Result<()> {
    let path = directory.join(number.to_string());
    let first = if number.is_multiple_of(3) { directory.join("new") } else { path.clone() };
    let mut file = File::create(&first)?;
    file.write_all(&contents(number, size(number)))?;
    file.sync_all()?;
    if first != path {
        std::fs::rename(&first, &path)?;
    }
    File::open(directory)?.sync_all()
}

/// Checks that the durable file `number` is there and whole.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn verify(directory: &Path, number: u64) -> Result<(), String> {
    let path = directory.join(number.to_string());
    let found = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let wanted = contents(number, size(number));
    if found == wanted {
        return Ok(());
    }
    let same = found.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
    Err(format!(
        "{}: {} bytes instead of {}, different from byte {same} (hash {:016x})",
        path.display(),
        found.len(),
        wanted.len(),
        manifest::hash(&path).unwrap_or(0)
    ))
}

/// Sizes from empty (in the inode) to several blocks.
fn size(number: u64) -> usize {
    [0, 17, 3000, 5000, 60_000, 300_000, 1_048_576, 2_500_001][(number % 8) as usize]
}

/// Bytes that depend on the file and the position (SplitMix64).
pub(crate) fn contents(salt: u64, size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size + 8);
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    while bytes.len() < size {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}
