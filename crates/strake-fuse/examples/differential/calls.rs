//! System calls with whatever arguments the test wants, which safe wrappers would not take.
//! Each returns what the kernel says, or the errno.

use std::ffi::CString;
use std::io::Error;

/// What the kernel answers.
pub(crate) type Answer<T = i64> = Result<T, i32>;

pub(crate) fn errno() -> i32 {
    Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Any system call; pointers must be good for the call.
macro_rules! call {
    ($number:ident $(, $argument:expr)* $(,)?) => {{
        // SAFETY: every pointer passed points to memory of the caller that lives through the call
        // and has the length passed with it.
        let result = unsafe { libc::syscall(libc::$number $(, $argument)*) };
        if result < 0 { Err($crate::calls::errno()) } else { Ok(result) }
    }};
}
pub(crate) use call;

/// A path as the kernel takes it.
pub(crate) fn c(path: &str) -> CString {
    CString::new(path).expect("invariant: generated names have no zero byte")
}

/// `struct stat`, without following a symbolic link.
pub(crate) fn lstat(path: &str) -> Answer<libc::stat> {
    let path = c(path);
    // SAFETY: an all-zero stat is valid, and the kernel fills it within its size.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in zero; `stat` is ours.
    let result = unsafe { libc::lstat(path.as_ptr(), &raw mut stat) };
    if result < 0 { Err(errno()) } else { Ok(stat) }
}

/// `struct stat` of an open file.
pub(crate) fn fstat(file: i32) -> Answer<libc::stat> {
    // SAFETY: as in `lstat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as in `lstat`; a bad descriptor is an error, not a fault.
    let result = unsafe { libc::fstat(file, &raw mut stat) };
    if result < 0 { Err(errno()) } else { Ok(stat) }
}

/// Reads at an offset until the buffer is full or the file ends.
pub(crate) fn read_at(file: i32, offset: i64, buffer: &mut [u8]) -> Answer<usize> {
    let mut done = 0;
    while done < buffer.len() {
        let part = &mut buffer[done..];
        let at = offset + done as i64;
        let count = call!(SYS_pread64, file, part.as_mut_ptr(), part.len(), at)?;
        if count == 0 {
            break;
        }
        done += count as usize;
    }
    Ok(done)
}

/// A shared mapping for the time of `work`.
pub(crate) fn with_mapping<T>(
    file: i32,
    offset: i64,
    length: usize,
    writable: bool,
    work: impl FnOnce(&mut [u8]) -> T,
) -> Answer<T> {
    let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    // SAFETY: a new mapping at an address of the kernel's choice aliases nothing of ours.
    let start = unsafe {
        libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, file, offset)
    };
    if start == libc::MAP_FAILED {
        return Err(errno());
    }
    // SAFETY: the mapping is `length` bytes within the file, which nobody cuts meanwhile; `work`
    // stores only where `writable` allows.
    let result = work(unsafe { std::slice::from_raw_parts_mut(start.cast::<u8>(), length) });
    // SAFETY: the mapping as made above.
    let synced = unsafe { libc::msync(start, length, libc::MS_SYNC) };
    let failure = errno();
    // SAFETY: as above, and not used again.
    unsafe { libc::munmap(start, length) };
    if synced < 0 { Err(failure) } else { Ok(result) }
}

/// FNV-1a over words, to compare contents by.
pub(crate) fn hash(bytes: &[u8], mut state: u64) -> u64 {
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = (state ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3).rotate_left(17);
    }
    state
}

/// Bytes that follow from `salt`, never zero.
pub(crate) fn pattern(salt: u64, length: usize) -> Vec<u8> {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&(state | 0x0101_0101_0101_0101).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
