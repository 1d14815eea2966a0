//! An archive as tar(1) reads it (POSIX.1-1988, `ustar`). For each file it has a head of 512 bytes,
//! and the contents with zeros up to a multiple of that. Two empty blocks end it.

use std::io::{self, Write};

const BLOCK: usize = 512;

/// Writes files one behind the other.
pub(super) struct Tar<W> {
    out: W,
    /// Seconds since 1970, for all files.
    time: u64,
}

impl<W: Write> Tar<W> {
    pub(super) fn new(out: W, time: u64) -> Tar<W> {
        Tar { out, time }
    }

    /// Adds a file. Names are ours, and shorter than a head's field.
    ///
    /// # Errors
    /// Those of the output.
    pub(super) fn add(&mut self, name: &str, contents: &[u8]) -> io::Result<()> {
        self.out.write_all(&head(name, contents.len(), self.time))?;
        self.out.write_all(contents)?;
        let rest = contents.len().next_multiple_of(BLOCK) - contents.len();
        self.out.write_all(&[0; BLOCK][..rest])
    }

    /// Ends the archive.
    ///
    /// # Errors
    /// Those of the output.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn head(name: &str, length: usize, time: u64) -> [u8; BLOCK] {
    let mut head = [0; BLOCK];
    assert!(name.len() < 100, "{name} fits into its field");
    let mut put =
        |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000600\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{length:011o}\0"));
    put(136, &format!("{time:011o}\0"));
    // The sum of all bytes is taken with blanks in its own place.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\0");
    put(263, "00");
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_heads_and_fill_blocks() {
        let mut tar = Tar::new(Vec::new(), 1_000_000_000);
        tar.add("a/b.json", b"{}").expect("memory takes all");
        tar.add("empty", b"").expect("memory takes all");
        let bytes = tar.finish().expect("memory takes all");
        assert_eq!(bytes.len(), (1 + 1 + 1 + 2) * BLOCK);
        assert_eq!(&bytes[..9], b"a/b.json\0");
        assert_eq!(&bytes[124..148], b"00000000002\x0007346545000\0");
        assert_eq!(&bytes[BLOCK..BLOCK + 3], b"{}\0");
        let sum = std::str::from_utf8(&bytes[148..154]).expect("digits");
        let others = bytes[..BLOCK].iter().enumerate();
        let others = others.map(|(at, it)| if (148..156).contains(&at) { 32 } else { *it });
        let expected: u32 = others.map(u32::from).sum();
        assert_eq!(u32::from_str_radix(sum, 8), Ok(expected));
    }
}
