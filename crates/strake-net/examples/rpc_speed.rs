//! Prints what a session on a Unix socket costs: small calls, and 1 MiB strips both ways.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::sync::Arc;
use std::time::Instant;
use strake_env::RealClock;
use strake_net::{
    Endpoint, Listener, NsdClientSession, ServerOptions, SessionEnv, SessionLimits, SharedSecret,
    serve_nsd,
};
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest, StripHeader};
use strake_proto::{BlockIndex, FsId, NsdId, ObjectId, Result, StripIndex, StripKey, Version};

/// An NSD that stores nothing and reads zeros.
struct Nothing;

impl NsdPort for Nothing {
    fn call(
        &self,
        _context: NsdContext,
        request: &NsdRequest,
        _send: &[u8],
        receive: &mut [u8],
    ) -> Result<NsdReply> {
        let header = StripHeader { version: Version::NONE, block_bytes: 1 << 20, skipped: 0 };
        Ok(match request {
            NsdRequest::Read { length, .. } => NsdReply::Strip {
                header,
                strip_bytes: 1 << 20,
                checksums: vec![0; receive.len() / 4096],
                payload_bytes: *length,
            },
            _ => NsdReply::Accepted { boot: 1 },
        })
    }
}

fn main() -> Result<()> {
    let path = std::env::temp_dir().join(format!("strake-rpc-speed-{}", std::process::id()));
    let (endpoint, secret) = (Endpoint::Unix(path), SharedSecret::generate()?);
    let listener = Listener::bind(&endpoint)?;
    let options = ServerOptions::new(1);
    let _server = serve_nsd(listener, NsdId(1), Arc::new(Nothing), secret.clone(), options)?;
    let env = SessionEnv {
        introduction: secret.into(),
        clock: RealClock::shared(),
        waits: Arc::new(()),
        process: None,
    };
    let session = NsdClientSession::new(endpoint, NsdId(1), SessionLimits::NSD, env);

    let (object, block, strip) = (ObjectId(1), BlockIndex(0), StripIndex(0));
    let key = StripKey { fs: FsId(1), object, block, strip };
    let header = StripHeader { version: Version::NONE, block_bytes: 1 << 20, skipped: 0 };
    let write = NsdRequest::Write {
        key,
        header,
        checksums: vec![0; 256],
        copy: false,
        stable: Version::NONE,
    };
    let read = NsdRequest::Read { key, version: None, offset: 0, length: 1 << 20 };
    let small = NsdRequest::Read { key, version: None, offset: 0, length: 4096 };
    let data = vec![1u8; 1 << 20];
    let rows: [(&str, &NsdRequest, &[u8], usize, u32); 4] = [
        ("status", &NsdRequest::Status, &[], 0, 20_000),
        ("read 4 KiB", &small, &[], 4096, 20_000),
        ("read 1 MiB", &read, &[], 1 << 20, 1000),
        ("write 1 MiB", &write, &data, 0, 1000),
    ];
    for threads in [1, 4] {
        for (name, request, send, receive, calls) in rows {
            let start = Instant::now();
            strake_env::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        let mut buffer = vec![0; receive];
                        for _ in 0..calls {
                            let context = NsdContext::default();
                            session.call(context, request, send, &mut buffer).expect("served");
                        }
                    });
                }
            });
            let total = f64::from(calls * threads);
            let seconds = start.elapsed().as_secs_f64();
            let bytes = (send.len() + receive) as f64 * total;
            println!(
                "{threads} threads  {name:<12} {:8.1} µs per call  {:8.0} calls/s  {:6.2} GB/s",
                seconds * 1e6 / f64::from(calls),
                total / seconds,
                bytes / seconds / 1e9
            );
        }
    }
    Ok(())
}
