//! The commands as a user types them.

use super::*;
use clap::Parser;
use strake_proto::limits::{BLOCK_SIZE_MAX, BLOCK_SIZE_MIN};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: PlanArgs,
}

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Runs `strake plan …`; paths below docs/ are found from the repository's root.
fn plan(line: &str) -> Result<String, PlanError> {
    answer(line).map(|answer| answer.text)
}

fn answer(line: &str) -> Result<Answer, PlanError> {
    let words = line.split_whitespace().map(|word| match word.starts_with("docs/") {
        true => format!("{ROOT}/{word}"),
        false => word.to_string(),
    });
    let words: Vec<String> = std::iter::once("plan".to_string()).chain(words).collect();
    match Cli::try_parse_from(words) {
        Ok(cli) => execute(&cli.args),
        Err(error) => panic!("{line}: {error}"),
    }
}

fn examples() -> Vec<PathBuf> {
    let directory = std::fs::read_dir(format!("{ROOT}/docs/plan/examples")).unwrap();
    let mut paths: Vec<PathBuf> = directory.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn every_example_evaluates_tunes_and_reports() {
    let out = std::env::temp_dir().join(format!("strake-plan-cli-{}", std::process::id()));
    std::fs::create_dir_all(&out).unwrap();
    assert!(examples().len() >= 18);
    for path in examples() {
        let path = path.display();
        let text = plan(&format!("evaluate {path} --explain")).unwrap();
        assert!(text.contains("gated by") && text.contains("◀ gates"), "{path}");
        let json = plan(&format!("evaluate {path} --json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(json["tiers"][0]["rates"][0]["total"]["value"].as_f64().unwrap() > 0.0);
        assert!(!plan(&format!("tune {path}")).unwrap().is_empty());
        let settings = plan(&format!("tune {path} --json")).unwrap();
        assert!(serde_json::from_str::<serde_json::Value>(&settings).unwrap().is_array());
        plan(&format!("report {path} --out {}/page", out.display())).unwrap();
    }
    assert!(out.join("page.html").exists() && out.join("page.md").exists());
    std::fs::remove_dir_all(&out).unwrap();
}

/// What follows `flag` in a command.
fn argument<'a>(command: &'a str, flag: &str) -> &'a str {
    let (_, rest) = command.split_once(flag).expect("the flag is there");
    rest.split_whitespace().next().expect("with a value")
}

/// `strake up` refuses other block sizes and codes.
#[test]
fn tune_prints_commands_that_strake_takes() {
    let mut seen = 0;
    for path in examples() {
        let text = plan(&format!("tune {}", path.display())).unwrap();
        for command in text.lines().filter(|line| line.contains("strake up --data")) {
            let block: strake_proto::ByteCount =
                argument(command, "--block-size").parse().expect("a size");
            assert!(block.0.is_power_of_two(), "{}: {command}", path.display());
            assert!((BLOCK_SIZE_MIN..=BLOCK_SIZE_MAX).contains(&block), "{command}");
            argument(command, "--code").parse::<strake_proto::Code>().expect("a code");
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen} commands");
    let inside = format!("{ROOT}/docs/plan/examples/audit-07-raid-inside.toml");
    let text = plan(&format!("tune {inside}")).unwrap();
    assert!(text.contains("--block-size 4M") && text.contains("so 5M cannot be"), "{text}");
}

#[test]
fn solve_writes_designs_that_evaluate() {
    let out = std::env::temp_dir().join(format!("strake-plan-solve-{}", std::process::id()));
    let asked = "solve --usable 500TB --write 9GB/s --read 10GB/s --network qdr \
                 --enclosure dcs3700 --enclosure gss26";
    let text = plan(&format!("{asked} --out {}", out.display())).unwrap();
    assert!(text.contains("2 blocks of 3 x dcs3700"), "{text}");
    let first = plan(&format!("evaluate {}/design-1.toml", out.display())).unwrap();
    assert!(first.contains("streaming write"));
    std::fs::remove_dir_all(&out).unwrap();
    let priced = plan("solve --usable 1TB --objective cost").unwrap_err();
    assert!(priced.is_usage() && priced.to_string().contains("price"));
}

#[test]
fn a_library_of_ones_own_changes_the_answer() {
    let directory = std::env::temp_dir().join(format!("strake-plan-lib-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let rack = "[[rack]]\nname = \"rack-42u\"\ndescription = \"lower\"\n\
                units = { value = 20, source = \"assumption: a low room\" }\n";
    std::fs::write(directory.join("racks.toml"), rack).unwrap();
    let design = "evaluate docs/plan/examples/solution-2a.toml";
    assert!(plan(design).unwrap().contains("in 1 rack "));
    let lower = plan(&format!("{design} --library {}", directory.display())).unwrap();
    assert!(lower.contains("in 2 racks"), "{lower}");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn what_is_wrong_is_wrong_usage() {
    for line in [
        "evaluate /nonexistent.toml",
        "evaluate docs/plan.md",
        "solve",
        "solve --usable 1TB --network morse",
        "solve --usable 1TB --disk floppy",
        "compare docs/plan/examples/solution-2a.toml --bench docs/plan.md",
        "calibrate --dir /tmp --seconds 0",
        "calibrate --dir /tmp --code 99+1p",
        "evaluate docs/plan/examples/solution-2a.toml --library /nonexistent",
    ] {
        let error = plan(line).unwrap_err();
        assert!(error.is_usage(), "{line}: {error}");
    }
}

#[test]
fn what_is_wrong_says_how_to_write_it() {
    let directory = std::env::temp_dir().join(format!("strake-plan-bad-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        std::fs::write(directory.join(name), bytes).unwrap();
        directory.join(name).display().to_string()
    };
    let design = std::fs::read_to_string(format!("{ROOT}/docs/plan/examples/solution-2a.toml"));
    let design = design.unwrap();
    let bare = file("bare.toml", design.replace("\"4M\"", "4").as_bytes());
    let noise: Vec<u8> = (0..=255).cycle().take(5000).collect();
    let noise = file("noise.toml", &noise);
    let long = file("long.toml", format!("title = {}\n", "x".repeat(10 << 20)).as_bytes());
    for (line, says) in [
        (format!("evaluate {bare}"), "for example \"4M\""),
        (format!("evaluate {noise}"), "noise.toml"),
        (format!("evaluate {long}"), "long.toml"),
        ("evaluate /nonexistent.toml".into(), "strake plan new"),
        ("calibrate".into(), "--from FILE"),
        (
            "evaluate docs/plan/examples/solution-2a.toml --set tier.data.blocks=-3".into(),
            "a whole number from 0",
        ),
        (format!("evaluate {}", directory.display()), "strake-plan-bad"),
    ] {
        let error = plan(&line).unwrap_err();
        assert!(error.is_usage(), "{line}: {error}");
        let error = error.to_string();
        assert!(error.contains(says) && error.len() < 2000, "{line}: {} bytes", error.len());
    }
    std::fs::remove_dir_all(&directory).unwrap();
    for (line, says) in [
        ("solve --usable 500", "500TB"),
        ("solve --usable -5TB", "negative"),
        ("solve --usable 1TB --write 9", "no rate"),
        ("solve --iops-read -5", "for example 100000"),
        ("solve --iops-write many", "for example 100000"),
    ] {
        let words = std::iter::once("plan").chain(line.split_whitespace());
        let error = Cli::try_parse_from(words).err().expect("refused").to_string();
        assert!(error.contains(says), "{line}: {error}");
    }
}

#[test]
fn a_design_that_breaks_its_promise_prints_and_fails() {
    for (name, broken) in [("audit-01-four-disks", true), ("nvme-cluster", false)] {
        let answer = answer(&format!("evaluate docs/plan/examples/{name}.toml")).unwrap();
        assert_eq!(answer.broken, broken, "{name}");
        assert_eq!(answer.text.contains("\nErrors\n  promise-broken"), broken, "{name}");
    }
}

#[test]
fn the_library_is_listed_and_shown_with_sources() {
    let all = plan("library list").unwrap();
    assert!(all.contains("nvme-7680gb") && all.contains("enclosure\n"), "{all}");
    let disks = plan("library list disk").unwrap();
    assert!(disks.contains("nvme-7680gb") && !disks.contains("nvme-server"), "{disks}");
    let shown = plan("library show nvme-7680gb").unwrap();
    assert!(shown.contains("# disk") && shown.contains("sas-ess3000: Table 1"), "{shown}");
    assert!(catalogue::new("").unwrap_err().is_usage());
    for line in ["library list floppies", "library show floppy"] {
        assert!(plan(line).unwrap_err().is_usage(), "{line}");
    }
}

#[test]
fn a_new_design_evaluates_and_is_never_written_over_another() {
    let directory = std::env::temp_dir().join(format!("strake-plan-new-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let name = directory.join("first");
    plan(&format!("new {}", name.display())).unwrap();
    let file = format!("{}.toml", name.display());
    let answer = answer(&format!("evaluate {file}")).unwrap();
    assert!(!answer.broken && answer.text.starts_with("first\n"), "{}", answer.text);
    assert!(!answer.text.contains("Warnings"), "{}", answer.text);
    assert!(answer.text.contains("Mix analysis"), "{}", answer.text);
    // Every field that is commented out works as well.
    let text = std::fs::read_to_string(&file).unwrap();
    let uncommented: Vec<String> = text
        .lines()
        .map(|line| match line.strip_prefix("# ").filter(|line| line.contains(" = ")) {
            Some(field) => field.to_string(),
            None => line.to_string(),
        })
        .collect();
    std::fs::write(&file, uncommented.join("\n")).unwrap();
    plan(&format!("evaluate {file}")).unwrap();
    assert!(plan(&format!("new {}", name.display())).unwrap_err().is_usage());
    std::fs::remove_dir_all(&directory).unwrap();
}

/// The lines of a text with single spaces.
fn plain(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[test]
fn the_first_hour_of_the_document_prints_what_it_says() {
    let directory = std::env::temp_dir().join(format!("strake-plan-walk-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    plan(&format!("new {}/first", directory.display())).unwrap();
    let document = std::fs::read_to_string(format!("{ROOT}/docs/plan.md")).unwrap();
    let walk = document.split("## The first hour").nth(1).unwrap().split("\n## ").next().unwrap();
    let mut lines = 0;
    for listing in walk.split("```").skip(1).step_by(2) {
        let listing = listing.replace("\\\n", " ");
        let (command, said) = listing.trim().split_once('\n').unwrap();
        let command = command.trim_start_matches("$ strake plan ");
        let file = format!("{}/first.toml", directory.display());
        let printed = plain(&plan(&command.replace("first.toml", &file)).unwrap());
        for line in plain(said) {
            let line = line.trim_end_matches('…').trim();
            let found = printed.iter().any(|printed| printed.starts_with(line));
            assert!(found, "'{line}' is not in\n{}", printed.join("\n"));
            lines += 1;
        }
    }
    assert!(lines > 12, "{lines} lines were held against the program");
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn designs_are_compared_and_fields_changed() {
    let two = "docs/plan/examples/solution-2a.toml docs/plan/examples/solution-2c1.toml";
    let text = plan(&format!("compare {two}")).unwrap();
    assert!(text.contains("streaming write") && text.contains("(x1.33)"), "{text}");
    let json = plan(&format!("compare {two} --json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json.as_array().unwrap().len(), 2);
    assert!(plan("compare docs/plan/examples/solution-2a.toml").unwrap_err().is_usage());
    let set = "evaluate docs/plan/examples/nvme-cluster.toml --set tier.nvme.storage.code=8+2p";
    let text = plan(set).unwrap();
    assert!(text.contains("(as it is)") && text.contains("usable capacity"), "{text}");
}

#[test]
fn every_command_shows_examples() {
    use clap::CommandFactory;
    for command in Cli::command().get_subcommands_mut() {
        let help = command.render_long_help().to_string();
        assert!(help.contains("Examples:") && help.contains("strake plan"), "{help}");
    }
}
