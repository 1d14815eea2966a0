//! Arithmetic in GF(2⁸) with the polynomial x⁸+x⁴+x³+x²+1 (0x11d) and generator 2: addition is xor.

/// The polynomial without its highest power, x⁸.
const POLYNOMIAL: u8 = 0x1d;

/// `a · b`, bit by bit: the reference for everything faster.
pub(crate) const fn multiply(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut product) = (a, b, 0);
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = (a << 1) ^ if a & 0x80 != 0 { POLYNOMIAL } else { 0 };
        b >>= 1;
    }
    product
}

/// `a` to the power of `exponent`.
pub(crate) const fn power(a: u8, exponent: u32) -> u8 {
    let (mut result, mut left) = (1, exponent);
    while left > 0 {
        result = multiply(result, a);
        left -= 1;
    }
    result
}

/// The inverse of `a` ≠ 0: a²⁵⁴, since the multiplicative group has 255 elements.
pub(crate) const fn inverse(a: u8) -> u8 {
    assert!(a != 0, "zero has no inverse");
    power(a, 254)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_field() {
        for a in 1..=255u8 {
            assert_eq!(multiply(a, inverse(a)), 1);
            for b in 0..=255u8 {
                assert_eq!(multiply(a, b), multiply(b, a));
                let c = a.wrapping_mul(7) ^ b;
                assert_eq!(multiply(a, b ^ c), multiply(a, b) ^ multiply(a, c));
                assert_eq!(multiply(a, multiply(b, c)), multiply(multiply(a, b), c));
            }
        }
        // 0x80 · 2 wraps to the reduced polynomial; 2 generates all 255 elements.
        assert_eq!(multiply(0x80, 2), 0x1d);
        assert!((1..255).all(|exponent| power(2, exponent) != 1));
    }
}
