//! All loss patterns of all codes, shapes of short blocks, golden parity.

use super::*;
use strake_env::Rng;

/// A stripe's strips by position; positions that are not stored are empty.
fn random_stripe(stripe: StripeCode, length: usize, rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut strips = vec![Vec::new(); stripe.code.width()];
    for strip in &mut strips[..stripe.stored] {
        strip.resize(length, 0);
        rng.fill(strip);
    }
    let (data, parity) = strips.split_at_mut(usize::from(stripe.code.data));
    let data: Vec<&[u8]> = data[..stripe.stored].iter().map(Vec::as_slice).collect();
    parity.iter_mut().for_each(|strip| strip.resize(length, 0xee));
    stripe.encode(&data, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    strips
}

/// Every shape that a block of a code can have: 1..=N stored data strips.
fn shapes(code: Code) -> impl Iterator<Item = StripeCode> {
    (1..=usize::from(code.data)).map(move |stored| StripeCode { code, stored })
}

#[test]
fn every_loss_pattern_of_every_code_and_shape_is_rebuilt_in_one_call() {
    let mut rng = Rng::new(1);
    for stripe in Code::ALL.into_iter().flat_map(|(_, code)| shapes(code)) {
        let strips = random_stripe(stripe, 200, &mut rng);
        let stored: Vec<StripIndex> = stripe.positions().collect();
        for losses in 0u32..1 << stored.len() {
            let lost = |at: &StripIndex| {
                let index = stored.iter().position(|other| other == at).expect("stored");
                losses >> index & 1 == 1
            };
            let mut present: Vec<(StripIndex, &[u8])> = stored
                .iter()
                .filter(|at| !lost(at))
                .map(|at| (*at, strips[usize::from(at.0)].as_slice()))
                .collect();
            rng.shuffle(&mut present);
            let mut rebuilt: Vec<(StripIndex, Vec<u8>)> =
                stored.iter().filter(|at| lost(at)).map(|at| (*at, vec![0x55; 200])).collect();
            let mut wanted: Vec<(StripIndex, &mut [u8])> =
                rebuilt.iter_mut().map(|(at, strip)| (*at, strip.as_mut_slice())).collect();
            let result = stripe.reconstruct(&present, &mut wanted);
            if losses.count_ones() as usize > stripe.parity_strips() {
                let error = result.expect_err("too many losses");
                assert_eq!(error.kind(), ErrorKind::Io);
                continue;
            }
            result.expect("enough strips");
            for (at, strip) in &rebuilt {
                assert_eq!(*strip, strips[usize::from(at.0)], "{stripe:?} {losses:b} {at}");
            }
        }
    }
}

#[test]
fn every_square_submatrix_of_the_generator_is_regular() {
    // The definition of MDS for a systematic code; independent of the elimination in `invert`.
    let g = GENERATOR;
    let times = gf256::multiply;
    let all = 0..SOURCES_MAX;
    assert!(g.iter().flatten().all(|factor| *factor != 0));
    for (a, b) in all.clone().flat_map(|a| (0..a).map(move |b| (a, b))) {
        for (r, s) in [(0, 1), (0, 2), (1, 2)] {
            assert_ne!(times(g[r][a], g[s][b]), times(g[r][b], g[s][a]), "rows {r} {s}");
        }
        for c in 0..b {
            let minor = |x: usize, y: usize| times(g[1][x], g[2][y]) ^ times(g[1][y], g[2][x]);
            let determinant = times(g[0][a], minor(b, c))
                ^ times(g[0][b], minor(a, c))
                ^ times(g[0][c], minor(a, b));
            assert_ne!(determinant, 0, "columns {a} {b} {c}");
        }
    }
}

#[test]
fn the_first_parity_is_xor_and_copies_and_short_blocks_are_copies() {
    let mut rng = Rng::new(2);
    for (name, code) in Code::ALL {
        for stripe in shapes(code).filter(|stripe| stripe.parity_strips() > 0) {
            let strips = random_stripe(stripe, 64, &mut rng);
            let mut xor = vec![0u8; 64];
            for strip in &strips[..stripe.stored] {
                xor.iter_mut().zip(strip).for_each(|(sum, byte)| *sum ^= byte);
            }
            let parity = &strips[usize::from(code.data)..];
            assert_eq!(parity[0], xor, "{name}");
            if stripe.stored == 1 {
                assert!(parity.iter().all(|strip| *strip == strips[0]), "{name}");
            }
        }
    }
}

#[test]
fn parity_can_be_built_and_updated_strip_by_strip() {
    let mut rng = Rng::new(3);
    for stripe in Code::ALL.into_iter().flat_map(|(_, code)| shapes(code)) {
        let strips = random_stripe(stripe, 100, &mut rng);
        let expected = &strips[usize::from(stripe.code.data)..];
        let mut parity = vec![vec![0u8; 100]; stripe.parity_strips()];
        let mut add = |at: usize, bytes: &[u8]| {
            let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            stripe.encode_add(StripIndex(at as u8), bytes, &mut parity);
        };
        for (at, strip) in strips[..stripe.stored].iter().enumerate() {
            add(at, &[0x31; 100]);
            let change: Vec<u8> = strip.iter().map(|byte| byte ^ 0x31).collect();
            add(at, &change);
        }
        assert_eq!(parity, expected, "{stripe:?}");
    }
}

#[test]
fn a_block_knows_which_strips_it_has() {
    let code = Code { data: 8, parity: 2 };
    for block_bytes in [1, 4096, 4097, 131_072, 131_073, 180_000, 1 << 20, (4 << 20) - 1, 4 << 20] {
        let stripe = StripeCode::of_block(code, block_bytes);
        let stored: Vec<u8> = stripe.positions().map(|at| at.0).collect();
        let expected: Vec<u8> =
            (0..10).filter(|at| Geometry::is_stored(code, block_bytes, *at)).collect();
        assert_eq!(stored, expected, "{block_bytes}");
    }
    // 131,073 bytes in eight strips of 20 KiB: the eighth lies beyond the end.
    assert_eq!(StripeCode::of_block(code, 131_073).data_strips(), 7);
    assert_eq!(StripeCode::of_block(code, 4 << 20), StripeCode::full(code));
}

#[test]
fn repeated_strips_do_not_count_twice() {
    let stripe = StripeCode::full(Code { data: 4, parity: 2 });
    let strip = [1u8; 16];
    let present = [(StripIndex(2), &strip[..]); 4];
    let mut out = [0u8; 16];
    assert!(stripe.reconstruct(&present, &mut [(StripIndex(0), &mut out)]).is_err());
}

#[test]
fn golden_parity() {
    // data[i][b] = 17·i + 31·b + 1 (mod 256): the bytes that every version must produce.
    let golden: [(&str, &[[u8; 8]]); 8] = [
        ("2x", &[[1, 32, 63, 94, 125, 156, 187, 218]]),
        ("3x", &[[1, 32, 63, 94, 125, 156, 187, 218], [1, 32, 63, 94, 125, 156, 187, 218]]),
        (
            "4x",
            &[
                [1, 32, 63, 94, 125, 156, 187, 218],
                [1, 32, 63, 94, 125, 156, 187, 218],
                [1, 32, 63, 94, 125, 156, 187, 218],
            ],
        ),
        ("4+1p", &[[4, 0, 124, 32, 220, 64, 68, 192]]),
        ("4+2p", &[[4, 0, 124, 32, 220, 64, 68, 192], [20, 245, 177, 70, 211, 47, 78, 174]]),
        (
            "4+3p",
            &[
                [4, 0, 124, 32, 220, 64, 68, 192],
                [20, 245, 177, 70, 211, 47, 78, 174],
                [194, 201, 237, 164, 97, 144, 248, 77],
            ],
        ),
        ("8+2p", &[[8, 0, 120, 32, 216, 64, 184, 224], [12, 187, 61, 198, 233, 55, 175, 248]]),
        (
            "8+3p",
            &[
                [8, 0, 120, 32, 216, 64, 184, 224],
                [12, 187, 61, 198, 233, 55, 175, 248],
                [117, 6, 222, 217, 57, 40, 43, 113],
            ],
        ),
    ];
    assert_eq!(golden.len(), Code::ALL.len() - 1, "code 1 has no parity");
    for (name, expected) in golden {
        let stripe = StripeCode::full(name.parse().expect("a code"));
        let data: Vec<Vec<u8>> = (0..stripe.stored)
            .map(|i| (0..8).map(|b| (17 * i + 31 * b + 1) as u8).collect())
            .collect();
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut parity = vec![vec![0u8; 8]; stripe.parity_strips()];
        stripe.encode(&data, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        assert_eq!(parity, expected, "{name}");
    }
}
