//! The inner loop of the codes: linear combinations of byte strings over GF(2⁸).
//!
//! ```text
//! out[r][b] = Σ factor[r][i] · source[i][b]        for every byte b, all rows r in one pass
//! ```
//!
//! Every source byte is loaded once for up to [`ROWS_MAX`] outputs. A product by a constant is
//! linear over GF(2), so it splits: `c·x = c·(x & 0x0f) ^ c·(x & 0xf0)`, two look-ups in tables
//! of 16 bytes, which `pshufb` (or NEON's `tbl`) does for 16 bytes at a time (Plank, Greenan,
//! Miller 2013); GFNI multiplies by the 8×8 bit matrix of `c` in one instruction. A row of ones is
//! plain xor and costs no look-ups.
//!
//! Each process chooses one kernel, the widest that the processor has. A candidate first computes
//! all 65,536 products. If one of them differs from the scalar kernel, the candidate is passed
//! over: a processor or hypervisor that lies about its features must not cost data.
//!
//! This is the only module of the crate with `unsafe`: it calls vector intrinsics whose presence
//! was detected, and moves vectors through pointers within slices whose lengths were checked.
#![allow(unsafe_code, reason = "vector intrinsics; each use states why it is sound")]

use crate::gf256;
use std::sync::OnceLock;

/// The most outputs of one pass. No code has more parity strips.
pub const ROWS_MAX: usize = 3;
/// The most sources of one pass. No code has more data strips.
pub const SOURCES_MAX: usize = 8;

/// The factors of a pass by row and source.
pub type Factors = [[u8; SOURCES_MAX]; ROWS_MAX];

/// Look-up tables of a factor: its products with 0..16, then with 0, 16, 32, …, 240.
type NibbleTable = [u8; 32];

/// The tables of all factors, 8 KiB.
static NIBBLES: [NibbleTable; 256] = {
    let mut tables = [[0; 32]; 256];
    let mut factor = 0;
    while factor < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            tables[factor][nibble] = gf256::multiply(factor as u8, nibble as u8);
            tables[factor][16 + nibble] = gf256::multiply(factor as u8, (nibble << 4) as u8);
            nibble += 1;
        }
        factor += 1;
    }
    tables
};

fn product(factor: u8, byte: u8) -> u8 {
    let table = &NIBBLES[usize::from(factor)];
    table[usize::from(byte & 15)] ^ table[16 + usize::from(byte >> 4)]
}

/// A way to compute combinations; all ways give the same bytes.
#[derive(Clone, Copy)]
pub struct Kernel {
    name: &'static str,
    combine: fn(&Pass<'_>, &mut [&mut [u8]]),
}

/// The input of one pass.
struct Pass<'a> {
    factors: &'a Factors,
    sources: &'a [&'a [u8]],
    /// Whether the outputs' old contents are part of the sum.
    accumulate: bool,
}

impl Kernel {
    /// The kernel this process uses.
    pub fn chosen() -> &'static Kernel {
        static CHOSEN: OnceLock<Kernel> = OnceLock::new();
        CHOSEN.get_or_init(|| {
            let all = Kernel::available();
            *all.last().expect("invariant: the scalar kernel is always there")
        })
    }

    /// All kernels that this processor can run and that passed the self-test, slowest first.
    pub fn available() -> Vec<Kernel> {
        let mut all = vec![Kernel { name: "scalar", combine: combine_scalar }];
        #[cfg(target_arch = "x86_64")]
        all.extend(x86::detected().into_iter().filter(Kernel::multiplies_rightly));
        #[cfg(target_arch = "aarch64")]
        all.extend(neon::detected().into_iter().filter(Kernel::multiplies_rightly));
        all
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Writes the combinations of `sources` (at most [`SOURCES_MAX`]) with `factors` to `outputs`
    /// (at most [`ROWS_MAX`]), or with `accumulate` adds them. All slices have one length.
    pub fn combine(
        &self,
        factors: &Factors,
        sources: &[&[u8]],
        outputs: &mut [&mut [u8]],
        accumulate: bool,
    ) {
        assert!(sources.len() <= SOURCES_MAX && outputs.len() <= ROWS_MAX, "one pass");
        let Some(length) = outputs.first().map(|out| out.len()) else { return };
        assert!(
            sources.iter().all(|source| source.len() == length)
                && outputs.iter().all(|out| out.len() == length),
            "strips of one stripe have one length"
        );
        (self.combine)(&Pass { factors, sources, accumulate }, outputs);
    }

    /// Whether every product of two bytes is right.
    fn multiplies_rightly(&self) -> bool {
        let bytes: Vec<u8> = (0..=255).collect();
        (0..=255).all(|factor| {
            let mut out = [0u8; 256];
            let factors = [[factor; SOURCES_MAX]; ROWS_MAX];
            self.combine(&factors, &[&bytes], &mut [&mut out], false);
            (0..=255).all(|byte| out[usize::from(byte)] == product(factor, byte))
        })
    }
}

/// The reference, and what computes the last bytes that fill no vector.
fn combine_scalar(pass: &Pass<'_>, outputs: &mut [&mut [u8]]) {
    combine_scalar_from(pass, outputs, 0);
}

fn combine_scalar_from(pass: &Pass<'_>, outputs: &mut [&mut [u8]], start: usize) {
    for (row, out) in outputs.iter_mut().enumerate() {
        if !pass.accumulate {
            out[start..].fill(0);
        }
        for (index, source) in pass.sources.iter().enumerate() {
            let factor = pass.factors[row][index];
            for (sum, byte) in out[start..].iter_mut().zip(&source[start..]) {
                *sum ^= product(factor, *byte);
            }
        }
    }
}

/// What the one generic loop needs of a vector unit.
///
/// # Safety
/// The methods may be called only where the processor has the unit's features; pointers must be
/// valid for `BYTES` bytes, of any alignment.
trait Unit {
    const BYTES: usize;
    type Vector: Copy;
    /// A factor in the form in which this unit multiplies.
    type Factor: Copy;
    /// A source vector prepared for several products.
    type Prepared: Copy;
    unsafe fn load(from: *const u8) -> Self::Vector;
    unsafe fn store(to: *mut u8, vector: Self::Vector);
    unsafe fn zero() -> Self::Vector;
    unsafe fn xor(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    unsafe fn factor(factor: u8) -> Self::Factor;
    unsafe fn prepare(vector: Self::Vector) -> Self::Prepared;
    /// `sum ^ factor · vector`.
    unsafe fn add_product(
        sum: Self::Vector,
        factor: Self::Factor,
        vector: Self::Prepared,
    ) -> Self::Vector;
}

/// The loop for exactly `ROWS` outputs; with `XOR` the first row's factors are all 1.
///
/// # Safety
/// The processor has the features of `U`; all slices of `pass` and `outputs` have one length, and
/// `outputs` has `ROWS` of them.
#[inline(always)]
unsafe fn combine_rows<U: Unit, const ROWS: usize, const XOR: bool>(
    pass: &Pass<'_>,
    outputs: &mut [&mut [u8]],
) -> usize {
    let length = outputs[0].len();
    let mut sources = [std::ptr::null::<u8>(); SOURCES_MAX];
    for (pointer, source) in sources.iter_mut().zip(pass.sources) {
        *pointer = source.as_ptr();
    }
    let sources = &sources[..pass.sources.len()];
    let mut targets = [std::ptr::null_mut::<u8>(); ROWS];
    for (pointer, out) in targets.iter_mut().zip(outputs) {
        *pointer = out.as_mut_ptr();
    }
    // Two vectors a turn, so that each factor is fetched once for both.
    let step = 2 * U::BYTES;
    let mut at = 0;
    while at + step <= length {
        // SAFETY: `at + 2 * BYTES <= length`, the length of every slice the pointers came from; the
        // outputs are exclusive borrows, so no source overlaps them; the features are the caller's
        // promise.
        unsafe {
            let mut sums = [[U::zero(); 2]; ROWS];
            if pass.accumulate {
                for (sum, target) in sums.iter_mut().zip(targets) {
                    *sum = [U::load(target.add(at)), U::load(target.add(at + U::BYTES))];
                }
            }
            for (index, source) in sources.iter().enumerate() {
                let left = U::load(source.add(at));
                let right = U::load(source.add(at + U::BYTES));
                let prepared = [U::prepare(left), U::prepare(right)];
                for (row, sum) in sums.iter_mut().enumerate() {
                    if XOR && row == 0 {
                        *sum = [U::xor(sum[0], left), U::xor(sum[1], right)];
                    } else {
                        let factor = U::factor(pass.factors[row][index]);
                        sum[0] = U::add_product(sum[0], factor, prepared[0]);
                        sum[1] = U::add_product(sum[1], factor, prepared[1]);
                    }
                }
            }
            for (sum, target) in sums.iter().zip(targets) {
                U::store(target.add(at), sum[0]);
                U::store(target.add(at + U::BYTES), sum[1]);
            }
        }
        at += step;
    }
    at
}

/// Chooses the loop for the number of rows, and leaves the rest that fills no step to the scalar.
///
/// # Safety
/// The processor has the features of `U`; all slices have one length.
#[inline(always)]
unsafe fn combine_with<U: Unit>(pass: &Pass<'_>, outputs: &mut [&mut [u8]]) {
    let xor = pass.factors[0][..pass.sources.len()].iter().all(|factor| *factor == 1);
    // SAFETY: the caller's promises are those of `combine_rows`, and ROWS is the number of outputs.
    let done = unsafe {
        match (outputs.len(), xor) {
            (1, true) => combine_rows::<U, 1, true>(pass, outputs),
            (1, false) => combine_rows::<U, 1, false>(pass, outputs),
            (2, true) => combine_rows::<U, 2, true>(pass, outputs),
            (2, false) => combine_rows::<U, 2, false>(pass, outputs),
            (3, true) => combine_rows::<U, 3, true>(pass, outputs),
            (3, false) => combine_rows::<U, 3, false>(pass, outputs),
            _ => 0,
        }
    };
    combine_scalar_from(pass, outputs, done);
}

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(test)]
#[path = "kernel_test.rs"]
mod kernel_test;
