//! Chance in a simulation: all of it comes from the seed.
//!
//! Code of ours asks [`crate::rng::entropy`]. What the standard library and other crates want of
//! the operating system, foremost the keys of each `HashMap`, they take by the C library's
//! `getrandom`, which this file replaces: a simulated thread gets bytes of the seed, all others get
//! the kernel's. So the order in which a hash map is walked is the same in two runs of a seed.
#![allow(unsafe_code, reason = "a function of the C library is replaced")]

use super::stacks::here;

/// Fills `bytes` from the simulation's seed; false if this thread is not simulated.
pub(crate) fn fill(bytes: &mut [u8]) -> bool {
    let Some(here) = here() else { return false };
    here.with(|state| state.rng.fill(bytes));
    true
}

/// Takes the place of the C library's function.
///
/// # Safety
/// As getrandom(2): `buffer` has room for `length` bytes.
// SAFETY: the signature and the meaning are those of the C library's function.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(
    buffer: *mut libc::c_void,
    length: libc::size_t,
    flags: libc::c_uint,
) -> libc::ssize_t {
    if !buffer.is_null() && length > 0 {
        // SAFETY: the caller says that so many bytes may be written there. They are set before
        // they are lent, as they need not have been.
        let bytes = unsafe {
            std::ptr::write_bytes(buffer.cast::<u8>(), 0, length);
            std::slice::from_raw_parts_mut(buffer.cast::<u8>(), length)
        };
        if fill(bytes) {
            return length as libc::ssize_t;
        }
    }
    // SAFETY: what the caller promised is what the kernel asks for.
    unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as libc::ssize_t }
}

/// Makes sure that the function above is part of the program: the linker takes what is referred to.
pub(crate) fn link() {
    std::hint::black_box(getrandom as unsafe extern "C" fn(_, _, _) -> _);
}
