//! An ordinary user makes a file system, mounts it with `fusermount3`, uses it, and takes it down.
//! The user has no desktop session (`XDG_RUNTIME_DIR` is not set).

use super::checks::Checks;
use super::command::{self, Ended};
use super::session::Session;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The user's name. `scripts/deps` makes this user.
const USER: &str = "tests";
const TIME_MAX: Duration = Duration::from_secs(60);

/// What the user does with files. The script first changes into the mount.
const USE: &str = "set -e
fails() { if \"$@\"; then echo \"$* succeeded\"; exit 1; fi; }
echo text > file && test \"$(cat file)\" = text
mkdir -p a/b && mv file a/b/moved && ln a/b/moved hard && ln -s a/b/moved link
test \"$(cat link)\" = text && test \"$(stat -c %h hard)\" = 2
head -c 3000000 /dev/urandom > large && cp large copy && sync large && cmp large copy
setfattr -n user.colour -v blue large && getfattr -n user.colour large
chmod 640 large && touch -d '2001-02-03 04:05:06 UTC' copy && rm hard
fails mknod device c 1 3
fails chown root large
fails setfattr -n trusted.key -v 1 large
";

/// What others may do, in a mount namespace whose `/etc/fuse.conf` is the file `conf`. The words
/// are the user's number and group, and the program.
const OTHERS: &str = "set -eu
as() {
    number=$1 group=$2; shift 2
    setpriv --reuid=$number --regid=$group --clear-groups env -i PATH=$PATH HOME=$PWD \"$@\"
}
up() { as $1 $2 $3 up --data data --mount mnt -o allow_other; }
: > conf; mount --bind conf /etc/fuse.conf
if up $1 $2 $3 2> why; then echo 'the host permits nothing'; exit 1; fi
grep user_allow_other why
echo user_allow_other > conf
up $1 $2 $3
as $1 $2 sh -c 'echo text > mnt/open; echo text > mnt/own; chmod 644 mnt/open; chmod 600 mnt/own'
cat mnt/own; as 65534 65534 cat mnt/open
if as 65534 65534 cat mnt/own 2> why; then echo 'modes are not obeyed'; exit 1; fi
grep 'Permission denied' why
as $1 $2 $3 down --data data
";

struct User<'a> {
    session: &'a Session,
    suite: &'static str,
    strake: PathBuf,
    ids: (u32, u32),
    root: PathBuf,
}

impl<'a> User<'a> {
    fn new(session: &'a Session, checks: &Checks) -> Result<User<'a>, String> {
        let text = |error: std::io::Error| error.to_string();
        let ids = ids_of(USER)?;
        // The repository may be in a place where only root can read.
        let strake = session.root.join("strake");
        std::fs::copy(&session.strake, &strake).map_err(text)?;
        std::fs::set_permissions(&strake, PermissionsExt::from_mode(0o755)).map_err(text)?;
        let root = session.root.join(session.next_number().to_string());
        std::fs::create_dir(&root).map_err(text)?;
        std::os::unix::fs::chown(&root, Some(ids.0), Some(ids.1)).map_err(text)?;
        Ok(User { session, suite: checks.suite(), strake, ids, root })
    }

    fn command(&self, program: &std::path::Path, words: &[&str]) -> Command {
        let mut command = self.session.command(program);
        command.args(words).current_dir(&self.root).uid(self.ids.0).gid(self.ids.1);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", &self.root);
        command
    }

    /// Runs `strake WORDS` as the user, which must succeed. Returns what it printed.
    fn strake(&self, words: &str) -> Result<String, String> {
        let words: Vec<&str> = words.split(' ').collect();
        self.run(&words.join(" "), &mut self.command(&self.strake, &words))
    }

    fn run(&self, name: &str, command: &mut Command) -> Result<String, String> {
        let log = self.session.log(self.suite, name);
        let ended = command::run(command, &log, TIME_MAX).and_then(Ended::success);
        ended.map(|ended| ended.output()).map_err(|error| format!("{name}: {error}"))
    }
}

/// The user number and group number of `name`.
pub(super) fn ids_of(name: &str) -> Result<(u32, u32), String> {
    let table = std::fs::read_to_string("/etc/passwd").map_err(|error| error.to_string())?;
    let number = |field: Option<&str>| field.and_then(|text| text.parse().ok());
    table
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .find(|fields| fields[0] == name)
        .and_then(|fields| Some((number(fields.get(2).copied())?, number(fields.get(3).copied())?)))
        .ok_or_else(|| format!("there is no user '{name}': run scripts/deps"))
}

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let user = User::new(session, checks)?;
    let up = "up --data data --mount mnt --nsd-size 256M --set pagepool=64M --name of-tests";
    let made = user.strake(up);
    if !checks.record("an ordinary user makes and mounts a file system", made.map(drop)) {
        return Ok(());
    }
    let mount = user.root.join("mnt");
    let shell = |name: &str, script: &str| {
        let mut shell = user.command("/bin/sh".as_ref(), &["-c", script]);
        user.run(name, shell.current_dir("/").env("MNT", &mount))
    };
    let owner = shell("owner", "stat -c %u:%g \"$MNT\"").and_then(|found| {
        let wanted = format!("{}:{}", user.ids.0, user.ids.1);
        if found.trim() == wanted { Ok(()) } else { Err(format!("{found}, not {wanted}")) }
    });
    checks.record("its root directory is the user's", owner);
    let named = shell("df", "df --output=source \"$MNT\"");
    let named = named.and_then(|told| match told.trim().ends_with("of-tests") {
        true => Ok(()),
        false => Err(told),
    });
    checks.record("df names it", named);
    let used = shell("use", &format!("cd \"$MNT\"\n{USE}"));
    checks.record("the user works in it, within what users may", used.map(drop));
    // Not even root can see it. The kernel protects others in this way from a user's daemon.
    let seen = std::fs::metadata(mount.join("large")).map(|found| found.size());
    checks.hold("nobody else sees it", seen.is_err(), || format!("root sees {seen:?} bytes"));
    let listed = user.strake("fs list").and_then(|text| match text.contains("data") {
        true => Ok(()),
        false => Err(format!("not in the list: {text}")),
    });
    checks.record("strake fs list finds it by itself", listed);
    checks.record("strake fs check is clean", user.strake("fs check").map(drop));
    for round in ["first", "second"] {
        let down = user.strake("down --data data").map(drop);
        checks.record(&format!("{round} down"), down);
        if round == "first" {
            let up = user.strake("up --data data --mount mnt").map(drop);
            checks.record("up again", up);
            let same = shell("again", "cd \"$MNT\" && cmp large copy && cat a/b/moved").map(drop);
            checks.record("all is there", same);
        }
    }
    let mut others = session.command("unshare");
    others.args(["-m", "sh", "-c", OTHERS, "sh"]).current_dir(&user.root);
    others.args([user.ids.0.to_string(), user.ids.1.to_string()]).arg(&user.strake);
    let others = user.run("others", &mut others).map(drop);
    checks.record("others see it with allow_other, where the host permits that", others);
    let log = std::fs::read_to_string(user.root.join("data/strake.log")).unwrap_or_default();
    checks.hold("the log says who took it down", !log.contains("was taken away"), || log.clone());
    Ok(())
}
