//! Prints what a session costs over loopback, by how its ends prove themselves and how its frames
//! are protected: connections, small calls, and strips of 1 MiB both ways.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::sync::Arc;
use std::time::Instant;
use strake_env::RealClock;
use strake_env::net::Ipv4Addr;
use strake_net::connection::Connection;
use strake_net::{
    Cipher, ClusterAuthority, Credentials, Endpoint, Introduction, Listener, NodeCredentials,
    NodeServer, NsdClientSession, ServerOptions, Service, SessionEnv, SessionLimits, SharedSecret,
    serve_nsd,
};
use strake_proto::nsd::{NsdContext, NsdPort, NsdReply, NsdRequest, StripHeader};
use strake_proto::{
    BlockIndex, ClusterId, FsId, NodeIdentity, NsdId, ObjectId, Result, Roles, StripIndex,
    StripKey, Version,
};

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
        let header = StripHeader { version: Version::NONE, block_bytes: 1 << 20, lacks: 0 };
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

/// A way for a session to prove itself and to go.
type Way = (&'static str, Endpoint, Credentials, Introduction);

fn ways() -> Result<Vec<Way>> {
    let path = std::env::temp_dir().join(format!("strake-rpc-speed-{}", std::process::id()));
    let secret = SharedSecret::generate()?;
    let unix = Endpoint::Unix(path);
    let mut ways: Vec<Way> =
        vec![("Unix, secret", unix, secret.clone().into(), secret.clone().into())];
    let any = Endpoint::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    ways.push(("TCP, secret", any.clone(), secret.clone().into(), secret.into()));
    let cluster = ClusterId([1; 16]);
    let authority = ClusterAuthority::create(cluster, RealClock::shared())?;
    for (name, cipher) in [("TCP, AUTHONLY", Cipher::AuthOnly), ("TCP, TLS", Cipher::Tls)] {
        let node = |name: &str| -> Result<NodeCredentials> {
            let identity = NodeIdentity { cluster, name: name.parse()?, roles: Roles::ALL };
            Ok(authority.issue(&identity)?.with_cipher(cipher))
        };
        let (server, client) = (node("n1")?, Arc::new(node("c1")?));
        let introduction = Introduction::node(&client, &server.identity().name);
        ways.push((name, any.clone(), NodeServer::new(&server)?.into(), introduction));
    }
    Ok(ways)
}

/// The processor time that both ends have had, in seconds, in steps of 10 ms. On a busy machine it
/// says more than the time that has passed.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// What the calls of one kind cost over one session.
fn measure(session: &NsdClientSession, request: &NsdRequest, send: &[u8], receive: usize) {
    let calls: u32 = if send.len() + receive > 1 << 16 { 1000 } else { 10_000 };
    for threads in [1, 4] {
        let (start, processor) = (Instant::now(), processor_seconds());
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
        let processor = processor_seconds() - processor;
        let mebibytes = (send.len() + receive) as f64 * total / f64::from(1 << 20);
        println!(
            "    {threads} threads {:8.1} µs per call ({:7.1} µs of processor) {:8.0} calls/s {:8.0} \
             MiB/s",
            seconds * 1e6 / f64::from(calls),
            processor * 1e6 / total,
            total / seconds,
            mebibytes / seconds
        );
    }
}

fn main() -> Result<()> {
    let (object, block, strip) = (ObjectId(1), BlockIndex(0), StripIndex(0));
    let key = StripKey { fs: FsId(1), object, block, strip };
    let header = StripHeader { version: Version::NONE, block_bytes: 1 << 20, lacks: 0 };
    let (checksums, stable) = (vec![0; 256], Version::NONE);
    let write = NsdRequest::Write { key, header, checksums, copy: false, stable };
    let read = NsdRequest::Read { key, version: None, offset: 0, length: 1 << 20 };
    let data = vec![1u8; 1 << 20];
    for (way, endpoint, credentials, introduction) in ways()? {
        let listener = Listener::bind(&endpoint)?;
        let (nothing, options) = (Arc::new(Nothing), ServerOptions::new(1));
        let server = serve_nsd(listener, NsdId(1), nothing, credentials, options)?;
        let (clock, waits) = (RealClock::shared(), Arc::new(()));
        let start = Instant::now();
        for _ in 0..100 {
            let limit = SessionLimits::NSD.connect;
            let service = Service::Nsd(NsdId(1));
            Connection::open(server.endpoint(), &introduction, service, limit)?;
        }
        println!("{way}: {:.2} ms per connection", start.elapsed().as_secs_f64() * 10.0);
        let env = SessionEnv { introduction, clock, waits, process: None, links: None };
        let endpoint = server.endpoint().clone();
        let session = NsdClientSession::new(endpoint, NsdId(1), SessionLimits::NSD, env);
        let rows: [(&str, &NsdRequest, &[u8], usize); 3] = [
            ("a small call", &NsdRequest::Status, &[], 0),
            ("read 1 MiB", &read, &[], 1 << 20),
            ("write 1 MiB", &write, &data, 0),
        ];
        for (name, request, send, receive) in rows {
            println!("  {name}");
            measure(&session, request, send, receive);
        }
    }
    Ok(())
}
