//! Commands for developers. `cargo run -p xtask -- help` lists them; the Makefile runs the usual
//! ones.

mod runner;
mod sbom;
mod soak;
mod suites;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "xtask COMMAND
  check        formatting, lints, rules, tests that need no mount
  test         check, documentation, and the suites on real mounts; or [STEP]... alone
  suites       the suites on real mounts: [--quick] [--only NAME]...
  soak         long versions: --seed N --minutes M
  arrows       which crates, and which folders of the client, use which; fails on a circle
  sbom         what the program is made of (CycloneDX); fails on a licence that is not accepted
  tidy         the rules that clippy does not know, on all files of the repository
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("check") => runner::run(&runner::check_steps()),
        Some("test") => match runner::chosen(runner::test_steps(), &arguments[1..]) {
            Ok(steps) => runner::run(&steps),
            Err(text) => {
                eprintln!("{text}");
                ExitCode::from(2)
            }
        },
        Some("soak") => soak::main(&arguments[1..]),
        Some("tidy") => tidy::main(),
        Some("sbom") => sbom::main(),
        Some("arrows") => tidy::arrows::main(),
        Some("suites") => suites::main(&arguments[1..]),
        Some(suites::janitor::COMMAND) => suites::janitor::main(&arguments[1..]),
        Some(suites::writer::COMMAND) => suites::writer::main(&arguments[1..]),
        Some(suites::held::COMMAND) => suites::held::main(&arguments[1..]),
        Some(suites::pages::COMMAND) => suites::pages::main(&arguments[1..]),
        Some("help" | "--help") => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        _ => {
            eprint!("{HELP}");
            ExitCode::from(2)
        }
    }
}
