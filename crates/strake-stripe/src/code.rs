//! Systematic Reed–Solomon codes over GF(2⁸): parity of a stripe, and strips from any N others.
//!
//! Strips 0..N of a stripe are the block itself; parity strip j (position N + j) is, byte by byte,
//!
//! ```text
//! parity[j] = Σ  2^(i·j) · data[i]      i = 0 .. N-1, j = 0 .. P-1, over GF(2⁸) mod 0x11d
//! ```
//!
//! so with xᵢ = 2ⁱ the rows are 1, xᵢ, xᵢ²:
//! - row 0 is all ones: the first parity strip is the plain xor of the data (`4+1p` is RAID 5);
//! - column 0 is all ones: with N = 1 every parity strip is a copy (`2x`, `3x`, `4x`), and all
//!   strips of a *short* block, whose data strips 1..N are zero, are equal to its one data strip;
//! - the codes nest: `4+2p` is the upper left part of `8+3p`.
//!
//! *Any N of the N+P strips suffice* (the code is MDS) because every square submatrix is regular.
//! 1×1: powers of 2 are not 0. 2×2 of rows (0,1), (1,2), (0,2) has determinant xₐ+x_b,
//! xₐx_b(xₐ+x_b), (xₐ+x_b)² (characteristic 2), none zero for a ≠ b; 3×3 is a Vandermonde
//! determinant. The argument needs P ≤ 3 and N ≤ 255. Decision record 0004. The bytes are on disk
//! and never change.
//!
//! Data positions that lie wholly beyond the block's end are zero strips; they are neither stored
//! nor passed here: a [`StripeCode`] knows how many leading data positions a block has.

use crate::gf256;
use crate::kernel::{Factors, Kernel, ROWS_MAX, SOURCES_MAX};
use strake_proto::{Code, Error, ErrorKind, Geometry, Result, StripIndex};

/// The most strips a stripe can have.
pub const WIDTH_MAX: usize = 11;

/// A strip as a combination of the stored data strips.
type Row = [u8; SOURCES_MAX];

/// The factor of data strip `data` in parity strip `parity`.
const fn generator(parity: usize, data: usize) -> u8 {
    gf256::power(2, (parity * data) as u32)
}

/// The rows of the generator that give parity. All codes share them.
const GENERATOR: Factors = {
    let mut rows = [[0; SOURCES_MAX]; ROWS_MAX];
    let mut parity = 0;
    while parity < ROWS_MAX {
        let mut data = 0;
        while data < SOURCES_MAX {
            rows[parity][data] = generator(parity, data);
            data += 1;
        }
        parity += 1;
    }
    rows
};

/// The code of one block: which data positions are stored, and how parity follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeCode {
    code: Code,
    /// Stored data positions: 0..stored. The rest are zero.
    stored: usize,
}

impl StripeCode {
    /// For a block of `block_bytes` (at least 1), as [`Geometry`] cuts it.
    pub fn of_block(code: Code, block_bytes: u64) -> StripeCode {
        let shape = Geometry::of(code, block_bytes);
        let needed = block_bytes.div_ceil(shape.strip_bytes as u64);
        let stored = usize::try_from(needed).expect("invariant: at most N").min(code.data as usize);
        StripeCode { code, stored }
    }

    /// For a block with all N data strips.
    pub const fn full(code: Code) -> StripeCode {
        StripeCode { code, stored: code.data as usize }
    }

    /// How many data strips are stored: positions `0..data_strips()`. Also how many strips (data or
    /// parity) it takes to rebuild any other.
    pub const fn data_strips(&self) -> usize {
        self.stored
    }

    /// How many parity strips there are: positions `N..N+P` of the code.
    pub const fn parity_strips(&self) -> usize {
        self.code.parity as usize
    }

    /// Whether every parity strip equals the one data strip, so that the data can be sent to all
    /// positions without computing anything.
    pub const fn parity_is_copy(&self) -> bool {
        self.stored == 1
    }

    /// The stored positions, ascending.
    pub fn positions(&self) -> impl Iterator<Item = StripIndex> + use<> {
        let data = 0..self.stored as u8;
        data.chain(self.code.data..self.code.data + self.code.parity).map(StripIndex)
    }

    /// Computes all parity strips from all stored data strips. All slices have one length; they may
    /// be any equal part of the strips.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        self.encode_with(Kernel::chosen(), data, parity);
    }

    /// [`StripeCode::encode`] by a given kernel, for measurements.
    pub fn encode_with(&self, kernel: &Kernel, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_eq!(data.len(), self.stored, "all stored data strips are needed");
        assert_eq!(parity.len(), self.parity_strips(), "all parity strips are computed");
        if let [copy] = data {
            // Column 0 is all ones: copies, and the parity of short blocks.
            parity.iter_mut().for_each(|strip| strip.copy_from_slice(copy));
            return;
        }
        kernel.combine(&GENERATOR, data, parity, false);
    }

    /// Adds one data strip's share to the parity strips, which were zero at the beginning. Adding a
    /// strip twice takes it away again, so adding `old xor new` updates parity in place.
    pub fn encode_add(&self, position: StripIndex, data: &[u8], parity: &mut [&mut [u8]]) {
        let position = usize::from(position.0);
        assert!(position < self.stored, "position {position} is not stored data");
        assert_eq!(parity.len(), self.parity_strips(), "all parity strips are computed");
        let mut factors = [[0; SOURCES_MAX]; ROWS_MAX];
        for (row, factors) in factors.iter_mut().enumerate() {
            factors[0] = GENERATOR[row][position];
        }
        Kernel::chosen().combine(&factors, &[data], parity, true);
    }

    /// Computes the `wanted` strips (data or parity) from the `present` ones, each with its
    /// position, which must be stored. All slices have one length; they may be any equal part of
    /// the strips. More present strips than needed are allowed; the first
    /// [`data_strips`](Self::data_strips) by position are used, so data goes before parity.
    ///
    /// # Errors
    /// `Io` if fewer different strips are present than needed.
    pub fn reconstruct(
        &self,
        present: &[(StripIndex, &[u8])],
        wanted: &mut [(StripIndex, &mut [u8])],
    ) -> Result<()> {
        let mut sources: [&[u8]; SOURCES_MAX] = [&[]; SOURCES_MAX];
        let mut matrix: [Row; SOURCES_MAX] = [[0; SOURCES_MAX]; SOURCES_MAX];
        let mut chosen = 0;
        for position in self.positions() {
            let Some((_, strip)) = present.iter().find(|(at, _)| *at == position) else { continue };
            if chosen == self.stored {
                break;
            }
            sources[chosen] = strip;
            matrix[chosen] = self.row(position);
            chosen += 1;
        }
        if chosen < self.stored {
            let detail = format!("{} strips are needed and {chosen} are readable", self.stored);
            return Err(Error::new(ErrorKind::Io, detail));
        }
        // Each chosen strip is a known combination of the data; the inverse of that square matrix
        // gives the data as combinations of the chosen strips.
        let inverse = invert(matrix, self.stored);
        for wanted in wanted.chunks_mut(ROWS_MAX) {
            let rows = wanted.len();
            let mut factors = [[0; SOURCES_MAX]; ROWS_MAX];
            let mut outputs: [&mut [u8]; ROWS_MAX] = Default::default();
            for (index, (position, out)) in wanted.iter_mut().enumerate() {
                factors[index] = times(&self.row(*position), &inverse, self.stored);
                outputs[index] = out;
            }
            Kernel::chosen().combine(
                &factors,
                &sources[..self.stored],
                &mut outputs[..rows],
                false,
            );
        }
        Ok(())
    }

    /// The strip at `position` as a combination of the stored data strips.
    fn row(&self, position: StripIndex) -> Row {
        let (position, data) = (usize::from(position.0), usize::from(self.code.data));
        let mut row = [0; SOURCES_MAX];
        if position < self.stored {
            row[position] = 1;
        } else {
            assert!(
                (data..self.code.width()).contains(&position),
                "position {position} is not stored"
            );
            row[..self.stored].copy_from_slice(&GENERATOR[position - data][..self.stored]);
        }
        row
    }
}

/// The product of a row and a square matrix.
fn times(row: &Row, matrix: &[Row; SOURCES_MAX], size: usize) -> Row {
    let mut product = [0; SOURCES_MAX];
    for (factor, other) in row.iter().zip(matrix).take(size) {
        for (sum, value) in product.iter_mut().zip(other) {
            *sum ^= gf256::multiply(*factor, *value);
        }
    }
    product
}

/// The inverse of a regular square matrix, by Gauss and Jordan.
fn invert(mut matrix: [Row; SOURCES_MAX], size: usize) -> [Row; SOURCES_MAX] {
    let mut inverse = [[0; SOURCES_MAX]; SOURCES_MAX];
    for (index, row) in inverse.iter_mut().enumerate() {
        row[index] = 1;
    }
    for column in 0..size {
        let pivot = (column..size)
            .find(|row| matrix[*row][column] != 0)
            .expect("invariant: every choice of N strips is independent (MDS)");
        matrix.swap(column, pivot);
        inverse.swap(column, pivot);
        let scale = gf256::inverse(matrix[column][column]);
        for both in [&mut matrix, &mut inverse] {
            both[column] = both[column].map(|value| gf256::multiply(value, scale));
        }
        for row in (0..size).filter(|row| *row != column) {
            let factor = matrix[row][column];
            for both in [&mut matrix, &mut inverse] {
                let pivot = both[column];
                for (value, other) in both[row].iter_mut().zip(pivot) {
                    *value ^= gf256::multiply(other, factor);
                }
            }
        }
    }
    inverse
}

const _: () = {
    let mut index = 0;
    while index < Code::ALL.len() {
        let code = Code::ALL[index].1;
        assert!(code.width() <= WIDTH_MAX);
        assert!(code.data as usize <= SOURCES_MAX && code.parity as usize <= ROWS_MAX);
        index += 1;
    }
};

#[cfg(test)]
#[path = "code_test.rs"]
mod code_test;
