//! `mount -t strake`, `/etc/fstab`, `umount`, and the options of a mount.
//!
//! The helpers that mount(8) starts belong into `/usr/sbin`. The suite leaves the machine's
//! directory alone: it works in a mount namespace of its own, in which an overlay puts the helpers
//! there. Each check is a short script, because its steps are the commands of an administrator.

use super::checks::Checks;
use super::command::{self, pause};
use super::janitor;
use super::session::Session;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// The names under which mount(8) and umount(8) look for the program.
const HELPERS: [&str; 4] =
    ["mount.strake", "mount.fuse.strake", "umount.strake", "umount.fuse.strake"];
const TIME_MAX: Duration = Duration::from_secs(60);
const ENTER_STEPS_MAX: u32 = 500;

/// Every script begins with this. `options` prints those of a mount and those of its file system.
const COMMON: &str = "set -eu
options() { sed -n \"s:^[^ ]* [^ ]* [^ ]* / $1 \\([^ ]*\\) .*- [^ ]* [^ ]*:\\1:p\" /proc/self/mountinfo; }
is() { test \"$1\" = \"$2\" || { echo \"'$1', and not '$2'\"; exit 1; }; }
has() { case \",$1,\" in *[\\ ,]$2[\\ ,]*) ;; *) echo \"'$1' has no $2\"; exit 1;; esac; }
die() { kill -9 $(strake up --data data --mount $PWD/mnt | sed 's/.*process \\([0-9]*\\).*/\\1/'); }
fails() { if \"$@\"; then echo \"$* succeeded\"; exit 1; fi; }
ended() { until flock -n data/daemon.lock true; do sleep 0.1; done; }
mounts() { grep -c \" $PWD.* - fuse.strake\" /proc/self/mountinfo || true; }
readonly_file() { if echo x 2>&1 > $1/new; then echo \"$1 takes a file\"; exit 1; fi; }
";

/// Checks in their order. Each leaves nothing mounted.
const SCRIPTS: &[(&str, &str)] = &[
    (
        "mount -t strake with options that the kernel keeps",
        "
mount -t strake $PWD/data $PWD/mnt -o noatime,nosuid,nodev,noexec,_netdev,x-systemd.a=b
has \"$(options $PWD/mnt)\" noatime; has \"$(options $PWD/mnt)\" nosuid
printf '#!/bin/sh\\n' > mnt/run; chmod +x mnt/run; fails mnt/run
mount -t strake $PWD/data $PWD/mnt
umount mnt
is \"$(options $PWD/mnt)\" ''",
    ),
    (
        "up without a mount point takes the one of last time",
        "
strake up --data data --mount mnt; strake down --data data
strake up --data data; has \"$(options $PWD/mnt)\" rw; strake down --data data
if strake up --data new 2> why; then exit 1; fi; grep 'needs a mount point' why; test ! -e new",
    ),
    (
        "the kernel reads 4 MiB ahead",
        "
mount -t strake $PWD/data $PWD/mnt
is \"$(cat /sys/class/bdi/$(mountpoint -d mnt)/read_ahead_kb)\" 4096
umount mnt",
    ),
    (
        "umount ends when all data is durable",
        "
mount -t strake $PWD/data $PWD/mnt
head -c 3000000 /dev/urandom > random; cp random mnt/random
umount mnt
flock -n data/daemon.lock true
mount -t strake $PWD/data $PWD/mnt; cmp random mnt/random; umount mnt",
    ),
    (
        "one file system at two places",
        "
mount -t strake $PWD/data $PWD/mnt -o noatime
mount -t strake $PWD/data $PWD/second -o ro,nodev
has \"$(options $PWD/second)\" ro; has \"$(options $PWD/second)\" relatime
readonly_file second; echo both > mnt/both; is \"$(cat second/both)\" both
umount mnt; is \"$(cat second/both)\" both
mount -t strake $PWD/data $PWD/mnt; echo more > mnt/both; is \"$(cat second/both)\" more
strake down --data data
is \"$(options $PWD/mnt)$(options $PWD/second)\" ''",
    ),
    (
        "what a second place cannot have is refused",
        "
mount -t strake $PWD/data $PWD/mnt -o ro
if mount -t strake $PWD/data $PWD/second 2> why; then exit 1; fi; grep 'read-only at' why
mount -o remount,rw mnt
fails mount -t strake $PWD/data $PWD/second -o sync
is \"$(options $PWD/second)\" ''; umount mnt",
    ),
    (
        "remount,ro while a file is open for writing",
        "
mount -t strake $PWD/data $PWD/mnt
exec 9> mnt/open
if mount -o remount,ro mnt 2> why; then exit 1; fi; grep 'open for writing' why
echo still >&9; exec 9>&-
is \"$(cat mnt/open)\" still; umount mnt",
    ),
    (
        "remount,ro makes all data durable and refuses changes",
        "
mount -t strake $PWD/data $PWD/mnt
head -c 3000000 /dev/urandom > random; cp random mnt/ro; mkdir -p mnt/dir
mount -o remount,ro mnt
has \"$(options $PWD/mnt)\" ro; readonly_file mnt; fails rmdir mnt/dir; fails chmod 600 mnt/ro
die; umount -l mnt
mount -t strake $PWD/data $PWD/mnt; cmp random mnt/ro; umount mnt",
    ),
    (
        "a remount that the helper does not see is noticed",
        "
mount -t strake $PWD/data $PWD/mnt
for round in $(seq 150); do
  mount -i -o remount,ro mnt; readonly_file mnt
  mount -i -o remount,rw mnt
  for other in 1 2 3; do { : > mnt/other$other; } & done
  echo $round > mnt/rounds; wait
done
is \"$(cat mnt/rounds)\" 150; umount mnt",
    ),
    (
        "sync: what is acknowledged survives kill -9",
        "
mount -t strake $PWD/data $PWD/mnt -o sync
has \"$(options $PWD/mnt)\" sync
echo bytes > mnt/sync; mkdir mnt/sync.d; die; umount -l mnt
mount -t strake $PWD/data $PWD/mnt; is \"$(cat mnt/sync)\" bytes; test -d mnt/sync.d; umount mnt",
    ),
    (
        "dirsync: names survive kill -9",
        "
mount -t strake $PWD/data $PWD/mnt -o dirsync
has \"$(options $PWD/mnt)\" dirsync
mkdir mnt/dirsync.d; mv mnt/dirsync.d mnt/dirsync.e; die; umount -l mnt
mount -t strake $PWD/data $PWD/mnt; test -d mnt/dirsync.e; umount mnt",
    ),
    (
        "access times move as the options say",
        "
mount -t strake $PWD/data $PWD/mnt -o strictatime
t() { stat -c %x $1; }
moves() {
  before=$(t $1); $2 $1 > /dev/null
  if test \"$before\" = \"$(t $1)\"; then echo \"$3: $2 moved nothing\"; exit 1; fi
}
stays() { before=$(t $1); $2 $1 > /dev/null; is \"$(t $1)\" \"$before\"; }
echo a > mnt/at; mkdir mnt/at.d
for round in 1 2; do moves mnt/at cat strict; moves mnt/at.d ls strict; done
mount -o remount,strictatime,nodiratime mnt; moves mnt/at cat nodir; stays mnt/at.d ls
mount -o remount,diratime,relatime mnt
touch -m mnt/at; moves mnt/at cat relative; stays mnt/at cat
touch -m mnt/at; moves mnt/at cat 'relative, with the pages cached'; stays mnt/at cat
echo b > mnt/at.d/f; moves mnt/at.d ls relative; stays mnt/at.d ls
mount -o remount,noatime mnt; touch -m mnt/at; stays mnt/at cat; rm mnt/at.d/f; stays mnt/at.d ls
umount mnt",
    ),
    (
        "/etc/fstab: mount -a, twice",
        "
for_all=_netdev,nofail,x-systemd.requires=a.service
echo $PWD/data $PWD/mnt strake noatime,$for_all 0 0 > fstab
echo $PWD/data $PWD/second strake ro,pagepool=32M,$for_all 0 0 >> fstab
mount -a -T $PWD/fstab; mount -a -T $PWD/fstab
has \"$(options $PWD/mnt)\" noatime; has \"$(options $PWD/second)\" ro
umount second; umount mnt",
    ),
    (
        "an automounter: direct and indirect maps, times without use, a busy mount",
        "
printf '/- %s --timeout=1\n%s %s --timeout=1\n' $PWD/direct $PWD/auto $PWD/indirect > master
echo $PWD/mnt -fstype=strake,noatime :$PWD/data > direct
echo fs -fstype=strake,nodev :$PWD/data > indirect
setsid automount -f -C -p $PWD/pid $PWD/master > automounter 2>&1 & automounter=$!
trap 'kill $automounter' EXIT
until test $(grep -c \" $PWD.* - autofs\" /proc/self/mountinfo) = 2; do sleep 0.1; done
echo one > mnt/auto; has \"$(options $PWD/mnt)\" noatime; is $(mounts) 1
strake fs list | grep \" $PWD/mnt \"
exec 9>> mnt/auto
if umount mnt 2> why; then exit 1; fi; grep 'is used by' why
fails grep automount why; echo two >&9; exec 9>&-
ended; is $(mounts) 0
is \"$(cat mnt/auto | tr '\\n' ' ')\" 'one two '; is \"$(tail -n 1 auto/fs/auto)\" two
has \"$(options $PWD/auto/fs)\" nodev; is $(mounts) 2
ended
if strake up --data data --mount mnt 2> why; then exit 1; fi; grep 'an automounter keeps' why
kill $automounter; wait $automounter; trap - EXIT; is $(grep -c $PWD/mnt /proc/self/mountinfo) 0",
    ),
    (
        "wrong options and sources",
        "
if mount -t strake $PWD/data $PWD/mnt -o fast 2> why; then exit 1; fi; grep \"option 'fast'\" why
if mount -t strake $PWD/none $PWD/mnt 2> why; then exit 1; fi; grep 'no file system at' why
mount -f -t strake $PWD/data $PWD/mnt; is \"$(options $PWD/mnt)\" ''",
    ),
];

/// The namespace. The process in it holds it.
struct Inside<'a> {
    session: &'a Session,
    suite: &'static str,
    root: PathBuf,
    holder: Child,
}

impl<'a> Inside<'a> {
    fn enter(session: &'a Session, checks: &Checks) -> Result<Inside<'a>, String> {
        let text = |error: std::io::Error| error.to_string();
        let root = session.root.join(session.next_number().to_string());
        for directory in ["auto", "bin", "mnt", "second"] {
            std::fs::create_dir_all(root.join(directory)).map_err(text)?;
        }
        for name in HELPERS {
            std::os::unix::fs::symlink(&session.strake, root.join("bin").join(name))
                .map_err(text)?;
        }
        std::os::unix::fs::symlink(&session.strake, root.join("bin/strake")).map_err(text)?;
        let lower = format!("lowerdir={}:/usr/sbin", root.join("bin").display());
        let script =
            "mount -t overlay helpers -o \"$1\" /usr/sbin && touch ready && exec sleep 600";
        let mut unshare = session.command("unshare");
        unshare.args(["-m", "sh", "-c", script, "sh", &lower]).current_dir(&root);
        let holder = unshare.process_group(0).stdin(Stdio::null()).spawn().map_err(text)?;
        let mut inside = Inside { session, suite: checks.suite(), root, holder };
        inside.wait()?;
        Ok(inside)
    }

    fn wait(&mut self) -> Result<(), String> {
        for _ in 0..ENTER_STEPS_MAX {
            if self.root.join("ready").exists() {
                return Ok(());
            }
            if let Some(status) = self.holder.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("no namespace with an overlay over /usr/sbin: {status}"));
            }
            pause(Duration::from_millis(10));
        }
        Err("no namespace with an overlay over /usr/sbin".to_owned())
    }

    fn shell(&self, name: &str, script: &str) -> Result<(), String> {
        let mut shell = self.session.command("nsenter");
        shell.args(["-m", "-t", &self.holder.id().to_string(), "sh", "-c"]);
        shell.arg(format!("cd {}\n{COMMON}{script}", self.root.display()));
        shell.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        let log = self.session.log(self.suite, name);
        let ended = command::run(&mut shell, &log, TIME_MAX)?;
        ended.success().map(drop).map_err(|error| format!("{error}{}", end_of_log(&self.root)))
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        janitor::kill_group(self.holder.id());
        let _ = self.holder.wait();
    }
}

fn end_of_log(root: &Path) -> String {
    let log = std::fs::read_to_string(root.join("data/strake.log")).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    format!("\n  the log: {}", lines[lines.len().saturating_sub(5)..].join("\n    "))
}

pub(crate) fn run(session: &Session, checks: &mut Checks) -> Result<(), String> {
    let inside = Inside::enter(session, checks)?;
    let make = "strake up --data data --mount mnt --code 1 --nsds 1 --nsd-size 512M \
                --set pagepool=64M -o noatime
has \"$(options $PWD/mnt)\" noatime
strake down --data data";
    checks.record("up -o noatime", inside.shell("up", make));
    for (name, script) in SCRIPTS {
        if !checks.record(name, inside.shell(name, script)) {
            let _ = inside.shell("clean", "strake down --data data --force; umount -l mnt second");
        }
    }
    let check =
        "strake up --data data --mount mnt; strake fs check --data data; strake down --data data";
    checks.record("strake fs check is clean", inside.shell("check", check));
    Ok(())
}
