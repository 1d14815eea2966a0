//! Golden text, and texts that are no tokens.

use super::*;
use strake_env::Rng;

fn token() -> JoinToken {
    let address = "10.0.0.1:4460".parse().expect("an address");
    JoinToken { address, authority: Fingerprint([0xab; 32]), secret: [0x5e; SECRET_BYTES] }
}

#[test]
fn golden_text() {
    let text = token().to_string();
    let (authority, secret) = ("ab".repeat(32), "5e".repeat(16));
    let body = format!("010d31302e302e302e313a34343630{authority}{secret}");
    assert_eq!(text, format!("strake-join-{body}35db255b"));
    assert_eq!(text.parse::<JoinToken>().expect("a token"), token());
    assert_eq!(format!(" {text}\n").parse::<JoinToken>().expect("copied with blanks"), token());
    assert_eq!(format!("{:?}", token()), "JoinToken(10.0.0.1:4460, …)", "no secret in logs");
}

#[test]
fn no_changed_or_cut_text_is_a_token() {
    let text = token().to_string();
    let mut rng = Rng::new(5);
    for at in 0..text.len() {
        let error = text[..at].parse::<JoinToken>().expect_err("cut");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let mut changed = text.clone().into_bytes();
        changed[at] = b'0' + (changed[at] + 1 + rng.index(8) as u8) % 10;
        if let Ok(changed) = String::from_utf8(changed)
            && changed != text
        {
            assert!(changed.parse::<JoinToken>().is_err(), "{changed}");
        }
    }
    for text in
        ["", "strake-join-", "strake-join-é", "strake-join-0", &"strake-join-00".repeat(999)]
    {
        assert!(text.parse::<JoinToken>().is_err());
    }
}

#[test]
fn a_token_of_another_version_is_refused_with_advice() {
    let mut bytes =
        parse_digits(token().to_string().strip_prefix(PREFIX).expect("it")).expect("hex");
    bytes[0] = 2;
    let end = bytes.len() - 4;
    let check = crc32c::crc32c(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&check);
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let error = format!("{PREFIX}{digits}").parse::<JoinToken>().expect_err("newer");
    assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
}
