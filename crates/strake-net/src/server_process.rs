//! A server process that is started anew when it dies, as its clients see it.
//!
//! A service that cannot be reached may be gone for good (a disk was pulled), or its whole process
//! may have died and be about to return. A client must tell the two apart: it gives up the first at
//! once and waits for the second. So it greets the process at its *last* endpoint, which a process
//! opens after all others. If the same process is there before and after an attempt that failed,
//! then the process lived all the while, and the service is gone.

use crate::auth::Service;
use crate::connection::Connection;
use crate::credentials::Introduction;
use crate::whereabouts::Whereabouts;
use std::sync::Arc;
use std::time::Duration;
use strake_env::WaitNames;
use strake_env::clock::Clock;
use strake_proto::{ErrorKind, Result};

/// The time between the first two looks whether the process serves; doubled up to [`LOOK_MAX`]. A
/// start takes a good part of a second.
const LOOK_MIN: Duration = Duration::from_millis(20);
const LOOK_MAX: Duration = Duration::from_millis(160);
/// The time limit of one greeting.
const GREETING: Duration = Duration::from_secs(5);

/// See the module.
pub struct ServerProcess {
    whereabouts: Whereabouts,
    service: Service,
    introduction: Introduction,
    clock: Arc<dyn Clock>,
    waits: Arc<dyn WaitNames>,
    /// How long its return is awaited.
    limit: Duration,
    /// Whether it is awaited at all.
    condition: Option<Box<Condition>>,
}

type Condition = dyn Fn() -> bool + Send + Sync;

impl ServerProcess {
    /// The process whose last endpoint is that of `service`.
    pub fn new(
        (whereabouts, service): (impl Into<Whereabouts>, Service),
        introduction: impl Into<Introduction>,
        clock: Arc<dyn Clock>,
        waits: Arc<dyn WaitNames>,
        limit: Duration,
    ) -> ServerProcess {
        let (whereabouts, introduction) = (whereabouts.into(), introduction.into());
        let condition = None;
        ServerProcess { whereabouts, service, introduction, clock, waits, limit, condition }
    }

    /// As it is; sessions wait for it only while `condition` says so.
    #[must_use]
    pub fn while_true(self, condition: impl Fn() -> bool + Send + Sync + 'static) -> ServerProcess {
        ServerProcess { condition: Some(Box::new(condition)), ..self }
    }

    /// Whether sessions wait for it.
    pub(crate) fn matters(&self) -> bool {
        self.condition.as_ref().is_none_or(|condition| condition())
    }

    /// Waits until the process serves; returns its boot number.
    ///
    /// # Errors
    /// `Unreachable` or `TimedOut` if it does not within the limit; that of a greeting it refuses.
    pub fn wait_until_it_serves(&self) -> Result<u64> {
        let wait = self.waits.begin_wait("for the server process", &self.service.to_string());
        let end = self.clock.monotonic() + self.limit;
        let mut pause = LOOK_MIN;
        let served = loop {
            let site = self.whereabouts.site(&self.introduction);
            let opened = site.and_then(|site| {
                Connection::open(&site.endpoint, &site.introduction, self.service, GREETING)
            });
            match opened {
                Ok(connection) => break Ok(connection.boot()),
                Err(error)
                    if matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut)
                        && self.clock.monotonic() < end => {}
                Err(error) => break Err(error),
            }
            self.clock.sleep(pause);
            pause = (pause * 2).min(LOOK_MAX);
        };
        self.waits.end_wait(wait);
        served
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net_test::{Folder, bind_after, env, secret};
    use crate::{
        NsdClientSession, RpcServer, ServerOptions, SessionEnv, SessionLimits, serve_meta,
        serve_nsd,
    };
    use strake_env::RealClock;
    use strake_proto::NsdId;
    use strake_proto::meta::{MetaEntry, MetaPort, MetaQuery, MetaReply};
    use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest};

    struct Done;

    impl MetaPort for Done {
        fn query(&self, _query: &MetaQuery) -> Result<MetaReply> {
            Ok(MetaReply::Done)
        }

        fn apply(&self, _entry: &MetaEntry) -> Result<MetaReply> {
            Ok(MetaReply::Done)
        }

        fn sync(&self) -> Result<()> {
            Ok(())
        }
    }

    impl NsdPort for Done {
        fn call(
            &self,
            _context: NsdContext,
            _request: &NsdRequest,
            _send: &[u8],
            _receive: &mut [u8],
        ) -> Result<NsdReply> {
            Ok(NsdReply::Done)
        }
    }

    /// An NSD at the folder's socket, and the process that it belongs to beside it.
    struct Place {
        folder: Folder,
        beside: Folder,
    }

    impl Place {
        fn new() -> Place {
            Place { folder: Folder::new(), beside: Folder::new() }
        }

        fn serve_nsd(&self, boot: u64) -> RpcServer {
            let listener = bind_after(&self.folder.socket());
            let options = ServerOptions::new(boot);
            serve_nsd(listener, NsdId(1), Arc::new(Done), secret(), options).expect("serves")
        }

        fn serve_meta(&self, boot: u64) -> RpcServer {
            let listener = bind_after(&self.beside.socket());
            serve_meta(listener, Arc::new(Done), secret(), ServerOptions::new(boot))
                .expect("serves")
        }

        /// As in the product, but for the limit.
        fn session(&self, limit: Duration) -> NsdClientSession {
            let last = (self.beside.socket(), Service::Meta);
            let process =
                ServerProcess::new(last, secret(), RealClock::shared(), Arc::new(()), limit);
            let env = SessionEnv { process: Some(Arc::new(process)), ..env() };
            NsdClientSession::new(self.folder.socket(), NsdId(1), SessionLimits::NSD, env)
        }
    }

    fn status(session: &NsdClientSession) -> Result<NsdReply> {
        session.call(NsdContext::default(), &NsdRequest::Status, &[], &mut [])
    }

    #[test]
    fn an_nsd_whose_process_serves_on_is_given_up_at_once() {
        let place = Place::new();
        let (nsd, _meta) = (place.serve_nsd(7), place.serve_meta(7));
        let session = place.session(Duration::from_secs(60));
        assert_eq!(status(&session), Ok(NsdReply::Done));
        nsd.stop();
        let begun = RealClock.monotonic();
        assert_eq!(status(&session).expect_err("gone").kind(), ErrorKind::Unreachable);
        assert!(RealClock.monotonic() - begun < Duration::from_secs(30));
    }

    #[test]
    fn an_nsd_whose_process_died_is_awaited() {
        let place = Place::new();
        let (nsd, meta) = (place.serve_nsd(7), place.serve_meta(7));
        let session = place.session(Duration::from_secs(60));
        assert_eq!(status(&session), Ok(NsdReply::Done));
        nsd.stop();
        meta.stop();
        let served = strake_env::thread::scope(|scope| {
            let starting = scope.spawn(|| {
                RealClock.sleep(Duration::from_millis(300));
                (place.serve_nsd(8), place.serve_meta(8))
            });
            let served = status(&session);
            drop(starting.join().expect("no panic"));
            served
        });
        assert_eq!(served, Ok(NsdReply::Done));
    }

    #[test]
    fn a_process_that_does_not_return_is_given_up_after_the_limit() {
        let place = Place::new();
        let session = place.session(Duration::from_millis(200));
        assert_eq!(status(&session).expect_err("nobody").kind(), ErrorKind::Unreachable);
    }
}
