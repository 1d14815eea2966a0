//! Follows `docs/operating/first-cluster.md` step by step on six machines. Each machine has its own
//! network, mounts, processes and name, so every command is run as the page has it.
//!
//! A line `n2# COMMAND` is run on n2 by a shell. Lines from `<<'END'` to `END` belong to the
//! command. `TOKEN` stands for the token that `strake node add` printed for that machine. The lines
//! below a command are what it prints. Numbers may differ, and so may the widths of columns. A line
//! `...` stands for any lines.

use super::checks::Checks;
use super::command;
use super::session::Session;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

const PAGE: &str = "docs/operating/first-cluster.md";
const COMMAND_MAX: Duration = Duration::from_secs(60);
/// Stands in the page for a join token.
const TOKEN: &str = "TOKEN";
const TOKEN_START: &str = "strake-join-";
const MACHINES: usize = 6;

/// What a machine does first: names itself, hides the directories of the others, waits for its
/// network, and then for the end of its input. `$1` is its number, `$2` its directory.
const BOOT: &str = r#"
set -e
hostname "n$1"
mkdir -p "$2/srv" "$2/mnt" "$2/home" "$2/tmp"
for place in srv mnt tmp; do mount --bind "$2/$place" "/$place"; done
mount -t tmpfs run /run
echo ready
read -r _
ip link set lo up
ip address add "10.0.0.$1/24" dev eth0
ip link set eth0 up
echo joined
read -r _ || true
"#;

/// Joins the cables of the machines.
const SWITCH: &str = "
set -e
ip link add switch type bridge
ip link set switch up
echo ready
while read -r port; do ip link set $port master switch up; echo plugged; done
";

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let page = std::fs::read_to_string(session.repository.join(PAGE))
        .map_err(|error| format!("{PAGE}: {error}"))?;
    let steps = steps(&page)?;
    let root = session.root.join(session.next_number().to_string());
    std::fs::create_dir(&root).map_err(|error| format!("{}: {error}", root.display()))?;
    let lab = Machines::start(session, &root)?;
    let mut tokens = BTreeMap::new();
    for (number, step) in steps.iter().enumerate() {
        let log = session.log("first-cluster", &format!("{:02}", number + 1));
        let outcome = lab.follow(step, &log, &mut tokens);
        // What comes after a step that failed would fail too.
        if !checks.record(&format!("n{}# {}", step.machine, step.title()), outcome) {
            return Ok(());
        }
    }
    Ok(())
}

/// One command of the page.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    machine: usize,
    command: String,
    /// What it prints, by lines.
    wanted: Vec<String>,
}

impl Step {
    fn title(&self) -> &str {
        self.command.lines().next().unwrap_or_default()
    }
}

/// The commands of a page.
fn steps(page: &str) -> Result<Vec<Step>, String> {
    let (mut steps, mut is_shown) = (Vec::<Step>::new(), false);
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            is_shown = line == "```console";
            continue;
        }
        if !is_shown {
            continue;
        }
        let prompt = line.strip_prefix('n').and_then(|rest| rest.split_once("# "));
        match prompt.and_then(|(number, command)| Some((number.parse().ok()?, command))) {
            Some((machine, command)) if (1..=MACHINES).contains(&machine) => {
                let mut command = command.to_owned();
                if command.ends_with("<<'END'") {
                    for line in lines.by_ref() {
                        command = format!("{command}\n{line}");
                        if line == "END" {
                            break;
                        }
                    }
                }
                steps.push(Step { machine, command, wanted: Vec::new() });
            }
            Some((machine, _)) => return Err(format!("{PAGE}: there is no n{machine}")),
            None => match steps.last_mut() {
                Some(step) => step.wanted.push(line.to_owned()),
                None => return Err(format!("{PAGE}: output before the first command")),
            },
        }
    }
    if steps.is_empty() { Err(format!("{PAGE}: no commands")) } else { Ok(steps) }
}

/// A line with each number as `0`, and one space between words.
fn plain(line: &str) -> String {
    let mut out = String::new();
    for word in line.split_whitespace() {
        let mut was_digit = false;
        for c in word.chars() {
            let is_digit = c.is_ascii_digit() || (was_digit && c == '.');
            match is_digit {
                true if !was_digit => out.push('0'),
                true => {}
                false => out.push(c),
            }
            was_digit = is_digit;
        }
        out.push(' ');
    }
    // The rules below headings are as long as the columns are wide.
    let is_rule = !out.is_empty() && out.chars().all(|c| c == '-' || c == ' ');
    if is_rule { "---".to_owned() } else { out.trim_end().to_owned() }
}

/// Compares what a command printed with what the page has.
fn compare(printed: &str, wanted: &[String]) -> Result<(), String> {
    let mut printed = printed.lines().map(plain).filter(|line| !line.is_empty()).peekable();
    let mut may_skip = false;
    for line in wanted.iter().map(|line| plain(line)).filter(|line| !line.is_empty()) {
        if line == "..." {
            may_skip = true;
            continue;
        }
        let found = if may_skip { printed.find(|it| *it == line) } else { printed.next() };
        if found.as_ref() != Some(&line) {
            return Err(format!("the page has {line:?}, the command printed {found:?}"));
        }
        may_skip = false;
    }
    match printed.next() {
        Some(more) if !may_skip => Err(format!("the command also printed {more:?}")),
        _ => Ok(()),
    }
}

/// A process that waits for the end of its input, and what it prints.
struct Waiting {
    process: Child,
    output: BufReader<ChildStdout>,
}

impl Waiting {
    /// Starts `script` with namespaces of its own. When it ends, every process in them does.
    fn start(session: &Session, script: &str, arguments: &[&str]) -> Result<Waiting, String> {
        let mut command = session.command("unshare");
        command.args(["--mount", "--uts", "--net", "--pid", "--fork", "--kill-child"]);
        command.args(["--mount-proc", "sh", "-c", script, "machine"]).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("unshare: {error}"))?;
        let output = process.stdout.take().ok_or("no output")?;
        let mut waiting = Waiting { process, output: BufReader::new(output) };
        waiting.expect("ready")?;
        Ok(waiting)
    }

    fn expect(&mut self, wanted: &str) -> Result<(), String> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|error| error.to_string())?;
        if line.trim_end() == wanted { Ok(()) } else { Err(format!("not {wanted}: {line:?}")) }
    }

    fn tell(&mut self, line: &str, wanted: &str) -> Result<(), String> {
        use std::io::Write;
        let input = self.process.stdin.as_mut().ok_or("no input")?;
        writeln!(input, "{line}").map_err(|error| error.to_string())?;
        self.expect(wanted)
    }

    /// The process that the namespaces belong to: the child of `unshare`.
    fn leader(&self) -> Result<String, String> {
        let id = self.process.id();
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"))
            .map_err(|error| error.to_string())?;
        let child = children.split_whitespace().next().ok_or("unshare has no child")?;
        Ok(child.to_owned())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Machines, joined by a switch.
struct Machines<'a> {
    session: &'a Session,
    machines: Vec<Waiting>,
    _switch: Waiting,
    root: PathBuf,
}

impl<'a> Machines<'a> {
    fn start(session: &'a Session, root: &Path) -> Result<Machines<'a>, String> {
        let mut switch = Waiting::start(session, SWITCH, &[])?;
        let mut machines = Vec::new();
        for number in 1..=MACHINES {
            let dir = root.join(format!("n{number}"));
            let arguments = [&*number.to_string(), &*dir.to_string_lossy()];
            let mut machine = Waiting::start(session, BOOT, &arguments)?;
            let port = format!("port{number}");
            let mut cable = session.command("ip");
            cable.args(["link", "add", "eth0", "netns", &machine.leader()?, "type", "veth"]);
            cable.args(["peer", "name", &port, "netns", &switch.leader()?]);
            session.run("first-cluster", "cable", 10, &mut cable)?;
            switch.tell(&port, "plugged")?;
            machine.tell("", "joined")?;
            machines.push(machine);
        }
        Ok(Machines { session, machines, _switch: switch, root: root.to_owned() })
    }

    /// Does one step of the page.
    fn follow(
        &self,
        step: &Step,
        log: &Path,
        tokens: &mut BTreeMap<usize, String>,
    ) -> Result<(), String> {
        let mut words = step.command.clone();
        if words.contains(TOKEN) {
            let token = tokens.get(&step.machine).ok_or("no token was printed for it")?;
            words = words.replace(TOKEN, token);
        }
        let leader = self.machines[step.machine - 1].leader()?;
        let mut command = self.session.command("nsenter");
        command.args(["--target", &leader, "--mount", "--uts", "--net", "--pid"]);
        let home = self.root.join(format!("n{}", step.machine)).join("home");
        command.arg(format!("--wdns={}", home.display())).args(["sh", "-c", &words]);
        let programs = self.session.strake.parent().unwrap_or(Path::new("/"));
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", programs.display()));
        // Each machine has a folder of its own for the list of what is up there.
        command.env_remove("STRAKE_RUN_DIR");
        let ended = command::run(&mut command, log, COMMAND_MAX)?.success()?;
        let mut printed = ended.output();
        for line in ended.output().lines() {
            let machine = line.strip_prefix("on n").and_then(|rest| rest.split_once(':'));
            let token = line.split_whitespace().find(|word| word.starts_with(TOKEN_START));
            if let (Some((machine, _)), Some(token)) = (machine, token) {
                tokens.insert(machine.parse().map_err(|_| line.to_owned())?, token.to_owned());
                printed = printed.replace(token, TOKEN);
            }
        }
        compare(&printed, &step.wanted).map_err(|fault| format!("{fault} (log {})", log.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_commands_and_what_they_print() {
        let page = "n1# no\n```console\nn1# echo a\na\nn2# cat >f <<'END'\nn3# x\nEND\nn2# cat f\n\
                    ...\n```\n```sh\nn1# no\n```\n";
        let found = steps(page).expect("a page");
        let found: Vec<(usize, &str, usize)> =
            found.iter().map(|step| (step.machine, &*step.command, step.wanted.len())).collect();
        let wanted = [(1, "echo a", 1), (2, "cat >f <<'END'\nn3# x\nEND", 0), (2, "cat f", 1)];
        assert_eq!(found, wanted);
        assert!(steps("```console\nx\n```").is_err() && steps("").is_err());
        assert!(steps("```console\nn7# x\n```").is_err());
    }

    #[test]
    fn what_is_printed_is_compared_but_for_numbers_and_widths() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let good = [
            ("a  1.5 MiB\n", "a 20 MiB"),
            ("---  ----\nx", "-- --\nx"),
            ("x\ny\nz\n", "...\nz"),
            ("x\ny\n", "x\n..."),
            ("", ""),
        ];
        for (printed, wanted) in good {
            assert_eq!(compare(printed, &lines(wanted)), Ok(()), "{printed:?} {wanted:?}");
        }
        let bad = [("a\nb\n", "a"), ("a\n", "a\nb"), ("b\n", "a"), ("x\n", "...\nz")];
        for (printed, wanted) in bad {
            assert!(compare(printed, &lines(wanted)).is_err(), "{printed:?} {wanted:?}");
        }
    }
}
