//! Which bytes may be a name.

use strake_proto::limits::NAME_BYTES_MAX;
use strake_proto::{Error, ErrorKind, Result};

/// Refuses bytes that cannot be the name of an entry. `.` and `..` pass, because each operation
/// answers them in its own way.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(ErrorKind::NameTooLong.into());
    }
    if name.is_empty() || name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(Error::new(ErrorKind::Invalid, "a name is empty or has a '/' or zero byte"));
    }
    Ok(())
}

/// True for `.` and `..`, the two names that every directory has.
pub(crate) fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_any_bytes_but_slash_and_zero_up_to_the_limit() {
        assert!(check_name(&[0xff; 255]).is_ok());
        let kind = |name: &[u8]| check_name(name).expect_err("refused").kind();
        assert_eq!(kind(&[b'a'; 256]), ErrorKind::NameTooLong);
        assert_eq!(kind(b""), ErrorKind::Invalid);
        assert_eq!(kind(b"a/b"), ErrorKind::Invalid);
        assert_eq!(kind(b"a\0"), ErrorKind::Invalid);
    }
}
