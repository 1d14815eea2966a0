//! The vector unit of aarch64: NEON, whose `tbl` looks 16 bytes up at a time.

use super::{Kernel, NIBBLES, Pass, Unit, combine_with};
use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

/// The kernel, if this processor reports the feature. Every one that runs Linux does.
pub(super) fn detected() -> Option<Kernel> {
    is_aarch64_feature_detected!("neon").then_some(Kernel {
        name: "neon",
        // SAFETY: the feature that the function requires was detected just now.
        combine: |pass, out| unsafe { combine_neon(pass, out) },
    })
}

/// # Safety
/// The processor has NEON; all slices have one length.
#[target_feature(enable = "neon")]
unsafe fn combine_neon(pass: &Pass<'_>, outputs: &mut [&mut [u8]]) {
    // SAFETY: passed on from the caller.
    unsafe { combine_with::<Neon>(pass, outputs) }
}

struct Neon;

// The methods rely on the trait's contract: the feature is there and the pointers are valid for a
// vector. Loads and stores of bytes ask for no alignment.
impl Unit for Neon {
    const BYTES: usize = 16;
    type Vector = uint8x16_t;
    type Factor = [uint8x16_t; 2];
    type Prepared = [uint8x16_t; 2];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> uint8x16_t {
        // SAFETY: the trait's contract.
        unsafe { vld1q_u8(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: uint8x16_t) {
        // SAFETY: the trait's contract.
        unsafe { vst1q_u8(to, vector) }
    }
    #[inline(always)]
    unsafe fn zero() -> uint8x16_t {
        // SAFETY: the trait's contract.
        unsafe { vdupq_n_u8(0) }
    }
    #[inline(always)]
    unsafe fn xor(a: uint8x16_t, b: uint8x16_t) -> uint8x16_t {
        // SAFETY: the trait's contract.
        unsafe { veorq_u8(a, b) }
    }
    #[inline(always)]
    unsafe fn factor(factor: u8) -> [uint8x16_t; 2] {
        let table = NIBBLES[usize::from(factor)].as_ptr();
        // SAFETY: a table has 32 bytes, two loads of 16; the feature is the trait's contract.
        unsafe { [vld1q_u8(table), vld1q_u8(table.add(16))] }
    }
    #[inline(always)]
    unsafe fn prepare(vector: uint8x16_t) -> [uint8x16_t; 2] {
        // SAFETY: the trait's contract. The shift moves zeros into each byte.
        unsafe { [vandq_u8(vector, vdupq_n_u8(15)), vshrq_n_u8::<4>(vector)] }
    }
    #[inline(always)]
    unsafe fn add_product(
        sum: uint8x16_t,
        factor: [uint8x16_t; 2],
        vector: [uint8x16_t; 2],
    ) -> uint8x16_t {
        // SAFETY: the trait's contract.
        unsafe {
            let low = vqtbl1q_u8(factor[0], vector[0]);
            let high = vqtbl1q_u8(factor[1], vector[1]);
            veorq_u8(veorq_u8(sum, low), high)
        }
    }
}
