//! The programs at work when the daemon is killed, each with what it may rely on.
//!
//! | program | is told of | then must be there |
//! |---|---|---|
//! | pages | `fsync`, `fdatasync`, `O_DSYNC` writes | these 4 KiB, or later ones of its own |
//! | sqlite3 | transactions (WAL, `synchronous=FULL`) | all rows; an intact database |
//! | git | commits, the branch's directory synced | all commits; a clean `fsck` |
//! | tar | archives unpacked, the mount's root synced | all files, modes, owners, times |
//! | fio | `O_SYNC` writes | what its own note of the state says, by its checksums |

use crate::suites::mounted::Mounted;
use crate::suites::pages;
use crate::suites::session::Session;
use crate::suites::writer::contents;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

/// How long one command of a checker may take.
const SECONDS_MAX: u64 = 120;
/// More transactions than there is time for.
const TRANSACTIONS: u64 = 3000;

/// A round on a file system.
pub(super) struct Place<'a> {
    pub(super) session: &'a Session,
    pub(super) mounted: &'a Mounted<'a>,
    pub(super) round: u64,
}

impl Place<'_> {
    /// The log, outside the mount, in which a program says what it was told is durable.
    pub(super) fn log(&self, load: &str) -> Result<PathBuf, String> {
        Ok(self.mounted.beside("said")?.join(load))
    }

    pub(super) fn said(&self, load: &str) -> Result<Vec<String>, String> {
        let text = std::fs::read_to_string(self.log(load)?).map_err(|error| error.to_string())?;
        Ok(text.lines().map(str::to_owned).collect())
    }

    fn inside(&self, name: &str) -> PathBuf {
        self.mounted.mount.join(name)
    }

    fn shell(&self, script: &str) -> Command {
        shell(self.mounted, script)
    }
}

/// A program and its checker.
pub(super) trait Load {
    /// The name of its log and of what it makes in the mount.
    fn name(&self) -> &'static str;

    /// The program of a round. It works until the file system is gone.
    fn command(&mut self, place: &Place<'_>) -> Result<Command, String>;

    /// True if a line of its log says that something is durable.
    fn tells(&self, line: &str) -> bool {
        !line.is_empty()
    }

    /// Checks that everything the program was told is durable is there. Returns how many such
    /// things there were in this round.
    fn verify(&mut self, place: &Place<'_>) -> Result<u64, String>;
}

/// Makes what the programs start with.
pub(super) fn all(session: &Session, mounted: &Mounted<'_>) -> Result<Vec<Box<dyn Load>>, String> {
    Ok(vec![
        Box::new(Pages::default()),
        Box::new(Sqlite::prepare(mounted)?),
        Box::new(Git::prepare(mounted)?),
        Box::new(Tar::prepare(session, mounted)?),
        Box::new(Fio),
    ])
}

/// Makes the file of [`pages`], then fills the file system completely. Returns the one load that
/// can work there.
pub(super) fn in_place(mounted: &Mounted<'_>) -> Result<Vec<Box<dyn Load>>, String> {
    let pages = Pages::default();
    let told = |what| move |error: std::io::Error| format!("{what}: {error}");
    let file = std::fs::File::create(mounted.mount.join(pages.name())).map_err(told("pages"))?;
    (&file).write_all(&vec![0; pages::FILE_BYTES]).map_err(told("pages"))?;
    file.sync_all().map_err(told("pages"))?;
    let mut rest = std::fs::File::create(mounted.mount.join("rest")).map_err(told("rest"))?;
    for size in [1 << 20, 4096] {
        let piece = contents(size as u64, size);
        let refused = loop {
            if let Err(error) = rest.write_all(&piece) {
                break error;
            }
        };
        if refused.kind() != std::io::ErrorKind::StorageFull {
            return Err(format!("rest: {refused}"));
        }
    }
    rest.sync_all().map_err(told("rest"))?;
    Ok(vec![Box::new(pages)])
}

fn shell(mounted: &Mounted<'_>, script: &str) -> Command {
    let mut command = mounted.outside("sh");
    command.args(["-ec", script]);
    command
}

/// See [`pages`].
#[derive(Default)]
struct Pages {
    durable: u64,
}

impl Load for Pages {
    fn name(&self) -> &'static str {
        "pages"
    }

    fn tells(&self, line: &str) -> bool {
        line.starts_with('s')
    }

    fn command(&mut self, place: &Place<'_>) -> Result<Command, String> {
        let first = pages::next_number(&place.log(self.name())?);
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = place.session.command(own);
        command.arg(pages::COMMAND).arg(place.inside(self.name())).arg(first.to_string());
        Ok(command)
    }

    fn verify(&mut self, place: &Place<'_>) -> Result<u64, String> {
        let durable = pages::verify(&place.inside(self.name()), &place.log(self.name())?)?;
        let before = std::mem::replace(&mut self.durable, durable);
        Ok(durable - before)
    }
}

/// A database in WAL mode, one row for each transaction.
struct Sqlite {
    rows: u64,
    said: usize,
}

impl Sqlite {
    fn prepare(mounted: &Mounted<'_>) -> Result<Sqlite, String> {
        let mut command = mounted.outside("sqlite3");
        command.arg("-bail").arg(mounted.mount.join("sqlite3"));
        command.arg("PRAGMA journal_mode=WAL; CREATE TABLE row(number INTEGER PRIMARY KEY, body);");
        mounted.program("sqlite3 create", SECONDS_MAX, &mut command)?;
        Ok(Sqlite { rows: 0, said: 0 })
    }
}

impl Load for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite3"
    }

    fn tells(&self, line: &str) -> bool {
        line.starts_with("row ")
    }

    fn command(&mut self, place: &Place<'_>) -> Result<Command, String> {
        // `.system` waits for its command, and the command writes at once. sqlite3 itself would
        // buffer its output.
        let mut script = "PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=20;\n".to_owned();
        for number in self.rows + 1..=self.rows + TRANSACTIONS {
            script += &format!("INSERT INTO row VALUES({number}, randomblob(700));\n");
            script += &format!(".system echo row {number}\n");
        }
        let path = place.mounted.beside("scripts")?.join("sqlite3");
        std::fs::write(&path, script).map_err(|error| error.to_string())?;
        let mut command = place.shell("exec sqlite3 -bail \"$0\" <\"$1\"");
        command.arg(place.inside(self.name())).arg(path);
        Ok(command)
    }

    fn verify(&mut self, place: &Place<'_>) -> Result<u64, String> {
        let said = place.said(self.name())?;
        let numbers = said[self.said..].iter().filter_map(|line| line.strip_prefix("row "));
        let numbers = numbers.filter_map(|number| number.parse().ok());
        let acknowledged = numbers.max().unwrap_or(self.rows);
        let told = acknowledged - self.rows;
        self.said = said.len();
        let mut command = place.mounted.outside("sqlite3");
        command.arg("-bail").arg(place.inside(self.name()));
        command.arg(
            "PRAGMA integrity_check; SELECT 'rows', count(*), ifnull(max(number), 0), \
             ifnull(sum(length(body)), 0) / 700 FROM row;",
        );
        let ended = place.mounted.program("sqlite3 check", SECONDS_MAX, &mut command)?;
        let output = ended.output();
        let rows = output.lines().find_map(|line| line.strip_prefix("rows|"));
        let counts: Vec<u64> =
            rows.unwrap_or("").split('|').filter_map(|word| word.parse().ok()).collect();
        let whole = counts.len() == 3 && counts.iter().all(|count| *count == counts[0]);
        if !output.starts_with("ok\n") || !whole || counts[0] < acknowledged {
            return Err(ended.complaint(&format!("{acknowledged} transactions were acknowledged")));
        }
        self.rows = counts[0];
        Ok(told)
    }
}

/// A repository, one commit after the other.
struct Git {
    said: usize,
}

const GIT_SETTINGS: [(&str, &str); 7] = [
    ("safe.directory", "*"),
    ("core.fsync", "all"),
    ("core.fsyncMethod", "fsync"),
    ("user.name", "strake"),
    ("user.email", "strake@localhost"),
    // A low limit: packs then often replace loose objects while commits are made.
    ("gc.auto", "100"),
    ("gc.autoDetach", "false"),
];

/// git syncs a branch's file and renames it into place. Syncing the directory makes the rename
/// durable. Without `--verify`, `rev-parse` would print "HEAD" when there is no HEAD any more.
const COMMITS: &str = "cd \"$0\"
n=0
while :; do
  echo \"$1 $n\" >file-$((n % 7))
  head -c $((n * 997 % 20000)) /dev/urandom >blob-$((n % 5))
  git add -A
  git commit -q -m \"$1 $n\"
  sync .git/refs/heads
  git rev-parse -q --verify HEAD
  n=$((n + 1))
done";

impl Git {
    fn prepare(mounted: &Mounted<'_>) -> Result<Git, String> {
        let mut command = mounted.outside("git");
        command.args(["init", "-q", "-b", "main"]).arg(mounted.mount.join("git"));
        mounted.program("git init", SECONDS_MAX, &mut command)?;
        Ok(Git { said: 0 })
    }

    fn with_settings(mut command: Command) -> Command {
        command.env("GIT_CONFIG_COUNT", GIT_SETTINGS.len().to_string());
        for (index, (key, value)) in GIT_SETTINGS.iter().enumerate() {
            command.env(format!("GIT_CONFIG_KEY_{index}"), key);
            command.env(format!("GIT_CONFIG_VALUE_{index}"), value);
        }
        command
    }
}

impl Load for Git {
    fn name(&self) -> &'static str {
        "git"
    }

    fn command(&mut self, place: &Place<'_>) -> Result<Command, String> {
        let mut command = Git::with_settings(place.shell(COMMITS));
        command.arg(place.inside(self.name())).arg(place.round.to_string());
        Ok(command)
    }

    fn verify(&mut self, place: &Place<'_>) -> Result<u64, String> {
        let said = place.said(self.name())?;
        let told = said.len() - self.said;
        self.said = said.len();
        // It is up to its user to remove the locks of a git that died.
        let script = "cd \"$0\"; find .git -name '*.lock' -delete; rm -f .git/gc.pid
            git rev-parse -q --verify HEAD >/dev/null || exit 0
            git fsck --full --strict --no-progress && git rev-list HEAD";
        let mut command = Git::with_settings(place.shell(script));
        command.arg(place.inside(self.name()));
        let ended = place.mounted.program("git check", SECONDS_MAX, &mut command)?;
        let output = ended.output();
        let there: std::collections::HashSet<&str> = output.lines().collect();
        match said.iter().find(|commit| !there.contains(commit.as_str())) {
            Some(commit) => Err(format!("commit {commit} was acknowledged and is gone")),
            None => Ok(told as u64),
        }
    }
}

/// Unpacks the same archive again and again.
struct Tar {
    archive: PathBuf,
}

const UNPACK: &str = "cd \"$0/tar\"
n=0
while :; do
  mkdir \"$1-$n\"
  tar -xf \"$2\" -C \"$1-$n\"
  sync \"$0\"
  echo \"$1-$n\"
  n=$((n + 1))
done";

impl Tar {
    fn prepare(session: &Session, mounted: &Mounted<'_>) -> Result<Tar, String> {
        let archive = mounted.beside("scripts")?.join("archive.tar");
        let mut command = mounted.outside("tar");
        command.arg("-cf").arg(&archive).arg("-C").arg(&session.repository);
        command.args(["xtask/src", "crates/strake-proto", "docs"]);
        mounted.program("tar create", SECONDS_MAX, &mut command)?;
        let made = std::fs::create_dir(mounted.mount.join("tar"));
        made.map_err(|error| format!("tar: {error}"))?;
        Ok(Tar { archive })
    }
}

impl Load for Tar {
    fn name(&self) -> &'static str {
        "tar"
    }

    fn command(&mut self, place: &Place<'_>) -> Result<Command, String> {
        let mut command = place.shell(UNPACK);
        command.arg(&place.mounted.mount).arg(place.round.to_string()).arg(&self.archive);
        Ok(command)
    }

    fn verify(&mut self, place: &Place<'_>) -> Result<u64, String> {
        let said = place.said(self.name())?;
        let prefix = format!("{}-", place.round);
        let of_round = said.iter().filter(|line| line.starts_with(&prefix));
        let mut told = 0;
        for directory in of_round {
            // Compares contents, permissions, owners and times.
            let mut command = place.mounted.outside("tar");
            command.arg("-df").arg(&self.archive).arg("-C");
            command.arg(place.inside("tar").join(directory));
            place.mounted.program("tar compare", SECONDS_MAX, &mut command)?;
            told += 1;
        }
        let mut command = place.shell("rm -rf \"$0\"/*");
        command.arg(place.inside("tar"));
        place.mounted.program("tar remove", SECONDS_MAX, &mut command)?;
        Ok(told)
    }
}

/// Writes one file in each round.
struct Fio;

impl Fio {
    fn command(place: &Place<'_>, words: &[&str]) -> Result<Command, String> {
        let mut command = place.mounted.outside("fio");
        let (path, seed) = (place.inside(&format!("fio-{}", place.round)), place.round);
        command.current_dir(place.mounted.beside(&format!("fio-{}", place.round))?);
        command.arg("--name=crash").arg("--filename").arg(path);
        command.args(["--rw=randwrite", "--bs=8k", "--size=64M", "--ioengine=psync"]);
        command.args(["--fallocate=none", "--verify=crc32c", &format!("--randseed={seed}")]);
        command.args(words);
        Ok(command)
    }
}

impl Load for Fio {
    fn name(&self) -> &'static str {
        "fio"
    }

    fn tells(&self, line: &str) -> bool {
        line.contains("issued rwts: total=0,") && !line.contains("total=0,0,")
    }

    fn command(&mut self, place: &Place<'_>) -> Result<Command, String> {
        // fio reads back what it believes is written, and treats a short file as an error.
        let file = std::fs::File::create(place.inside(&format!("fio-{}", place.round)));
        file.and_then(|file| file.set_len(64 << 20).and_then(|()| file.sync_all()))
            .map_err(|error| format!("fio: {error}"))?;
        let words =
            ["--sync=1", "--do_verify=0", "--verify_state_save=1", "--status-interval=200ms"];
        Fio::command(place, &words)
    }

    fn verify(&mut self, place: &Place<'_>) -> Result<u64, String> {
        let directory = place.mounted.beside(&format!("fio-{}", place.round))?;
        if !directory.join("local-crash-0-verify.state").exists() {
            return Ok(0);
        }
        let words = ["--verify_only=1", "--verify_state_load=1", "--verify_fatal=1"];
        let mut command = Fio::command(place, &words)?;
        let ended = place.mounted.program("fio verify", SECONDS_MAX, &mut command)?;
        // "issued rwts: total=READ,WRITTEN,…": what was read back.
        let output = ended.output();
        let issued = output.split_once("issued rwts: total=").map_or("", |(_, rest)| rest);
        let count = issued.split(',').next().and_then(|count| count.parse().ok());
        let removed = std::fs::remove_file(place.inside(&format!("fio-{}", place.round)));
        removed.map_err(|error| format!("fio: {error}"))?;
        count.ok_or_else(|| ended.complaint("fio says nothing of what it read"))
    }
}
