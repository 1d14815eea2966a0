//! PostgreSQL on a mount whose processes are killed under it.
//!
//! 1. The daemon of a file system of one machine is killed, and the database with it. When both are
//!    up again, every row is there of which a client was told, the sums of `pgbench` agree, and
//!    `pg_amcheck` finds nothing.
//! 2. The server processes of all nodes of a cluster are killed in turn and started again while
//!    `pgbench` works on one of its mounts. It sees no error, and the same holds.
//!
//! `make test` leaves this suite to `make soak`, because few machines have the package.

use super::checks::Checks;
use super::cluster_first::{Place, make};
use super::cluster_mounts::{at, mount, one_after_the_other};
use super::command::pause;
use super::mounted::{Mounted, Shape};
use super::session::Session;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The user that Debian's package makes. PostgreSQL does not run as root.
const USER: &str = "postgres";
const ROUNDS: u64 = 3;
/// How long the clients work before the accident.
const WORK: Duration = Duration::from_secs(6);
const CLIENTS: usize = 3;
const SECONDS_MAX: u64 = 180;
/// The processes of a database that was killed leave its memory after a moment.
const STARTS_MAX: u32 = 20;
/// What `pgbench` keeps equal.
const SUMS: &str = "select (select sum(abalance) from pgbench_accounts) = (select sum(tbalance) \
                    from pgbench_tellers) and (select sum(bbalance) from pgbench_branches) = \
                    (select coalesce(sum(delta), 0) from pgbench_history)";

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let mounted = Mounted::create(session, checks, "2x", &Shape::of("2x", 3))?;
    let database = Database::make(session, &mounted.mount)?;
    for round in 0..ROUNDS {
        let outcome = killed(&database, &mounted, round);
        checks.record(&format!("round {round}: every acknowledged row is there"), outcome);
        checks.record(&format!("round {round}: the sums agree"), database.check());
    }
    database.stop()?;
    mounted.finish(checks);

    let place = Place::new(session, "postgres")?;
    let outcome = cluster(session, &place, checks);
    place.end();
    outcome
}

/// Kills everything while clients insert, and looks for what they were told.
fn killed(database: &Database<'_>, mounted: &Mounted<'_>, round: u64) -> Result<(), String> {
    database.fill()?;
    let told: Vec<AtomicU64> = (0..CLIENTS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| database.pgbench(60));
        for (client, told) in told.iter().enumerate() {
            let insert =
                move |row: u64| format!("insert into told values ({round}, {client}, {row})");
            scope.spawn(move || {
                for row in 1.. {
                    if database.ask(&format!("insert-{client}"), &insert(row)).is_err() {
                        break;
                    }
                    told.store(row, Ordering::Relaxed);
                }
            });
        }
        pause(WORK);
        let postmaster = database.postmaster()?;
        mounted.kill()?;
        // A process of the database that waits for another one outlives their parent.
        mounted.kill_family(postmaster)
    })?;
    mounted.up()?;
    database.start()?;
    for (client, told) in told.iter().enumerate() {
        let told = told.load(Ordering::Relaxed);
        let rows = format!("round = {round} and client = {client} and row <= {told}");
        let found = database.ask("count", &format!("select count(*) from told where {rows}"))?;
        if told == 0 || found.trim() != told.to_string() {
            return Err(format!("client {client}: {} of {told} rows", found.trim()));
        }
    }
    Ok(())
}

/// The database works on n1 while the servers of all nodes are killed.
fn cluster(session: &Session, place: &Place<'_>, checks: &mut Checks) -> Result<(), String> {
    make(place, checks)?;
    mount(place, "n1")?;
    mount(place, "n2")?;
    let database = Database::make(session, &at(place, "n1"))?;
    database.fill()?;
    let (worked, accidents) = std::thread::scope(|scope| {
        let work = scope.spawn(|| database.pgbench(20));
        let accidents = one_after_the_other(place);
        (work.join().unwrap_or_else(|_| Err("it panicked".to_owned())), accidents)
    });
    checks.record("the servers of n3, n2 and n1 are killed and started again", accidents);
    checks.record("pgbench on n1 sees no error meanwhile", worked);
    checks.record("the sums agree", database.check());
    database.stop()?;
    let check = place.succeeds("check", place.on_mount("fs check"));
    checks.record("strake fs check is clean", check);
    place.succeeds("umount", place.on("n1", "fs umount demo"))
}

/// A database below a mount.
struct Database<'a> {
    session: &'a Session,
    binaries: PathBuf,
    data: PathBuf,
    /// Where its socket is.
    socket: PathBuf,
}

impl<'a> Database<'a> {
    /// Makes and starts a database in `mount`.
    fn make(session: &'a Session, mount: &Path) -> Result<Database<'a>, String> {
        let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
        let mut found: Vec<PathBuf> =
            versions.filter_map(Result::ok).map(|version| version.path().join("bin")).collect();
        found.sort();
        let binaries = found.pop().ok_or("no PostgreSQL: apt-get install postgresql")?;
        let user = super::user::ids_of(USER)?;
        let (data, socket) = (mount.join("database"), mount.with_extension("socket"));
        for dir in [&data, &socket] {
            let text = |error: std::io::Error| format!("{}: {error}", dir.display());
            std::fs::create_dir(dir).map_err(text)?;
            chown(dir, Some(user.0), Some(user.1)).map_err(text)?;
        }
        let database = Database { session, binaries, data, socket };
        let mut make = database.program("initdb");
        make.arg("-D").arg(&database.data);
        database.succeeds("initdb", &mut make)?;
        database.start()?;
        database.ask("table", "create table told (round int, client int, row int)")?;
        Ok(database)
    }

    /// A program of PostgreSQL, as the user.
    fn program(&self, name: &str) -> Command {
        let mut command = self.session.command("runuser");
        command.args(["-u", USER, "--"]).arg(self.binaries.join(name));
        command
    }

    /// A program that connects to the database.
    fn client(&self, name: &str) -> Command {
        let mut command = self.program(name);
        command.arg("-h").arg(&self.socket);
        command
    }

    fn succeeds(&self, name: &str, command: &mut Command) -> Result<String, String> {
        Ok(self.session.run("postgres", name, SECONDS_MAX, command)?.output())
    }

    /// Starts the database, also after it was killed.
    fn start(&self) -> Result<(), String> {
        let _ = std::fs::remove_file(self.data.join("postmaster.pid"));
        let options =
            format!("-c listen_addresses= -c unix_socket_directories={}", self.socket.display());
        let mut outcome = Ok(());
        for _ in 0..STARTS_MAX {
            let mut start = self.program("pg_ctl");
            start.arg("-D").arg(&self.data).args(["-w", "-t", "60", "-o", &options, "-l"]);
            start.arg(self.socket.join("log")).arg("start");
            outcome = self.succeeds("start", &mut start).map(drop);
            if outcome.is_ok() {
                break;
            }
            pause(Duration::from_millis(500));
        }
        outcome
    }

    fn stop(&self) -> Result<(), String> {
        let mut stop = self.program("pg_ctl");
        stop.arg("-D").arg(&self.data).args(["-m", "fast", "stop"]);
        self.succeeds("stop", &mut stop).map(drop)
    }

    /// The process that all others of the database come from.
    fn postmaster(&self) -> Result<u32, String> {
        let text = std::fs::read_to_string(self.data.join("postmaster.pid"));
        let text = text.map_err(|error| format!("postmaster.pid: {error}"))?;
        let number = text.lines().next().and_then(|line| line.parse().ok());
        number.ok_or_else(|| format!("postmaster.pid has {text:?}"))
    }

    fn ask(&self, name: &str, sql: &str) -> Result<String, String> {
        let mut psql = self.client("psql");
        psql.args(["-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql, "postgres"]);
        self.succeeds(name, &mut psql)
    }

    /// Makes the tables of `pgbench` anew.
    fn fill(&self) -> Result<(), String> {
        let mut fill = self.client("pgbench");
        self.succeeds("fill", fill.args(["-i", "-q", "-s", "3", "postgres"])).map(drop)
    }

    /// Four clients work. None of their transactions may fail.
    fn pgbench(&self, seconds: u64) -> Result<(), String> {
        let mut work = self.client("pgbench");
        work.args(["-c", "4", "-T", &seconds.to_string(), "postgres"]);
        let said = self.succeeds("pgbench", &mut work)?;
        match said.contains("number of failed transactions: 0 ") {
            true => Ok(()),
            false => Err(said),
        }
    }

    /// The sums agree, and every table and index is sound.
    fn check(&self) -> Result<(), String> {
        let sums = self.ask("sums", SUMS)?;
        if sums.trim() != "t" {
            return Err(format!("the sums differ: {sums}"));
        }
        let mut check = self.client("pg_amcheck");
        check.args(["-d", "postgres", "--install-missing"]);
        self.succeeds("amcheck", &mut check).map(drop)
    }
}
