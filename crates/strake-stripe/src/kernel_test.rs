//! Every kernel of this machine against the definition, on random shapes.

use super::*;
use strake_env::Rng;

/// The definition, byte by byte and bit by bit.
fn expected(factors: &[u8], sources: &[&[u8]], old: &[u8]) -> Vec<u8> {
    let sum = |at: usize| {
        factors
            .iter()
            .zip(sources)
            .fold(old[at], |sum, (factor, source)| sum ^ gf256::multiply(*factor, source[at]))
    };
    (0..old.len()).map(sum).collect()
}

#[test]
fn all_kernels_agree_with_the_definition_at_any_length_and_alignment() {
    let seed = 0x5eed_0001;
    let mut rng = Rng::new(seed);
    let kernels = Kernel::available();
    for round in 0..300 {
        let length = match round % 3 {
            0 => rng.index(70),
            1 => rng.index(700),
            _ => 128 * rng.index(9),
        };
        let (count, rows) = (rng.index(SOURCES_MAX + 1), 1 + rng.index(ROWS_MAX));
        let mut memory = vec![0u8; (count + rows) * (length + 64)];
        rng.fill(&mut memory);
        let mut factors: Factors = [[0; SOURCES_MAX]; ROWS_MAX];
        for row in &mut factors {
            rng.fill(row);
            if rng.one_in(3) {
                row.fill(1);
            }
        }
        let starts: Vec<usize> =
            (0..count + rows).map(|index| index * (length + 64) + rng.index(64)).collect();
        let part = |index: usize| &memory[starts[index]..starts[index] + length];
        let sources: Vec<&[u8]> = (0..count).map(part).collect();
        let accumulate = rng.one_in(2);
        for kernel in &kernels {
            // The outputs stand at odd places within larger buffers, to see writes beyond them.
            let mut buffers: Vec<Vec<u8>> = (0..rows)
                .map(|row| [&[0xaa; 7][..], part(count + row), &[0xbb; 9]].concat())
                .collect();
            let mut outputs: Vec<&mut [u8]> =
                buffers.iter_mut().map(|buffer| &mut buffer[7..7 + length]).collect();
            kernel.combine(&factors, &sources, &mut outputs, accumulate);
            for (row, buffer) in buffers.iter().enumerate() {
                let zeros = vec![0; length];
                let old = if accumulate { part(count + row) } else { &zeros };
                let right = expected(&factors[row], &sources, old);
                let name = kernel.name();
                assert_eq!(&buffer[7..7 + length], right, "{name} seed {seed} round {round}");
                assert!(buffer[..7] == [0xaa; 7] && buffer[7 + length..] == [0xbb; 9], "{name}");
            }
        }
    }
}

#[test]
fn the_self_test_finds_a_kernel_that_multiplies_wrongly() {
    fn wrong(pass: &Pass<'_>, outputs: &mut [&mut [u8]]) {
        combine_scalar(pass, outputs);
        if pass.factors[0][0] == 0xb7 {
            outputs[0][0x91] ^= 1;
        }
    }
    assert!(Kernel { name: "scalar", combine: combine_scalar }.multiplies_rightly());
    assert!(!Kernel { name: "wrong", combine: wrong }.multiplies_rightly());
}
