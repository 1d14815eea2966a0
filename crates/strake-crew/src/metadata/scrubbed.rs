//! The scrub of an NSD goes on with the copy of the metadata that is on it. So whoever has all NSDs
//! scrubbed has all copies scrubbed, on whichever nodes they are, and asks in one way.

use super::Metadata;
use std::sync::Arc;
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest, ScrubPart};
use strake_proto::{Error, ErrorKind, NsdId, Result};

/// The first part of the copy. An NSD has fewer parts of its own.
const COPY: u64 = 1 << 63;

/// Gives the node's part of the metadata, if it has one at the moment.
pub type PartNow = Arc<dyn Fn() -> Option<Arc<Metadata>> + Send + Sync>;

/// An NSD; see the head of this file.
pub struct ScrubbedWithCopy {
    nsd: NsdId,
    port: Arc<dyn NsdPort>,
    part: PartNow,
}

impl ScrubbedWithCopy {
    /// The NSD behind `port`.
    pub fn new(nsd: NsdId, port: Arc<dyn NsdPort>, part: PartNow) -> ScrubbedWithCopy {
        ScrubbedWithCopy { nsd, port, part }
    }

    /// The node's part of the metadata, if it is on this NSD.
    fn copy(&self) -> Option<Arc<Metadata>> {
        (self.part)().filter(|part| part.place().0 == self.nsd)
    }

    /// # Errors
    /// `Busy` if the copy does not run, or is there no more. Nobody may take the scrub for whole.
    fn scrub_copy(&self, part: u64) -> Result<ScrubPart> {
        let copy = self.copy().and_then(|copy| copy.replicated()).ok_or_else(|| {
            let detail = "the copy of the metadata on it does not run: scrub again later";
            Error::new(ErrorKind::Busy, detail)
        })?;
        let found = copy.scrub(part)?;
        Ok(ScrubPart { next: found.next.map(|next| COPY | next), ..found })
    }
}

impl NsdPort for ScrubbedWithCopy {
    fn call(
        &self,
        context: NsdContext,
        request: &NsdRequest,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        if let NsdRequest::Scrub { part } = request
            && let Some(part) = part.checked_sub(COPY)
        {
            return self.scrub_copy(part).map(NsdReply::Scrubbed);
        }
        let reply = self.port.call(context, request, send, receive)?;
        Ok(match reply {
            NsdReply::Scrubbed(found) if found.next.is_none() && self.copy().is_some() => {
                NsdReply::Scrubbed(ScrubPart { next: Some(COPY), ..found })
            }
            reply => reply,
        })
    }

    fn abandon(&self) {
        self.port.abandon();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An NSD whose own parts are all whole.
    struct Whole;

    impl NsdPort for Whole {
        fn call(&self, _: NsdContext, _: &NsdRequest, _: &[u8], _: &mut [u8]) -> Result<NsdReply> {
            Ok(NsdReply::Scrubbed(ScrubPart::default()))
        }
    }

    #[test]
    fn a_copy_that_is_gone_is_not_called_scrubbed() {
        let nsd = ScrubbedWithCopy::new(NsdId(1), Arc::new(Whole), Arc::new(|| None));
        let context = NsdContext::default();
        let scrub = |part| nsd.call(context, &NsdRequest::Scrub { part }, &[], &mut []);
        let own = scrub(0).expect("the NSD answers");
        assert_eq!(own, NsdReply::Scrubbed(ScrubPart::default()), "no copy is announced");
        assert_eq!(scrub(COPY).expect_err("it has moved").kind(), ErrorKind::Busy);
        assert_eq!(scrub(COPY | 7).expect_err("it has moved").kind(), ErrorKind::Busy);
    }
}
