//! Steps from a seed: lines of words that `worker` executes. Nothing here knows what became of
//! earlier steps; few names and few open files make most steps meet something.

use strake_env::Rng;

/// Root and two ordinary users, one of them in the other's group.
pub(crate) const ACTORS: usize = 3;
/// Open files of each actor: the first for steps one by one, the others beside the other actors.
pub(crate) const SLOTS: usize = 10;
const SLOTS_BESIDE: usize = 4;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const MODES: [u32; 14] = [
    0o777, 0o755, 0o644, 0o600, 0o666, 0o700, 0o750, 0o4755, 0o2755, 0o6777, 0o1777, 0o2770, 0o000,
    0o2644,
];
const XATTRS: [&str; 6] =
    ["user.one", "user.two", "trusted.one", "security.one", "system.posix_acl_access", "odd.one"];
const ACLS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];

/// One operation of one actor.
pub(crate) struct Step {
    pub(crate) actor: usize,
    pub(crate) words: Vec<String>,
}

/// Where paths and open files are taken from.
struct Room {
    /// Before every path: empty, or `NAME/`.
    prefix: String,
    root: bool,
    slots: std::ops::Range<usize>,
}

/// Makes steps.
pub(crate) struct Generator {
    rng: Rng,
}

impl Generator {
    pub(crate) fn new(seed: u64) -> Generator {
        Generator { rng: Rng::new(seed) }
    }

    /// A place for everyone, a place for each, and something to begin with.
    pub(crate) fn beginning(&self) -> Vec<Step> {
        let mut lines = vec!["chmod ./. 0777".to_owned()];
        for name in ["a", "b", "a/b", "c"] {
            lines.push(format!("mkdir ./{name} 0777"));
            lines.push(format!("chmod ./{name} 0777"));
        }
        for (actor, id) in [0, 31_001, 31_002].into_iter().enumerate() {
            lines.push(format!("mkdir ./own-{actor} 0755"));
            lines.push(format!("chown ./own-{actor} {id} {id} 0"));
        }
        let step = |line: String| Step { actor: 0, words: words(&line) };
        lines.into_iter().map(step).collect()
    }

    /// A step of any actor, anywhere.
    pub(crate) fn step(&mut self) -> Step {
        let actor = [0, 0, 1, 1, 2][self.rng.index(5)];
        let room = Room { prefix: String::new(), root: actor == 0, slots: 0..SLOTS - SLOTS_BESIDE };
        Step { actor, words: self.line(&room) }
    }

    /// A step of `actor` that no other actor's step can meet.
    pub(crate) fn step_beside(&mut self, actor: usize) -> Step {
        let room = Room {
            prefix: format!("own-{actor}/"),
            root: actor == 0,
            slots: SLOTS - SLOTS_BESIDE..SLOTS,
        };
        Step { actor, words: self.line(&room) }
    }

    fn line(&mut self, room: &Room) -> Vec<String> {
        let line = match self.rng.below(100) {
            0..45 => self.data(room),
            45..72 => self.names(room),
            72..97 => self.attributes(room),
            _ => self.rare(room),
        };
        // One in four leaves the kernel's caches as they are.
        if self.rng.one_in(4) { words(&format!("quiet {line}")) } else { words(&line) }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.index(from.len())]
    }

    fn path(&mut self, room: &Room) -> String {
        let depth = self.pick(&[1, 1, 1, 2, 2, 3]);
        let mut parts: Vec<&str> = (0..depth).map(|_| self.pick(&NAMES)).collect();
        let long = "x".repeat(255 + self.rng.index(2));
        match self.rng.below(60) {
            0 => parts.push("."),
            1 if room.prefix.is_empty() => parts.push(".."),
            2 => parts.push(""),
            3 => parts.push(&long),
            4 if room.prefix.is_empty() => parts.clear(),
            _ => {}
        }
        format!("./{}{}", room.prefix, parts.join("/"))
    }

    fn slot(&mut self, room: &Room) -> String {
        format!("@{}", room.slots.start + self.rng.index(room.slots.len()))
    }

    fn mode(&mut self) -> String {
        format!("{:o}", self.pick(&MODES))
    }

    /// An offset: mostly within a few blocks, often at an edge, now and then far away.
    fn offset(&mut self) -> u64 {
        let edge = self.pick(&[4096, 4000, 65_536, 131_072, 262_144, 524_288, 1_048_576]);
        match self.rng.below(24) {
            0..8 => self.rng.below(10_000),
            8..14 => self.rng.below(1_500_000),
            14..18 => edge * self.rng.below(4),
            18..22 => (edge * self.rng.below(4) + self.rng.below(9)).saturating_sub(4),
            22 => (1 << 40) + self.rng.below(1_000_000),
            _ => (i64::MAX as u64) - self.rng.below(300_000),
        }
    }

    fn length(&mut self) -> u64 {
        match self.rng.below(8) {
            0..4 => self.rng.below(5000),
            4..6 => self.rng.below(70_000),
            6 => self.rng.below(600_000),
            _ => 4096 * self.rng.below(80),
        }
    }

    fn flags(&mut self) -> i32 {
        let mut flags = self.pick(&[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR]);
        for (flag, odds) in [
            (libc::O_CREAT, 2),
            (libc::O_TRUNC, 6),
            (libc::O_APPEND, 6),
            (libc::O_EXCL, 12),
            (libc::O_SYNC, 20),
            (libc::O_DSYNC, 20),
            (libc::O_DIRECTORY, 25),
            (libc::O_NOFOLLOW, 12),
            (libc::O_NOATIME, 20),
            (libc::O_PATH, 40),
        ] {
            if self.rng.one_in(odds) {
                flags |= flag;
            }
        }
        // Odd since ever, and fixed by the kernel, not by file systems: both at once is refused.
        if flags & libc::O_CREAT != 0 { flags & !libc::O_DIRECTORY } else { flags }
    }

    fn data(&mut self, room: &Room) -> String {
        let slot = self.slot(room);
        let (offset, length, salt) = (self.offset(), self.length(), self.rng.below(1 << 30));
        match self.rng.below(40) {
            0..7 => {
                let (path, flags, mode) = (self.path(room), self.flags(), self.mode());
                format!("open {slot} {path} {flags} {mode}")
            }
            7 => format!("close {slot}"),
            8..12 => format!("pread {slot} {offset} {length}"),
            12..17 => format!("pwrite {slot} {offset} {length} {salt}"),
            17..19 => format!("read {slot} {length}"),
            19..22 => format!("write {slot} {length} {salt}"),
            22 => {
                let whence = self.pick(&[libc::SEEK_SET, libc::SEEK_CUR, libc::SEEK_END]);
                let offset = offset as i64 - if self.rng.one_in(2) { 100_000 } else { 0 };
                format!("seek {slot} {offset} {whence}")
            }
            23..25 => format!("ftruncate {slot} {offset}"),
            25 => format!("truncate {} {offset}", self.path(room)),
            26..29 => {
                // FALLOC_FL_*: KEEP_SIZE 1, PUNCH_HOLE 2, ZERO_RANGE 16.
                let mode = self.pick(&[0, 1, 3, 3, 3, 16, 17, 2]);
                // Room must not run out: reference and mount have different sizes.
                let offset = if mode & 18 == 0 { offset % (1 << 21) } else { offset };
                format!("fallocate {slot} {mode} {offset} {length}")
            }
            29..31 => format!("holes {slot} {offset}"),
            31..33 => {
                let (other, target) = (self.slot(room), self.offset());
                format!("copy {slot} {offset} {other} {target} {length}")
            }
            33..36 => {
                let way = self.pick(&["read", "write", "write"]);
                let offset = offset % (1 << 21) / 4096 * 4096;
                format!("map {slot} {way} {offset} {length} {salt}")
            }
            36 => format!("{} {slot}", self.pick(&["fsync", "fdatasync", "forget", "forget"])),
            37 => {
                let (path, offset) = (self.path(room), offset % (1 << 21) / 4096 * 4096);
                let length = (length / 4096).max(1) * 4096;
                format!("direct {path} {offset} {length} {salt}")
            }
            _ => self.lock(&slot),
        }
    }

    fn lock(&mut self, slot: &str) -> String {
        let (start, length) = (self.rng.below(50), self.rng.below(20));
        let kind = self.pick(&[libc::F_RDLCK, libc::F_WRLCK, libc::F_UNLCK]);
        match self.rng.below(4) {
            0 => {
                let how = self.pick(&[libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN]);
                format!("flock {slot} {how}")
            }
            1 => format!("lock {slot} {kind} {start} {length}"),
            2 => format!("lock-ofd {slot} {kind} {start} {length}"),
            _ => format!("locked {slot} {} {start} {length}", self.pick(&[0, 1])),
        }
    }

    fn names(&mut self, room: &Room) -> String {
        let (path, other) = (self.path(room), self.path(room));
        match self.rng.below(30) {
            0..4 => format!("mkdir {path} {}", self.mode()),
            4..6 => format!("rmdir {path}"),
            6..11 => format!("unlink {path}"),
            11..15 => format!("rename {path} {other} {}", self.pick(&[0, 0, 0, 1, 3])),
            15 if room.root => format!("rename {path} {other} 2"),
            15..17 => {
                // See `worker`: only root may set the times that XFS moves in its own way.
                let parent = path.rsplit_once('/').map_or(".", |it| it.0);
                format!("rename {path} {parent}/{} 2", self.pick(&NAMES))
            }
            17..20 => {
                let flags = self.pick(&[0, 0, libc::AT_SYMLINK_FOLLOW]);
                format!("link {path} {other} {flags}")
            }
            20..23 => {
                let up = "../".repeat(self.rng.index(3));
                let up = if room.prefix.is_empty() { up } else { String::new() };
                let target = match self.rng.below(8) {
                    0 if room.prefix.is_empty() => format!("/{}", self.pick(&NAMES)),
                    1 => "t".repeat(1 + self.rng.index(900)),
                    _ => format!("{up}{}", self.pick(&NAMES)),
                };
                format!("symlink {target} {path}")
            }
            23 => format!("readlink {path} {}", self.pick(&[1, 10, 4096])),
            24..27 => self.special(&path),
            27 => {
                let flags = libc::O_TMPFILE
                    | self.pick(&[libc::O_RDWR, libc::O_WRONLY, libc::O_RDWR | libc::O_EXCL]);
                let slot = self.slot(room);
                let (dir, mode) = (self.path(room), self.mode());
                format!("open {slot} {dir} {flags} {mode}")
            }
            _ => format!("link-open {} {path}", self.slot(room)),
        }
    }

    /// FIFOs, sockets, plain files, and two devices that do no harm: null (1, 3) and zero (1, 5).
    fn special(&mut self, path: &str) -> String {
        let kind = self.pick(&[libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR, 0]);
        let device = if kind == libc::S_IFCHR { self.pick(&[0x103, 0x105]) } else { 0 };
        format!("mknod {path} {:o} {device}", kind | self.pick(&MODES))
    }

    fn attributes(&mut self, room: &Room) -> String {
        let (path, slot) = (self.path(room), self.slot(room));
        match self.rng.below(40) {
            0..5 => format!("chmod {path} {}", self.mode()),
            5..7 => format!("fchmod {slot} {}", self.mode()),
            7..11 => {
                let (uid, mut gid) = (self.owner(), self.owner());
                if (uid, gid) == (-1, -1) && !room.root {
                    // Of a setuid file that is another's: the kernel asks FUSE in the same words as
                    // for a write, so that it must be granted there.
                    gid = 31_100;
                }
                let flags = self.pick(&[0, libc::AT_SYMLINK_NOFOLLOW]);
                format!("chown {path} {uid} {gid} {flags}")
            }
            11 => format!("fchown {slot} {} 31001", self.owner()),
            12..16 => {
                let (access, change) = (self.time(), self.time());
                let flags = self.pick(&[0, libc::AT_SYMLINK_NOFOLLOW]);
                format!("utimens {path} {access} {change} {flags}")
            }
            16..19 => format!("access {path} {}", self.rng.below(8)),
            19..21 => format!("stat {path}"),
            21..26 => {
                let (name, flags) = (self.pick(&XATTRS), self.pick(&[0, 0, 1, 2]));
                let length = self.pick(&[0, 1, 20, 300, 3000, 20_000]);
                format!("setxattr {path} {name} {flags} {length} {}", self.rng.below(1000))
            }
            26..28 => {
                let room = self.pick(&[0, 10, 65_536, 65_536]);
                format!("getxattr {path} {} {room}", self.pick(&XATTRS))
            }
            28..30 => format!("removexattr {path} {}", self.pick(&XATTRS)),
            30 => format!("listxattr {path}"),
            31..36 => self.acl(&path),
            36 => format!("removexattr {path} {}", self.pick(&ACLS)),
            37 => format!("getacl {path} {}", self.pick(&ACLS)),
            _ => format!("list {path}"),
        }
    }

    fn owner(&mut self) -> i32 {
        self.pick(&[-1, 0, 31_001, 31_002, 31_001, 31_100])
    }

    fn time(&mut self) -> String {
        match self.rng.below(4) {
            0 => "now".to_owned(),
            1 => "omit".to_owned(),
            _ => format!("{}.{}", self.rng.below(1_500_000_000), self.rng.below(1_000_000_000)),
        }
    }

    /// An access list: owner 1, user 2, owning group 4, group 8, mask 16, others 32; seldom a wrong
    /// one.
    fn acl(&mut self, path: &str) -> String {
        const NOBODY: u32 = u32::MAX;
        let mut entries = vec![format!("1:{NOBODY}:{}", 6 + self.rng.below(2))];
        let named = self.rng.below(3);
        if named > 0 {
            entries.push(format!("2:31001:{}", self.rng.below(8)));
        }
        entries.push(format!("4:{NOBODY}:{}", self.rng.below(8)));
        if named > 1 {
            entries.push(format!("8:31100:{}", self.rng.below(8)));
        }
        if named > 0 && !self.rng.one_in(12) {
            entries.push(format!("16:{NOBODY}:{}", self.rng.below(8)));
        }
        entries.push(format!("32:{NOBODY}:{}", self.rng.below(8)));
        let name = self.pick(&ACLS);
        format!("setacl {path} {name} {} {}", self.pick(&[0, 0, 0, 1, 2]), entries.join(" "))
    }

    fn rare(&mut self, room: &Room) -> String {
        let path = self.path(room);
        match self.rng.below(10) {
            0..3 => format!("walk {path} {}", self.rng.below(1 << 30)),
            3 => format!("statfs {path}"),
            4..6 => format!("wipe {path}"),
            6 => format!("umask {}", self.pick(&["0", "22", "77", "7"])),
            _ => format!("list {path}"),
        }
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}
