//! What the documents say of this program's own tables: settings, codes, and every command that
//! a listing shows.

use crate::Cli;
use crate::settings::{Form, TABLE};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::time::Duration;
use strake_proto::layout::Code;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A size as users write it.
fn size(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = units.iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << *shift));
    unit.map_or_else(|| bytes.to_string(), |(shift, name)| format!("{}{name}", bytes >> shift))
}

fn time(time: Duration) -> String {
    match (time.as_secs(), time.subsec_millis()) {
        (0, millis) if millis > 0 => format!("{millis} ms"),
        (seconds, _) if seconds >= 3600 => format!("{} h", seconds / 3600),
        (seconds, _) => format!("{seconds} s"),
    }
}

#[test]
fn every_setting_is_documented_with_its_default_and_range() {
    let text = read("docs/operating.md");
    let section = text.split("\n## ").find(|part| part.starts_with("Settings")).expect("section");
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(rows.len(), TABLE.len(), "a row for each setting");
    for (row, setting) in rows.iter().zip(TABLE) {
        let range = match setting.form {
            Form::Size(from, to) => format!("{} to {}", size(from), size(to)),
            Form::Number(from, to) => format!("{from} to {to}"),
            Form::Time(from, to) => format!("{} to {}", time(from), time(to)),
            Form::Address => "`off`, an address".to_owned(),
            Form::Word(words) => format!("`{}`", words.join("`, `")),
        };
        let wanted = format!("| `{}` | `{}` | {range} | ", setting.name, setting.default);
        assert!(row.starts_with(&wanted), "docs/operating.md: {row}\nshould begin {wanted}");
    }
}

#[test]
fn every_code_is_in_the_documents_that_list_them() {
    for page in ["docs/GLOSSARY.md", "docs/promises.md", "CHANGELOG.md"] {
        let text = read(page);
        for (code, _) in Code::ALL {
            assert!(text.contains(&format!("`{code}`")), "{page} does not name `{code}`");
        }
    }
}

/// The commands of a page's listings, each with the place that it has there.
fn commands(page: &str) -> Vec<(String, String)> {
    let text = read(page);
    let (mut found, mut in_listing) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            in_listing = !in_listing && ["```sh", "```console", "```"].contains(&line);
            continue;
        }
        // A prompt, a comment behind, and another command behind a pipe are not ours.
        let line = line.trim_start_matches(['#', '$', ' ']);
        let cut = line.find(['#', '|', ';', '>', '&']).unwrap_or(line.len());
        let line = line[..cut].trim();
        if in_listing && line.starts_with("strake ") && !line.contains('…') {
            found.push((format!("{page}:{}", number + 1), line.to_owned()));
        }
    }
    found
}

#[test]
fn commands_that_documents_show_are_understood() {
    let mut count = 0;
    let pages = ["README.md", "docs/operating.md", "docs/operating/lab.md", "docs/bench.md"];
    for page in pages.into_iter().chain(["docs/plan.md", "docs/operating/why-is-it-slow.md"]) {
        for (place, command) in commands(page) {
            // A listing of forms has words in capitals for what the reader chooses.
            let is_form = command.contains("COMMAND");
            // What a shell prints of a command is no command.
            if is_form || command.starts_with("strake is ") || command.starts_with("strake  ") {
                continue;
            }
            let parsed = Cli::try_parse_from(command.split_whitespace());
            let fault = parsed.err().map(|error| error.to_string());
            assert!(fault.is_none(), "{place}: {command}\n{}", fault.unwrap_or_default());
            count += 1;
        }
    }
    assert!(count > 15, "only {count} commands found: are they looked for in the right way?");
}

#[test]
fn units_have_commands_that_are_understood_and_that_systemd_does_not_change() {
    for unit in ["strake@.service", "strake-node@.service"] {
        let text = read(&format!("packaging/{unit}"));
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("Exec")).collect();
        assert_eq!(lines.len(), 2, "{unit}: one to start, one to stop");
        for line in lines {
            let (_, command) = line.split_once("=/usr/bin/").expect("the packaged program");
            assert!(!command.contains(['$', '"', '\'', '\\']), "systemd reads these: {line}");
            let words = command.split(' ').map(|word| word.replace("%f", "/srv/strake"));
            if let Err(error) = Cli::try_parse_from(words) {
                panic!("{unit}: {command}: {error}");
            }
        }
    }
}
