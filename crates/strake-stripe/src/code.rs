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
//! - column 0 is all ones: with N = 1 every parity strip is a copy (`2x`, `3x`, `4x`), and all strips
//!   of a *short* block, whose data strips 1..N are zero, are equal to its one data strip;
//! - the codes nest: `4+2p` is the upper left part of `8+3p`.
//!
//! *Any N of the N+P strips suffice* (the code is MDS) because every square submatrix is regular.
//! 1×1: powers of 2 are not 0. 2×2 of rows (0,1), (1,2), (0,2) has determinant xₐ+x_b, xₐx_b(xₐ+x_b),
//! (xₐ+x_b)² (characteristic 2), none zero for a ≠ b; 3×3 is a Vandermonde determinant. The argument
//! needs P ≤ 3 and N ≤ 255. Decision record 0004. The bytes are on disk and never change.
//!
//! Data positions that lie wholly beyond the block's end are zero strips; they are neither stored
//! nor passed here: a [`StripeCode`] knows how many leading data positions a block has.

use crate::gf256;
use strake_proto::{Code, Error, ErrorKind, Geometry, Result, StripIndex};

/// The most strips a stripe can have.
pub const WIDTH_MAX: usize = 11;
/// The most parity strips, for which the generator is MDS.
const PARITY_MAX: usize = 3;

/// The factor of data strip `data` in parity strip `parity`.
const fn generator(parity: usize, data: usize) -> u8 {
    gf256::power(2, (parity * data) as u32)
}

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

    /// How many data strips are stored: positions `0..data_strips()`.
    pub const fn data_strips(&self) -> usize {
        self.stored
    }

    /// How many parity strips there are: positions `N..N+P` of the code.
    pub const fn parity_strips(&self) -> usize {
        self.code.parity as usize
    }

    /// The stored positions, ascending.
    pub fn positions(&self) -> impl Iterator<Item = StripIndex> + use<> {
        let data = 0..self.stored as u8;
        data.chain(self.code.data..self.code.data + self.code.parity).map(StripIndex)
    }

    /// How many strips (data or parity) a read needs to rebuild any other.
    pub const fn needed(&self) -> usize {
        self.stored
    }

    /// Computes all parity strips from all stored data strips. All slices have one length; they may
    /// be any equal part of the strips.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        assert_eq!(data.len(), self.stored, "all stored data strips are needed");
        assert_eq!(parity.len(), self.parity_strips(), "all parity strips are computed");
        for strip in parity.iter_mut() {
            strip.fill(0);
        }
        for (position, strip) in data.iter().enumerate() {
            self.encode_add(StripIndex(position as u8), strip, parity);
        }
    }

    /// Adds one data strip's share to the parity strips, which were zero at the beginning. Adding a
    /// strip twice takes it away again, so adding `old xor new` updates parity in place.
    pub fn encode_add(&self, position: StripIndex, data: &[u8], parity: &mut [&mut [u8]]) {
        assert!(usize::from(position.0) < self.stored, "position {position} is not stored data");
        for (row, strip) in parity.iter_mut().enumerate() {
            assert_eq!(strip.len(), data.len(), "strips of one stripe have one length");
            let factor = generator(row, position.0 as usize);
            for (sum, byte) in strip.iter_mut().zip(data) {
                *sum ^= gf256::multiply(factor, *byte);
            }
        }
    }

    /// Computes the `wanted` strips (data or parity) from the `present` ones, each with its position.
    /// All slices have one length; they may be any equal part of the strips. More present strips
    /// than needed are allowed; the first [`needed`](Self::needed) are used, data before parity.
    ///
    /// # Errors
    /// `Io` if fewer strips are present than needed.
    pub fn reconstruct(
        &self,
        present: &[(StripIndex, &[u8])],
        wanted: &mut [(StripIndex, &mut [u8])],
    ) -> Result<()> {
        let mut chosen: Vec<(usize, &[u8])> =
            present.iter().map(|(at, strip)| (at.0 as usize, *strip)).collect();
        chosen.sort_by_key(|(at, _)| *at);
        chosen.truncate(self.needed());
        if chosen.len() < self.needed() {
            return Err(Error::new(
                ErrorKind::Io,
                format!(
                    "{} strips are needed and only {} are readable",
                    self.needed(),
                    chosen.len()
                ),
            ));
        }
        // Each chosen strip is a known combination of the data; the inverse of that square matrix
        // gives the data as combinations of the chosen strips.
        let rows: Vec<Vec<u8>> = chosen.iter().map(|(at, _)| self.row(*at)).collect();
        let inverse = invert(rows);
        for (position, out) in wanted.iter_mut() {
            out.fill(0);
            let row = self.row(position.0 as usize);
            for (index, (_, strip)) in chosen.iter().enumerate() {
                assert_eq!(strip.len(), out.len(), "strips of one stripe have one length");
                let factor = (0..self.stored)
                    .fold(0, |sum, k| sum ^ gf256::multiply(row[k], inverse[k][index]));
                for (sum, byte) in out.iter_mut().zip(*strip) {
                    *sum ^= gf256::multiply(factor, *byte);
                }
            }
        }
        Ok(())
    }

    /// The strip at `position` as a combination of the stored data strips.
    fn row(&self, position: usize) -> Vec<u8> {
        let data = self.code.data as usize;
        assert!(position < self.stored || (position >= data && position < self.code.width()));
        (0..self.stored)
            .map(|column| match position.checked_sub(data) {
                Some(parity) => generator(parity, column),
                None => u8::from(column == position),
            })
            .collect()
    }
}

/// The inverse of a regular square matrix, by Gauss and Jordan.
fn invert(mut matrix: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let size = matrix.len();
    let mut inverse: Vec<Vec<u8>> =
        (0..size).map(|row| (0..size).map(|column| u8::from(row == column)).collect()).collect();
    for column in 0..size {
        let pivot = (column..size)
            .find(|&row| matrix[row][column] != 0)
            .expect("invariant: every choice of N strips is independent (MDS)");
        matrix.swap(column, pivot);
        inverse.swap(column, pivot);
        let scale = gf256::inverse(matrix[column][column]);
        for k in 0..size {
            matrix[column][k] = gf256::multiply(matrix[column][k], scale);
            inverse[column][k] = gf256::multiply(inverse[column][k], scale);
        }
        for row in (0..size).filter(|&row| row != column) {
            let factor = matrix[row][column];
            for k in 0..size {
                let (m, i) = (matrix[column][k], inverse[column][k]);
                matrix[row][k] ^= gf256::multiply(m, factor);
                inverse[row][k] ^= gf256::multiply(i, factor);
            }
        }
    }
    inverse
}

const _: () = {
    let mut index = 0;
    while index < Code::ALL.len() {
        assert!(Code::ALL[index].1.width() <= WIDTH_MAX);
        assert!(Code::ALL[index].1.parity as usize <= PARITY_MAX);
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_n_strips_give_all_others() {
        for (name, code) in Code::ALL {
            let stripe = StripeCode::full(code);
            let data: Vec<Vec<u8>> = (0..code.data)
                .map(|i| (0..64u8).map(|k| k.wrapping_mul(37) ^ (i * 29 + 1)).collect())
                .collect();
            let mut parity = vec![vec![0u8; 64]; code.parity as usize];
            stripe.encode(
                &data.iter().map(Vec::as_slice).collect::<Vec<_>>(),
                &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>(),
            );
            let all: Vec<&[u8]> = data.iter().chain(&parity).map(Vec::as_slice).collect();
            for lost in 0u32..1 << code.width() {
                if lost.count_ones() != u32::from(code.parity) {
                    continue;
                }
                let present: Vec<_> = (0..code.width())
                    .filter(|i| lost >> i & 1 == 0)
                    .map(|i| (StripIndex(i as u8), all[i]))
                    .collect();
                for (i, expected) in all.iter().enumerate() {
                    let mut out = vec![0u8; 64];
                    stripe
                        .reconstruct(&present, &mut [(StripIndex(i as u8), &mut out)])
                        .expect("N strips are enough");
                    assert_eq!(out, *expected, "{name} lost {lost:b} strip {i}");
                }
            }
        }
    }
}
