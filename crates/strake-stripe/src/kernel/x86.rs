//! The vector units of x86-64: AVX2 and AVX-512 with `pshufb`, and both with GFNI.
//!
//! Each entry function carries the `target_feature` of its unit; the generic loop and the unit's
//! methods are inlined into it, so all of the loop is compiled for those features.

use super::{Kernel, NIBBLES, Pass, Unit, combine_with};
use crate::gf256;
use std::arch::is_x86_feature_detected;
use std::arch::x86_64::*;

/// Kernels whose features this processor reports, slowest first.
pub(super) fn detected() -> Vec<Kernel> {
    let mut all = Vec::new();
    let avx2 = is_x86_feature_detected!("avx2");
    let avx512 = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
    let gfni = is_x86_feature_detected!("gfni");
    if avx2 {
        // SAFETY: the feature that the function requires was detected just now.
        all.push(Kernel { name: "avx2", combine: |pass, out| unsafe { combine_avx2(pass, out) } });
    }
    if avx512 {
        // SAFETY: as above.
        let combine = |pass: &Pass<'_>, out: &mut [&mut [u8]]| unsafe { combine_avx512(pass, out) };
        all.push(Kernel { name: "avx512", combine });
    }
    if gfni && avx2 {
        // SAFETY: as above.
        let combine =
            |pass: &Pass<'_>, out: &mut [&mut [u8]]| unsafe { combine_gfni256(pass, out) };
        all.push(Kernel { name: "gfni-avx2", combine });
    }
    if gfni && avx512 {
        // SAFETY: as above.
        let combine =
            |pass: &Pass<'_>, out: &mut [&mut [u8]]| unsafe { combine_gfni512(pass, out) };
        all.push(Kernel { name: "gfni-avx512", combine });
    }
    all
}

/// # Safety
/// The processor has AVX2; all slices have one length.
#[target_feature(enable = "avx2")]
unsafe fn combine_avx2(pass: &Pass<'_>, outputs: &mut [&mut [u8]]) {
    // SAFETY: passed on from the caller.
    unsafe { combine_with::<Avx2>(pass, outputs) }
}

/// # Safety
/// The processor has AVX-512 F and BW; all slices have one length.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn combine_avx512(pass: &Pass<'_>, outputs: &mut [&mut [u8]]) {
    // SAFETY: passed on from the caller.
    unsafe { combine_with::<Avx512>(pass, outputs) }
}

/// # Safety
/// The processor has GFNI and AVX2; all slices have one length.
#[target_feature(enable = "gfni,avx2")]
unsafe fn combine_gfni256(pass: &Pass<'_>, outputs: &mut [&mut [u8]]) {
    // SAFETY: passed on from the caller.
    unsafe { combine_with::<Gfni256>(pass, outputs) }
}

/// # Safety
/// The processor has GFNI, AVX-512 F and BW; all slices have one length.
#[target_feature(enable = "gfni,avx512f,avx512bw")]
unsafe fn combine_gfni512(pass: &Pass<'_>, outputs: &mut [&mut [u8]]) {
    // SAFETY: passed on from the caller.
    unsafe { combine_with::<Gfni512>(pass, outputs) }
}

struct Avx2;

// The methods of all units rely on the trait's contract: the features are there and the pointers
// valid for a vector. `loadu` and `storeu` ask for no alignment.
impl Unit for Avx2 {
    const BYTES: usize = 32;
    type Vector = __m256i;
    type Factor = [__m256i; 2];
    type Prepared = [__m256i; 2];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: __m256i) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_storeu_si256(to.cast(), vector) }
    }
    #[inline(always)]
    unsafe fn zero() -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn xor(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_xor_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn factor(factor: u8) -> [__m256i; 2] {
        let table = NIBBLES[usize::from(factor)].as_ptr();
        // SAFETY: a table has 32 bytes, two loads of 16; the features are the trait's contract.
        unsafe {
            [
                _mm256_broadcastsi128_si256(_mm_loadu_si128(table.cast())),
                _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(16).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn prepare(vector: __m256i) -> [__m256i; 2] {
        // SAFETY: the trait's contract.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let high = _mm256_srli_epi64::<4>(vector);
            [_mm256_and_si256(vector, mask), _mm256_and_si256(high, mask)]
        }
    }
    #[inline(always)]
    unsafe fn add_product(sum: __m256i, factor: [__m256i; 2], vector: [__m256i; 2]) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe {
            let low = _mm256_shuffle_epi8(factor[0], vector[0]);
            let high = _mm256_shuffle_epi8(factor[1], vector[1]);
            _mm256_xor_si256(_mm256_xor_si256(sum, low), high)
        }
    }
}

struct Avx512;

impl Unit for Avx512 {
    const BYTES: usize = 64;
    type Vector = __m512i;
    type Factor = [__m512i; 2];
    type Prepared = [__m512i; 2];

    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u8, vector: __m512i) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_storeu_si512(to.cast(), vector) }
    }
    #[inline(always)]
    unsafe fn zero() -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_xor_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn factor(factor: u8) -> [__m512i; 2] {
        let table = NIBBLES[usize::from(factor)].as_ptr();
        // SAFETY: a table has 32 bytes, two loads of 16; the features are the trait's contract.
        unsafe {
            [
                _mm512_broadcast_i32x4(_mm_loadu_si128(table.cast())),
                _mm512_broadcast_i32x4(_mm_loadu_si128(table.add(16).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn prepare(vector: __m512i) -> [__m512i; 2] {
        // SAFETY: the trait's contract.
        unsafe {
            let mask = _mm512_set1_epi8(15);
            let high = _mm512_srli_epi64::<4>(vector);
            [_mm512_and_si512(vector, mask), _mm512_and_si512(high, mask)]
        }
    }
    #[inline(always)]
    unsafe fn add_product(sum: __m512i, factor: [__m512i; 2], vector: [__m512i; 2]) -> __m512i {
        // SAFETY: the trait's contract. 0x96 is the truth table of a three-way xor.
        unsafe {
            let low = _mm512_shuffle_epi8(factor[0], vector[0]);
            let high = _mm512_shuffle_epi8(factor[1], vector[1]);
            _mm512_ternarylogic_epi64::<0x96>(sum, low, high)
        }
    }
}

/// The matrices of all factors in the form of `gf2p8affineqb`: bit i of the product is the parity
/// of the operand and byte 7 − i of the matrix, so that byte has bit j set where 2ʲ times the
/// factor has bit i.
static MATRICES: [u64; 256] = {
    let mut matrices = [0; 256];
    let mut factor = 0;
    while factor < 256 {
        let mut column = 0;
        while column < 8 {
            let image = gf256::multiply(factor as u8, 1 << column);
            let mut bit = 0;
            while bit < 8 {
                if image >> bit & 1 != 0 {
                    matrices[factor] |= 1 << (8 * (7 - bit) + column);
                }
                bit += 1;
            }
            column += 1;
        }
        factor += 1;
    }
    matrices
};

/// A unit that differs from another only in how it multiplies: by the affine instruction.
macro_rules! gfni_unit {
    ($unit:ident, $base:ident, $vector:ident, $broadcast:ident, $affine:ident, $xor:ident) => {
        struct $unit;

        impl Unit for $unit {
            const BYTES: usize = $base::BYTES;
            type Vector = $vector;
            type Factor = $vector;
            type Prepared = $vector;

            #[inline(always)]
            unsafe fn load(from: *const u8) -> $vector {
                // SAFETY: the trait's contract.
                unsafe { $base::load(from) }
            }
            #[inline(always)]
            unsafe fn store(to: *mut u8, vector: $vector) {
                // SAFETY: the trait's contract.
                unsafe { $base::store(to, vector) }
            }
            #[inline(always)]
            unsafe fn zero() -> $vector {
                // SAFETY: the trait's contract.
                unsafe { $base::zero() }
            }
            #[inline(always)]
            unsafe fn xor(a: $vector, b: $vector) -> $vector {
                // SAFETY: the trait's contract.
                unsafe { $base::xor(a, b) }
            }
            #[inline(always)]
            unsafe fn factor(factor: u8) -> $vector {
                // SAFETY: the trait's contract.
                unsafe { $broadcast(MATRICES[usize::from(factor)].cast_signed()) }
            }
            #[inline(always)]
            unsafe fn prepare(vector: $vector) -> $vector {
                vector
            }
            #[inline(always)]
            unsafe fn add_product(sum: $vector, factor: $vector, vector: $vector) -> $vector {
                // SAFETY: the trait's contract.
                unsafe { $xor(sum, $affine::<0>(vector, factor)) }
            }
        }
    };
}

gfni_unit!(
    Gfni256,
    Avx2,
    __m256i,
    _mm256_set1_epi64x,
    _mm256_gf2p8affine_epi64_epi8,
    _mm256_xor_si256
);
gfni_unit!(
    Gfni512,
    Avx512,
    __m512i,
    _mm512_set1_epi64,
    _mm512_gf2p8affine_epi64_epi8,
    _mm512_xor_si512
);

#[cfg(test)]
mod tests {
    use super::*;

    /// The instruction as the processor's manual defines it, for machines that lack it.
    fn affine(matrix: u64, byte: u8) -> u8 {
        (0..8).fold(0, |result, bit| {
            let row = (matrix >> (8 * (7 - bit))) as u8;
            result | (((row & byte).count_ones() as u8 & 1) << bit)
        })
    }

    #[test]
    fn matrices_multiply_under_the_definition_of_the_instruction() {
        for factor in 0..=255u8 {
            for byte in 0..=255u8 {
                let product = affine(MATRICES[usize::from(factor)], byte);
                assert_eq!(product, gf256::multiply(factor, byte), "{factor} · {byte}");
            }
        }
    }
}
