//! Prints how fast each kernel encodes and rebuilds 4 MiB blocks, against memcpy and checksums.
//! GB/s of block data (parity not counted), one thread; the best of several rounds.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::Instant;
use strake_proto::{BlockIndex, Code, FsId, GrantNumber, ObjectId, StripIndex, StripKey, Version};
use strake_stripe::kernel::Kernel;
use strake_stripe::{StripeCode, strip_checksums};

const BLOCK: usize = 4 << 20;

/// GB/s of `work` over a block.
fn measure(mut work: impl FnMut()) -> f64 {
    let mut best = f64::INFINITY;
    let rounds = Instant::now();
    while rounds.elapsed().as_millis() < 300 {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    BLOCK as f64 / best / 1e9
}

fn main() {
    let source: Vec<u8> = (0..BLOCK).map(|at| ((at * 31) >> 3) as u8).collect();
    let mut target = vec![0u8; BLOCK];
    println!(
        "memcpy             {:6.2}",
        measure(|| std::hint::black_box(&mut target).copy_from_slice(&source))
    );
    let key =
        StripKey { fs: FsId(1), object: ObjectId(1), block: BlockIndex(0), strip: StripIndex(0) };
    let version = Version { grant: GrantNumber(1), counter: 1 };
    let crc = measure(|| {
        std::hint::black_box(strip_checksums(&key, version, &source));
    });
    println!("crc32c             {crc:6.2}");
    for (name, code) in Code::ALL {
        let (stripe, data) = (StripeCode::full(code), usize::from(code.data));
        let strips: Vec<&[u8]> = source.chunks(BLOCK / data).collect();
        let mut parity = vec![vec![0u8; BLOCK / data]; stripe.parity_strips()];
        for kernel in Kernel::available() {
            let speed = measure(|| {
                let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
                stripe.encode_with(&kernel, &strips, &mut out);
            });
            println!("encode {name:5} {:11} {speed:6.2}", kernel.name());
        }
        // As many data strips as can be are lost and rebuilt by the kernel that is chosen.
        let lost = data.min(stripe.parity_strips());
        let all: Vec<&[u8]> =
            strips.iter().copied().chain(parity.iter().map(Vec::as_slice)).collect();
        let present: Vec<(StripIndex, &[u8])> =
            (lost..all.len()).map(|at| (StripIndex(at as u8), all[at])).collect();
        let mut rebuilt = vec![vec![0u8; BLOCK / data]; lost];
        let speed = measure(|| {
            let mut out: Vec<(StripIndex, &mut [u8])> =
                (0u8..).map(StripIndex).zip(rebuilt.iter_mut().map(Vec::as_mut_slice)).collect();
            stripe.reconstruct(&present, &mut out).expect("enough strips");
        });
        println!("rebuild {name:5} {lost} strips   {speed:6.2}");
    }
}
