//! One process that acts on one tree: a line of words in, a line with the answer out.
//!
//! The answer: `ok VALUE` or `E<errno>`, then for each inode that the step names (`./path`, its
//! directory, `@slot`) what it is afterwards and which of its times moved. Steps that begin with
//! `quiet` tell of no inodes: nothing then refreshes what the kernel has cached of them.

use crate::calls::{Answer, c, call, errno, fstat, hash, lstat, pattern, read_at, with_mapping};
use crate::generate::SLOTS;
use crate::tree::{OLD_BEFORE, attributes, xattr, xattr_names};
use std::io::{BufRead, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use strake_env::Rng;

/// User, group, and supplementary groups of each actor.
const IDENTITIES: [(u32, u32, &[u32]); 3] =
    [(0, 0, &[0]), (31_001, 31_001, &[31_100]), (31_002, 31_002, &[31_001])];
/// The largest single read.
const READ_BYTES_MAX: usize = 1 << 20;
const HERE: i32 = libc::AT_FDCWD;

/// Executes the lines of standard input as `actor`, below `tree`.
pub(crate) fn main(actor: &str, tree: &str) -> Result<(), Box<dyn std::error::Error>> {
    // Whatever symbolic links a seed makes, `..` and `/` never leave the tree.
    std::os::unix::fs::chroot(tree)?;
    std::env::set_current_dir("/")?;
    let (uid, gid, groups) = IDENTITIES[actor.parse::<usize>()?];
    let failed = |errno| std::io::Error::from_raw_os_error(errno);
    call!(SYS_setgroups, groups.len(), groups.as_ptr()).map_err(failed)?;
    call!(SYS_setresgid, gid, gid, gid).map_err(failed)?;
    call!(SYS_setresuid, uid, uid, uid).map_err(failed)?;
    let mut worker = Worker { slots: [-1; SLOTS] };
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let answer = worker.answer(&line);
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}

struct Worker {
    /// Open files; -1 where none is.
    slots: [i32; SLOTS],
}

/// The words of a step, read one after the other.
struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn text(&mut self) -> &'a str {
        self.0.next().expect("invariant: the generator writes every word")
    }

    fn number<T: std::str::FromStr>(&mut self) -> T {
        let word = self.text();
        word.parse().unwrap_or_else(|_| panic!("not a number: {word}"))
    }

    /// A path; `./` stands before it so that the empty path can be written.
    fn path(&mut self) -> &'a str {
        let word = self.text();
        word.strip_prefix("./").unwrap_or(word)
    }
}

impl Worker {
    fn answer(&mut self, line: &str) -> String {
        let (quiet, line) = match line.strip_prefix("quiet ") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let watched = if quiet { Vec::new() } else { self.watched(line) };
        let before: Vec<_> = watched.iter().map(|what| self.stat(what)).collect();
        let mut words = Words(line.split_whitespace());
        let operation = words.text();
        let mut answer = match self.execute(operation, &mut words) {
            Ok(value) => format!("ok {value}"),
            Err(errno) => format!("E{errno}"),
        };
        for (what, before) in watched.iter().zip(before) {
            let after = self.stat(what);
            answer += &format!(" | {what} {}", difference(operation, before, after));
        }
        answer
    }

    /// What a line names: paths, the directories they are in, open files.
    fn watched(&self, line: &str) -> Vec<String> {
        let mut watched = Vec::new();
        for word in line.split_whitespace().skip(1) {
            if let Some(path) = word.strip_prefix("./") {
                watched.push(word.to_owned());
                let parent = path.trim_end_matches('/').rsplit_once('/').map_or(".", |it| it.0);
                watched.push(format!("./{parent}"));
            } else if word.starts_with('@') {
                watched.push(word.to_owned());
            }
        }
        watched.sort();
        watched.dedup();
        watched
    }

    fn stat(&self, what: &str) -> Answer<libc::stat> {
        match what.strip_prefix('@') {
            Some(slot) => fstat(self.slots[slot.parse::<usize>().map_err(|_| -1)?]),
            None => lstat(what.strip_prefix("./").unwrap_or(what)),
        }
    }

    /// The open file that `@N` names.
    fn file(&self, words: &mut Words<'_>) -> i32 {
        self.slots[slot(words)]
    }

    fn put(&mut self, slot: usize, file: i64) {
        let old = std::mem::replace(&mut self.slots[slot], file as i32);
        if old >= 0 {
            let _ = call!(SYS_close, old);
        }
    }

    fn execute(&mut self, operation: &str, words: &mut Words<'_>) -> Answer<String> {
        match operation {
            "open" => {
                let slot = slot(words);
                let (path, flags, mode) = (c(words.path()), words.number::<i32>(), octal(words));
                let flags = flags | libc::O_NONBLOCK | libc::O_CLOEXEC;
                let file = call!(SYS_openat, HERE, path.as_ptr(), flags, mode)?;
                self.put(slot, file);
                done()
            }
            "close" => {
                let slot = slot(words);
                let file = std::mem::replace(&mut self.slots[slot], -1);
                call!(SYS_close, file).map(told)
            }
            "umask" => call!(SYS_umask, octal(words)).map(told),
            "fsync" => call!(SYS_fsync, self.file(words)).map(told),
            "fdatasync" => call!(SYS_fdatasync, self.file(words)).map(told),
            "fchmod" => call!(SYS_fchmod, self.file(words), octal(words)).map(told),
            "fchown" => {
                let file = self.file(words);
                call!(SYS_fchown, file, words.number::<i32>(), words.number::<i32>()).map(told)
            }
            "link-open" => {
                let (file, itself, target) = (self.file(words), c(""), c(words.path()));
                let flags = libc::AT_EMPTY_PATH;
                call!(SYS_linkat, file, itself.as_ptr(), HERE, target.as_ptr(), flags).map(told)
            }
            "pread" | "pwrite" | "read" | "write" | "seek" | "ftruncate" | "fallocate"
            | "holes" | "copy" | "mmap" | "map" | "forget" | "flock" | "lock" | "lock-ofd"
            | "locked" => self.data(operation, words),
            _ => names(operation, words),
        }
    }

    /// Operations on the contents of open files.
    fn data(&mut self, operation: &str, words: &mut Words<'_>) -> Answer<String> {
        let file = self.file(words);
        // The kernel serves FIFOs and devices by itself, and moves their times on no FUSE mount.
        let kind = fstat(file)?.st_mode & libc::S_IFMT;
        if matches!(kind, libc::S_IFIFO | libc::S_IFCHR) {
            return Ok("not looked at".to_owned());
        }
        match operation {
            "pread" => {
                let (offset, length) = (words.number::<i64>(), words.number::<usize>());
                let mut buffer = vec![0; length.min(READ_BYTES_MAX)];
                let count = read_at(file, offset, &mut buffer)?;
                Ok(format!("{count} {:x}", hash(&buffer[..count], 1)))
            }
            "read" => {
                let mut buffer = vec![0u8; words.number::<usize>().min(READ_BYTES_MAX)];
                let count = call!(SYS_read, file, buffer.as_mut_ptr(), buffer.len())? as usize;
                Ok(format!("{count} {:x}", hash(&buffer[..count], 1)))
            }
            "pwrite" => {
                let offset = words.number::<i64>();
                let bytes = bytes(words);
                call!(SYS_pwrite64, file, bytes.as_ptr(), bytes.len(), offset).map(told)
            }
            "write" => {
                let bytes = bytes(words);
                call!(SYS_write, file, bytes.as_ptr(), bytes.len()).map(told)
            }
            // The sizes of directories are each file system's own.
            "seek" | "map" if !is_regular(file)? => Ok("not regular".to_owned()),
            "seek" => {
                let (offset, whence) = (words.number::<i64>(), words.number::<i32>());
                call!(SYS_lseek, file, offset, whence).map(told)
            }
            "ftruncate" => {
                // To the size it has: POSIX moves its times (as ours and ext4 do), XFS does not.
                let size = words.number::<i64>();
                let same = has_size(&fstat(file)?, size);
                if same { done() } else { call!(SYS_ftruncate, file, size).map(told) }
            }
            "fallocate" => {
                let (mode, offset) = (words.number::<i32>(), words.number::<i64>());
                let length = words.number::<i64>();
                // XFS keeps space beyond the end of a file. Ours refuses that.
                let keeps = mode == libc::FALLOC_FL_KEEP_SIZE
                    || mode == libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_ZERO_RANGE;
                if keeps && is_regular(file)? && offset + length > fstat(file)?.st_size {
                    return Ok("beyond the end".to_owned());
                }
                call!(SYS_fallocate, file, mode, offset, length).map(told)
            }
            "holes" => holes(file, words.number()),
            "copy" => {
                let (mut from, target) = (words.number::<i64>(), self.file(words));
                let (mut to, length) = (words.number::<i64>(), words.number::<usize>());
                copy(file, &mut from, target, &mut to, length).map(told)
            }
            "map" => map(file, words),
            "forget" => call!(SYS_fadvise64, file, 0i64, 0i64, libc::POSIX_FADV_DONTNEED).map(told),
            "flock" => call!(SYS_flock, file, words.number::<i32>() | libc::LOCK_NB).map(told),
            _ => lock(file, operation, words),
        }
    }
}

fn has_size(stat: &libc::stat, size: i64) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFREG && stat.st_size == size
}

fn is_regular(file: i32) -> Answer<bool> {
    Ok(fstat(file)?.st_mode & libc::S_IFMT == libc::S_IFREG)
}

fn done() -> Answer<String> {
    Ok(String::new())
}

fn told(value: i64) -> String {
    value.to_string()
}

/// The index in `@N`.
fn slot(words: &mut Words<'_>) -> usize {
    let word = words.text();
    word.trim_start_matches('@').parse().unwrap_or_else(|_| panic!("not a slot: {word}"))
}

fn octal(words: &mut Words<'_>) -> u32 {
    let word = words.text();
    u32::from_str_radix(word, 8).unwrap_or_else(|_| panic!("not a mode: {word}"))
}

/// `LENGTH SALT`.
fn bytes(words: &mut Words<'_>) -> Vec<u8> {
    let (length, salt) = (words.number(), words.number());
    pattern(salt, length)
}

/// What an inode is now, and which of its times moved.
fn difference(operation: &str, before: Answer<libc::stat>, after: Answer<libc::stat>) -> String {
    let after = match after {
        Ok(after) => after,
        Err(errno) => return format!("E{errno}"),
    };
    let mut text = attributes(&after);
    let times = |stat: &libc::stat| {
        [
            ("m", stat.st_mtime, stat.st_mtime_nsec),
            ("c", stat.st_ctime, stat.st_ctime_nsec),
            ("a", stat.st_atime, stat.st_atime_nsec),
        ]
    };
    let same = before.ok().filter(|before| before.st_ino == after.st_ino);
    let before = same.as_ref().map(times);
    for (index, (name, seconds, nanos)) in times(&after).into_iter().enumerate() {
        // A read may move the access time or not: only what was set counts.
        let telling = name != "a" || (operation == "utimens" && seconds < OLD_BEFORE);
        let moved = before.is_none_or(|old| (old[index].1, old[index].2) != (seconds, nanos));
        match (telling && moved, seconds < OLD_BEFORE) {
            (true, true) => text += &format!(" {name}={seconds}.{nanos}"),
            (true, false) => text += &format!(" {name}=now"),
            (false, _) => {}
        }
    }
    text
}

/// Operations on names.
fn names(operation: &str, words: &mut Words<'_>) -> Answer<String> {
    match operation {
        "mkdir" => {
            let path = c(words.path());
            call!(SYS_mkdirat, HERE, path.as_ptr(), octal(words)).map(told)
        }
        "rmdir" => {
            let path = c(words.path());
            call!(SYS_unlinkat, HERE, path.as_ptr(), libc::AT_REMOVEDIR).map(told)
        }
        "unlink" => {
            let path = c(words.path());
            call!(SYS_unlinkat, HERE, path.as_ptr(), 0).map(told)
        }
        "wipe" => {
            let path = words.path();
            std::fs::remove_dir_all(path).map_err(|error| error.raw_os_error().unwrap_or(-1))?;
            done()
        }
        "rename" => {
            let (from, to, flags) = (c(words.path()), c(words.path()), words.number::<u32>());
            let answer = call!(SYS_renameat2, HERE, from.as_ptr(), HERE, to.as_ptr(), flags);
            if flags == libc::RENAME_EXCHANGE && answer.is_ok() {
                // XFS also moves mtime of a directory that gets another parent; most do not.
                let times = [libc::timespec { tv_sec: 1, tv_nsec: 1 }; 2];
                for path in [from, to] {
                    let (path, nofollow) = (path.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
                    let _ = call!(SYS_utimensat, HERE, path, times.as_ptr(), nofollow);
                }
            }
            answer.map(told)
        }
        "link" => {
            let (from, to, flags) = (c(words.path()), c(words.path()), words.number::<i32>());
            call!(SYS_linkat, HERE, from.as_ptr(), HERE, to.as_ptr(), flags).map(told)
        }
        "symlink" => {
            let (target, path) = (c(words.text()), c(words.path()));
            call!(SYS_symlinkat, target.as_ptr(), HERE, path.as_ptr()).map(told)
        }
        "readlink" => {
            let path = c(words.path());
            let mut buffer = vec![0u8; words.number()];
            let count =
                call!(SYS_readlinkat, HERE, path.as_ptr(), buffer.as_mut_ptr(), buffer.len())?;
            Ok(String::from_utf8_lossy(&buffer[..count as usize]).into_owned())
        }
        "mknod" => {
            let (path, mode) = (c(words.path()), octal(words));
            call!(SYS_mknodat, HERE, path.as_ptr(), mode, words.number::<u32>()).map(told)
        }
        "truncate" => {
            let (path, size) = (words.path(), words.number::<i64>());
            let same =
                std::fs::metadata(path).is_ok_and(|it| it.is_file() && it.size() == size as u64);
            if same { done() } else { call!(SYS_truncate, c(path).as_ptr(), size).map(told) }
        }
        "list" => list(words.path()),
        "walk" => {
            let (path, seed) = (words.path(), words.number());
            walk(path, 20 + seed % 300, seed)
        }
        "direct" => direct(words),
        "statfs" => statfs(words.path()),
        _ => attributes_of(operation, words),
    }
}

/// Operations on attributes by name.
fn attributes_of(operation: &str, words: &mut Words<'_>) -> Answer<String> {
    let path = c(words.path());
    match operation {
        "chmod" => call!(SYS_fchmodat, HERE, path.as_ptr(), octal(words)).map(told),
        "chown" => {
            let (uid, gid, flags) =
                (words.number::<i32>(), words.number::<i32>(), words.number::<i32>());
            call!(SYS_fchownat, HERE, path.as_ptr(), uid, gid, flags).map(told)
        }
        "utimens" => {
            let times = [time(words), time(words)];
            let flags = words.number::<i32>();
            call!(SYS_utimensat, HERE, path.as_ptr(), times.as_ptr(), flags).map(told)
        }
        "access" => call!(SYS_faccessat, HERE, path.as_ptr(), words.number::<i32>()).map(told),
        "stat" => {
            let stat = call!(SYS_openat, HERE, path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC)?;
            let answer = fstat(stat as i32).map(|stat| attributes(&stat));
            let _ = call!(SYS_close, stat);
            answer
        }
        "setxattr" | "setacl" => {
            let name = c(words.text());
            let flags = words.number::<i32>();
            let value = if operation == "setacl" { acl(words) } else { bytes(words) };
            let (path, name) = (path.as_ptr(), name.as_ptr());
            call!(SYS_lsetxattr, path, name, value.as_ptr(), value.len(), flags).map(told)
        }
        "getxattr" => {
            let name = words.text();
            let mut value = vec![0u8; words.number()];
            let (path, name) = (path.as_ptr(), c(name));
            let (into, room) = (value.as_mut_ptr(), value.len());
            let count = call!(SYS_lgetxattr, path, name.as_ptr(), into, room)?;
            value.truncate(count as usize);
            Ok(format!("{count} {:x}", hash(&value, 1)))
        }
        "removexattr" => {
            let name = c(words.text());
            call!(SYS_lremovexattr, path.as_ptr(), name.as_ptr()).map(told)
        }
        "listxattr" => xattr_names(path.to_str().map_err(|_| -1)?).map(|names| names.join(",")),
        "getacl" => {
            let value = xattr(path.to_str().map_err(|_| -1)?, words.text())?;
            Ok(value.iter().map(|byte| format!("{byte:02x}")).collect())
        }
        _ => panic!("no such operation: {operation}"),
    }
}

/// `now`, `omit`, or `SECONDS.NANOS`.
fn time(words: &mut Words<'_>) -> libc::timespec {
    let (tv_sec, tv_nsec) = match words.text() {
        "now" => (0, libc::UTIME_NOW),
        "omit" => (0, libc::UTIME_OMIT),
        word => {
            let (seconds, nanos) = word.split_once('.').unwrap_or((word, "0"));
            (seconds.parse().unwrap_or(0), nanos.parse().unwrap_or(0))
        }
    };
    libc::timespec { tv_sec, tv_nsec }
}

/// An access list from `TAG:ID:PERMISSIONS` words, as the kernel's xattr has it: version 2, then
/// tag (2 bytes), permissions (2) and id (4) of each entry, all little-endian.
fn acl(words: &mut Words<'_>) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for word in words.0.by_ref() {
        let mut parts = word.split(':').map(|part| part.parse::<u32>().unwrap_or(0));
        let mut part = || parts.next().unwrap_or(0);
        let (tag, id, permissions) = (part(), part(), part());
        value.extend_from_slice(&(tag as u16).to_le_bytes());
        value.extend_from_slice(&(permissions as u16).to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

/// Copies until the kernel copies no more; how much one call takes is its own affair.
fn copy(file: i32, from: &mut i64, target: i32, to: &mut i64, length: usize) -> Answer {
    let mut left = length;
    while left > 0 {
        let count =
            call!(SYS_copy_file_range, file, &raw mut *from, target, &raw mut *to, left, 0u32)?;
        if count == 0 {
            break;
        }
        left -= count as usize;
    }
    Ok((length - left) as i64)
}

/// `map @N read|write OFFSET LENGTH SALT`: through a shared mapping, within the file.
fn map(file: i32, words: &mut Words<'_>) -> Answer<String> {
    let writes = words.text() == "write";
    let (offset, length, salt) = (words.number::<i64>(), words.number::<i64>(), words.number());
    let size = fstat(file)?.st_size;
    let length = length.min(size - offset);
    if length <= 0 {
        return Ok("nothing".to_owned());
    }
    with_mapping(file, offset, length as usize, writes, |bytes| {
        if writes {
            bytes.copy_from_slice(&pattern(salt, bytes.len()));
        }
        format!("{length} {:x}", hash(bytes, 1))
    })
}

/// Where the file system says holes are, there are zeros; and what `SEEK_DATA` and `SEEK_HOLE` say
/// at `offset` is right as far as every file system agrees.
fn holes(file: i32, offset: i64) -> Answer<String> {
    if !is_regular(file)? || call!(SYS_fcntl, file, libc::F_GETFL)? & 3 == i64::from(libc::O_WRONLY)
    {
        return Ok("not looked at".to_owned());
    }
    let position = call!(SYS_lseek, file, 0i64, libc::SEEK_CUR)?;
    let answer = look_for_holes(file, offset);
    call!(SYS_lseek, file, position, libc::SEEK_SET)?;
    answer
}

fn look_for_holes(file: i32, offset: i64) -> Answer<String> {
    const LOOK: i64 = 1 << 20;
    let size = fstat(file)?.st_size;
    let mut buffer = vec![0; LOOK as usize];
    let mut at = 0;
    while at < size {
        let data = match call!(SYS_lseek, file, at, libc::SEEK_DATA) {
            Ok(data) => data,
            Err(libc::ENXIO) => size,
            Err(errno) => return Err(errno),
        };
        for (from, to) in [(at, data.min(at.saturating_add(LOOK))), (at.max(data - LOOK), data)] {
            let part = &mut buffer[..(to - from).max(0) as usize];
            let count = read_at(file, from, part)?;
            if count < part.len() || part.iter().any(|&byte| byte != 0) {
                return Ok(format!("data in the hole {at}..{data}"));
            }
        }
        if data >= size {
            break;
        }
        at = call!(SYS_lseek, file, data, libc::SEEK_HOLE)?;
        if at <= data || at > size {
            return Ok(format!("the hole after {data} is at {at} of {size}"));
        }
    }
    let hole = call!(SYS_lseek, file, offset, libc::SEEK_HOLE);
    Ok(match hole {
        Ok(found) if found < offset || found > size => {
            format!("hole {found} for {offset} of {size}")
        }
        Ok(_) => "sound".to_owned(),
        Err(errno) => format!("sound, E{errno} at {offset}"),
    })
}

/// `lock @N TYPE START LENGTH`: set or ask for a record lock, without waiting.
fn lock(file: i32, operation: &str, words: &mut Words<'_>) -> Answer<String> {
    let (kind, start, length) = (words.number::<i32>(), words.number(), words.number());
    // SAFETY: an all-zero `flock` is valid.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as i16;
    range.l_start = start;
    range.l_len = length;
    let command = match operation {
        "lock" => libc::F_SETLK,
        "lock-ofd" => libc::F_OFD_SETLK,
        _ => libc::F_GETLK,
    };
    call!(SYS_fcntl, file, command, &raw mut range)?;
    Ok(if operation == "locked" {
        format!("{} {} {}", range.l_type, range.l_start, range.l_len)
    } else {
        String::new()
    })
}

/// The names and types in a directory, sorted.
fn list(path: &str) -> Answer<String> {
    let failed = |error: std::io::Error| error.raw_os_error().unwrap_or(-1);
    let mut names = Vec::new();
    let path = if path.is_empty() { Path::new(".") } else { Path::new(path) };
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        let mark = if kind.is_dir() {
            "/"
        } else if kind.is_symlink() {
            "@"
        } else {
            ""
        };
        names.push(format!("{}{mark}", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names.join(","))
}

/// `direct PATH OFFSET LENGTH SALT`: writes with `O_DIRECT` in whole pages and reads them back.
fn direct(words: &mut Words<'_>) -> Answer<String> {
    const PAGE: usize = 4096;
    let path = c(words.path());
    let (offset, bytes) = (words.number::<i64>(), bytes(words));
    let flags = libc::O_RDWR | libc::O_DIRECT | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let file = call!(SYS_openat, HERE, path.as_ptr(), flags)? as i32;
    let mut room = vec![0u8; bytes.len() + PAGE];
    let skip = room.as_ptr().align_offset(PAGE);
    let buffer = &mut room[skip..skip + bytes.len()];
    buffer.copy_from_slice(&bytes);
    let answer = call!(SYS_pwrite64, file, buffer.as_ptr(), buffer.len(), offset);
    let answer = answer.and_then(|count| {
        buffer.fill(0);
        let read = call!(SYS_pread64, file, buffer.as_mut_ptr(), buffer.len(), offset)?;
        Ok(format!("{count} {read} {:x}", hash(buffer, 1)))
    });
    let _ = call!(SYS_close, file);
    answer
}

/// The numbers that hold for every file system.
fn statfs(path: &str) -> Answer<String> {
    let path = c(path);
    // SAFETY: an all-zero statvfs is valid, and is filled within its size.
    let mut space: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in zero; `space` is ours.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut space) } < 0 {
        return Err(errno());
    }
    let sound = space.f_bavail <= space.f_bfree
        && space.f_bfree <= space.f_blocks
        && space.f_ffree <= space.f_files
        && space.f_frsize > 0
        && space.f_bsize >= space.f_frsize;
    Ok(format!("{} names {}", if sound { "sound" } else { "unsound" }, space.f_namemax))
}

/// A directory stream while its directory changes.
struct Stream {
    file: i32,
    entries: Vec<(i64, String)>,
}

impl Stream {
    /// Reads the next entries, as many as fit `room` bytes; false at the end.
    fn next(&mut self, room: usize) -> Answer<bool> {
        let mut buffer = vec![0u8; room];
        let count = call!(SYS_getdents64, self.file, buffer.as_mut_ptr(), room)? as usize;
        let mut rest = &buffer[..count];
        while rest.len() > 19 {
            // `struct linux_dirent64`: inode 8, cookie 8, length 2, type 1, name up to a zero.
            let cookie = i64::from_ne_bytes(rest[8..16].try_into().map_err(|_| -1)?);
            let length = usize::from(u16::from_ne_bytes(rest[16..18].try_into().map_err(|_| -1)?));
            let name = rest[19..length].split(|&byte| byte == 0).next().unwrap_or_default();
            self.entries.push((cookie, String::from_utf8_lossy(name).into_owned()));
            rest = &rest[length..];
        }
        Ok(count > 0)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = call!(SYS_close, self.file);
    }
}

/// Makes a directory of `count` names, lists it while names come and go, goes back to remembered
/// places, removes it. `sound`, or what a listing did wrong.
pub(crate) fn walk(path: &str, count: u64, seed: u64) -> Answer<String> {
    let mut rng = Rng::new(seed);
    let whole = c(path);
    call!(SYS_mkdirat, HERE, whole.as_ptr(), 0o700)?;
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    let file = call!(SYS_openat, HERE, whole.as_ptr(), flags)? as i32;
    let mut stream = Stream { file, entries: Vec::new() };
    let make = |number: u64| {
        let name = c(&format!("entry-{number}"));
        call!(SYS_mknodat, file, name.as_ptr(), libc::S_IFREG | 0o600, 0)
    };
    let mut there: Vec<u64> = (0..count).collect();
    there.iter().try_for_each(|&number| make(number).map(drop))?;
    let mut constant: std::collections::BTreeSet<u64> = there.iter().copied().collect();
    let mut next = there.len() as u64;
    while stream.next(300 + rng.index(2000))? {
        for _ in 0..rng.below(6) {
            let victim = there.swap_remove(rng.index(there.len()));
            constant.remove(&victim);
            let name = c(&format!("entry-{victim}"));
            if rng.one_in(2) {
                call!(SYS_unlinkat, file, name.as_ptr(), 0)?;
                make(next)?;
            } else {
                let new = c(&format!("entry-{next}"));
                call!(SYS_renameat2, file, name.as_ptr(), file, new.as_ptr(), 0)?;
            }
            there.push(next);
            next += 1;
        }
    }
    let mut seen: Vec<&str> = stream.entries.iter().map(|(_, name)| name.as_str()).collect();
    seen.sort_unstable();
    if let Some(twice) = seen.windows(2).find(|pair| pair[0] == pair[1]) {
        return Ok(format!("{} is listed twice", twice[0]));
    }
    for number in constant {
        let name = format!("entry-{number}");
        if seen.binary_search(&name.as_str()).is_err() {
            return Ok(format!("{name} was there all the time and is not listed"));
        }
    }
    let verdict = back_and_forth(&mut stream, &mut rng)?;
    for number in there {
        let name = c(&format!("entry-{number}"));
        call!(SYS_unlinkat, file, name.as_ptr(), 0)?;
    }
    call!(SYS_unlinkat, HERE, whole.as_ptr(), libc::AT_REMOVEDIR)?;
    Ok(verdict)
}

/// While nothing changes, a listing from any remembered place is the rest of the whole listing.
fn back_and_forth(stream: &mut Stream, rng: &mut Rng) -> Answer<String> {
    let mut listing = |cookie: i64, room: usize| -> Answer<Vec<(i64, String)>> {
        call!(SYS_lseek, stream.file, cookie, libc::SEEK_SET)?;
        stream.entries.clear();
        while stream.next(room)? {}
        Ok(std::mem::take(&mut stream.entries))
    };
    let whole = listing(0, 32_768)?;
    for _ in 0..4 {
        let place = rng.index(whole.len());
        let rest = listing(whole[place].0, 300 + rng.index(9000))?;
        let wanted = whole[place + 1..].iter().map(|(_, name)| name);
        if !rest.iter().map(|(_, name)| name).eq(wanted) {
            return Ok(format!("after {} the listing goes on otherwise", whole[place].1));
        }
    }
    Ok("sound".to_owned())
}
