//! The create / list / remove test: 20k, 50k and 100k files of 32 KiB in one directory.
//!
//! One task does everything, because `for f in …`, `ls -l` and `rm -r` are one process each.
//! Listing and removing are measured with warm and with cold caches. A directory can be removed
//! only once, so each number of files is done twice. Caches are made cold in three steps: `sync`,
//! then the command given with `--cold-command` (for example a remount) if there is one, then a
//! request to the kernel to drop its caches.

use std::path::Path;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::job::Job;
use super::phase::Step;
use crate::crew::{Crews, Place, check_space};
use crate::error::{BenchError, Result};
use crate::host;
use crate::io::run::head;
use crate::report::{Better, Report, value_of};
use crate::size::{self, ByteSize};
use crate::stop::Stop;
use crate::work::Work;
use strake_report::Table;

/// The options of the test.
#[derive(Debug, Clone, clap::Args)]
pub struct ListingArgs {
    /// Create so many files in one directory, list them (`ls -l`), remove them (`rm -r`): with
    /// caches and without. For example 20k,50k,100k.
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = size::parse_count)]
    pub list: Vec<u64>,
    /// Bytes in each of them.
    #[arg(long, value_name = "SIZE", default_value = "32K")]
    pub list_file_size: ByteSize,
    /// Shell command that makes caches cold, for example a remount (as root).
    #[arg(long, value_name = "COMMAND")]
    pub cold_command: Option<String>,
}

/// The times for one number of files, in seconds. A time is `None` if it could not be measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// Files.
    pub files: u64,
    /// Bytes in each.
    pub file_bytes: u64,
    /// Creating the files: the mean of both times.
    pub create_seconds: f64,
    /// Listing right after.
    pub list_cached_seconds: f64,
    /// Listing with cold caches.
    pub list_uncached_seconds: Option<f64>,
    /// Removing right after listing.
    pub remove_cached_seconds: f64,
    /// Removing with cold caches.
    pub remove_uncached_seconds: Option<f64>,
}

/// Makes caches cold. Returns false if this user may not.
fn make_cold(command: Option<&str>) -> Result<bool> {
    if let Some(command) = command {
        rustix::fs::sync();
        let status = Command::new("sh").args(["-c", command]).status();
        let status = status.map_err(|error| BenchError::system("cannot run a shell", error))?;
        if !status.success() {
            return Err(BenchError::Usage(format!("--cold-command failed: {status}")));
        }
    }
    match host::drop_system_caches() {
        Ok(()) => Ok(true),
        // If the user gave a command, it is trusted to be enough.
        Err(_) => Ok(command.is_some()),
    }
}

/// Runs the test for each number of files.
pub fn measure(args: &ListingArgs, crews: &mut Crews) -> Result<Vec<Listing>> {
    let mut listings = Vec::new();
    for (index, &files) in args.list.iter().enumerate() {
        let job = Job { items: files, write: args.list_file_size, ..Job::default() };
        job.validate()?;
        let iteration = index as u32 + 1;
        let mut step = |step: Step| -> Result<f64> {
            let work = Work::Md(job.phase(step, iteration, true));
            let label = format!("{files} files: {}", step.title());
            Ok(crews.run(&label, &work, 1)?.rates().longest_seconds)
        };
        step(Step::TreeCreate)?;
        let first_create = step(Step::FileCreate)?;
        let list_cached = step(Step::List)?;
        let remove_cached = step(Step::RemoveAll)?;
        step(Step::TreeCreate)?;
        let second_create = step(Step::FileCreate)?;
        let command = args.cold_command.as_deref();
        let cold = make_cold(command)?;
        let list_uncached = if cold { Some(step(Step::List)?) } else { None };
        let remove_uncached = match cold && make_cold(command)? {
            true => Some(step(Step::RemoveAll)?),
            false => step(Step::RemoveAll).map(|_| None)?,
        };
        listings.push(Listing {
            files,
            file_bytes: args.list_file_size.0,
            create_seconds: (first_create + second_create) / 2.0,
            list_cached_seconds: list_cached,
            list_uncached_seconds: list_uncached,
            remove_cached_seconds: remove_cached,
            remove_uncached_seconds: remove_uncached,
        });
        crews.tidy()?;
    }
    Ok(listings)
}

/// The layout of the DCS3700 document: seconds per number of files.
pub fn layout(listings: &[Listing]) -> String {
    let mut text = String::new();
    for listing in listings {
        let seconds = |seconds: Option<f64>| {
            seconds.map_or("N/A".to_string(), |seconds| {
                // Below one second, a single decimal as printed there would say too little.
                let decimals = if seconds < 1.0 { 3 } else { 1 };
                format!("{seconds:.decimals$} seconds")
            })
        };
        let mut table = Table::new(&["", "uncached", "cached"], &[0]);
        let rows = [
            ("Create:", Some(listing.create_seconds), None),
            ("ls -l:", listing.list_uncached_seconds, Some(listing.list_cached_seconds)),
            ("rm -r:", listing.remove_uncached_seconds, Some(listing.remove_cached_seconds)),
        ];
        for (name, uncached, cached) in rows {
            table.row(vec![name.into(), seconds(uncached), seconds(cached)]);
        }
        text.push_str(&format!(
            "{} files @ {} per file\n{}\n",
            listing.files,
            ByteSize(listing.file_bytes),
            table.render()
        ));
    }
    if listings.iter().any(|listing| listing.list_uncached_seconds.is_none()) {
        text.push_str("Uncached figures need root, or --cold-command.\n");
    }
    text
}

/// Runs the test; returns the report and its text.
pub fn run(
    directory: &Path,
    args: &ListingArgs,
    place: &Place,
    stop: &Stop,
) -> Result<(Report, String)> {
    let most = args.list.iter().max().copied().unwrap_or(0);
    let target = check_space(directory, most.saturating_mul(args.list_file_size.0 + 512))?;
    let mut crews = Crews::assemble(directory, place, 1, stop, &[])?;
    let mut report = Report::new("md-list", crews.facts()?, Some(target));
    let listings = measure(args, &mut crews)?;
    for listing in &listings {
        let mut add = |name: &str, seconds: Option<f64>| {
            if let Some(seconds) = seconds {
                let name = format!("list {} {name}", listing.files);
                report.sample(&name, "s", Better::Lower, seconds);
            }
        };
        add("create", Some(listing.create_seconds));
        add("list cached", Some(listing.list_cached_seconds));
        add("list uncached", listing.list_uncached_seconds);
        add("remove cached", Some(listing.remove_cached_seconds));
        add("remove uncached", listing.remove_uncached_seconds);
    }
    report.detail = value_of(&listings);
    let head = head(directory, report.target.as_ref());
    Ok((report, format!("create, list, remove: {head}\n\n{}", layout(&listings))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The 20k row of the DCS3700 document ("File Create, List, and Remove").
    #[test]
    fn the_layout_of_the_dcs3700_document() {
        let listing = Listing {
            files: 20_000,
            file_bytes: 32 << 10,
            create_seconds: 16.1,
            list_cached_seconds: 19.2,
            list_uncached_seconds: Some(31.7),
            remove_cached_seconds: 6.1,
            remove_uncached_seconds: Some(10.2),
        };
        let wanted = "20000 files @ 32K per file\n\
                      \x20            uncached        cached\n\
                      Create:  16.1 seconds           N/A\n\
                      ls -l:   31.7 seconds  19.2 seconds\n\
                      rm -r:   10.2 seconds   6.1 seconds\n\n";
        assert_eq!(layout(std::slice::from_ref(&listing)), wanted);
        let warm_only =
            Listing { list_uncached_seconds: None, remove_uncached_seconds: None, ..listing };
        assert!(layout(&[warm_only]).ends_with("need root, or --cold-command.\n"));
    }
}
