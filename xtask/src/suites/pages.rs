//! A process that writes pages of 4 KiB here and there in one file and logs what it does. Some of
//! the writes go through a handle with `O_DSYNC`. Every few writes it syncs. After any crash of the
//! file system under it, everything that was logged as synced must be in the file, and nothing may
//! be there that was never written.
//!
//! A page holds its number (8 bytes, little-endian; 0 if the page was never written) and bytes that
//! follow from the number. All rounds count their writes together. The log has these lines:
//!
//! ```text
//! w NUMBER PAGE   a write begins
//! d NUMBER        it returned, through O_DSYNC
//! s NUMBER        a sync returned: all up to NUMBER is durable
//! r NUMBER PAGE   the checker found this after a crash: from then on it stays
//! ```

use super::writer::contents;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;

/// The hidden command of `xtask` that is the writer: `suites-pages FILE FIRST-NUMBER`.
pub(crate) const COMMAND: &str = "suites-pages";

const PAGE_BYTES: usize = 4096;
/// Two blocks and a half.
const PAGES: u64 = 640;
/// The size of the file once every page has been written.
pub(crate) const FILE_BYTES: usize = PAGES as usize * PAGE_BYTES;
const O_DSYNC: i32 = 0o10000;

/// Writes until the file system goes away.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let [path, first] = arguments else { return ExitCode::from(2) };
    let Ok(first) = first.parse() else { return ExitCode::from(2) };
    if let Err(error) = write_pages(Path::new(path), first) {
        eprintln!("pages: {error}");
    }
    ExitCode::SUCCESS
}

fn write_pages(path: &Path, first: u64) -> std::io::Result<()> {
    let plain = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    let through = OpenOptions::new().write(true).custom_flags(O_DSYNC).open(path)?;
    for number in first.. {
        let page = page_of(number);
        println!("w {number} {page}");
        let is_through = number.is_multiple_of(5);
        let file = if is_through { &through } else { &plain };
        file.write_all_at(&bytes_of(number), page * PAGE_BYTES as u64)?;
        if is_through {
            println!("d {number}");
        }
        match number % 4 {
            0 => plain.sync_all()?,
            2 => plain.sync_data()?,
            _ => continue,
        }
        println!("s {number}");
    }
    Ok(())
}

/// The page to which a write goes.
fn page_of(number: u64) -> u64 {
    let bytes = contents(number, 8);
    bytes.iter().fold(0, |sum, byte| (sum * 31 + u64::from(*byte)) % PAGES)
}

fn bytes_of(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(contents(number, PAGE_BYTES - 8));
    bytes
}

/// What the log says of one page.
#[derive(Default)]
struct Page {
    /// The newest write that is durable.
    floor: u64,
    /// All writes that were begun.
    begun: Vec<u64>,
}

/// Compares the file with the log so far. Returns how many writes were durable, and adds what was
/// found to the log.
///
/// # Errors
/// The first page that is wrong. The pages that are right are logged all the same. Otherwise the
/// next crash would be judged by the writes that were on their way at this one.
pub(crate) fn verify(path: &Path, log: &Path) -> Result<u64, String> {
    let text = std::fs::read_to_string(log).map_err(|error| error.to_string())?;
    let (pages, durable) = read_log(&text)?;
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(_) if durable == 0 => Vec::new(),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    let (mut found, mut fault) = (String::new(), None);
    for (index, said) in &pages {
        let start = *index as usize * PAGE_BYTES;
        let page = bytes.get(start..).unwrap_or(&[]);
        let page = &page[..page.len().min(PAGE_BYTES)];
        match judge(page, said) {
            Ok(number) => found.push_str(&format!("r {number} {index}\n")),
            Err(text) => {
                fault.get_or_insert(format!("{}, page {index}: {text}", path.display()));
            }
        }
    }
    let mut file = OpenOptions::new().append(true).open(log).map_err(|error| error.to_string())?;
    file.write_all(found.as_bytes()).map_err(|error| error.to_string())?;
    fault.map_or(Ok(durable), Err)
}

/// The number of the write whose bytes a page holds.
fn judge(page: &[u8], said: &Page) -> Result<u64, String> {
    let number = match page.first_chunk() {
        Some(first) if page.len() == PAGE_BYTES => u64::from_le_bytes(*first),
        _ if page.is_empty() => 0,
        _ => return Err(format!("it has {} bytes", page.len())),
    };
    if number < said.floor {
        return Err(format!("it has write {number}, but {} was synced", said.floor));
    }
    if number == 0 {
        return match page.iter().all(|byte| *byte == 0) {
            true => Ok(0),
            false => Err("nothing was written to it and it is not zero".to_owned()),
        };
    }
    if !said.begun.contains(&number) {
        return Err(format!("it has write {number}, which never went there"));
    }
    if page != bytes_of(number) {
        return Err(format!("it has a part of write {number} only"));
    }
    Ok(number)
}

/// What the log says of each page that was ever written, and how many writes were durable.
fn read_log(text: &str) -> Result<(BTreeMap<u64, Page>, u64), String> {
    let mut pages = BTreeMap::<u64, Page>::new();
    let (mut pending, mut durable) = (BTreeMap::new(), 0);
    for line in text.lines() {
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or("");
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        match (kind, numbers.as_slice()) {
            ("w", &[number, page]) => {
                pages.entry(page).or_default().begun.push(number);
                pending.insert(number, page);
            }
            ("d", &[number]) => {
                let page = pending.remove(&number).ok_or_else(|| format!("'{line}'?"))?;
                let floor = &mut pages.entry(page).or_default().floor;
                *floor = number.max(*floor);
                durable += 1;
            }
            ("s", &[number]) => {
                while let Some(entry) = pending.first_entry().filter(|it| *it.key() <= number) {
                    let (number, page) = entry.remove_entry();
                    let floor = &mut pages.entry(page).or_default().floor;
                    *floor = number.max(*floor);
                    durable += 1;
                }
            }
            ("r", &[number, page]) => {
                let page = pages.entry(page).or_default();
                // A write that a crash took does not return.
                page.begun.retain(|begun| *begun <= number);
                page.floor = number;
                pending.clear();
            }
            _ => return Err(format!("'{line}' is no line of the writer's")),
        }
    }
    Ok((pages, durable))
}

/// The number after the last write that was begun.
pub(crate) fn next_number(log: &Path) -> u64 {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let numbers = text.lines().filter_map(|line| line.strip_prefix("w ")?.split(' ').next());
    numbers.filter_map(|number| number.parse::<u64>().ok()).max().map_or(1, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(log: &str, page: u64) -> Page {
        read_log(log).expect("a log").0.remove(&page).expect("the page")
    }

    #[test]
    fn a_page_holds_what_was_synced_or_what_was_begun_since() {
        let page = said("w 1 7\ns 1\nw 2 7\nw 3 7\n", 7);
        for number in 1..=3 {
            assert_eq!(judge(&bytes_of(number), &page), Ok(number));
        }
        let fault = |bytes: &[u8]| judge(bytes, &page).expect_err("is wrong");
        assert!(fault(&[0; PAGE_BYTES]).contains("was synced"));
        assert!(fault(&[]).contains("was synced"));
        assert!(fault(&bytes_of(4)).contains("never went there"));
        let mut torn = bytes_of(3);
        torn[2048..].copy_from_slice(&bytes_of(2)[2048..]);
        assert!(fault(&torn).contains("a part of write 3"));
    }

    #[test]
    fn what_was_read_after_a_crash_stays() {
        let page = said("w 1 7\ns 1\nw 2 7\nw 3 7\nr 2 7\nw 4 7\n", 7);
        assert_eq!(judge(&bytes_of(2), &page), Ok(2));
        assert_eq!(judge(&bytes_of(4), &page), Ok(4));
        assert!(judge(&bytes_of(1), &page).is_err(), "it was 2");
        assert!(judge(&bytes_of(3), &page).is_err(), "the crash took it");
    }

    #[test]
    fn a_write_through_is_durable_alone() {
        let log = "w 1 7\nw 5 8\nd 5\n";
        assert_eq!((said(log, 7).floor, said(log, 8).floor), (0, 5));
        assert!(read_log("x 1\n").is_err());
    }
}
