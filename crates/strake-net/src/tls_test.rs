//! The handshake between two threads, with somebody in between who changes what is sent.

use super::*;
use crate::cluster_test::{TestCluster, name};
use strake_env::Rng;
use strake_env::net::UnixStream;
use strake_env::stream::Stream;
use strake_proto::Role;

/// Changes one bit of what is written, at this byte, if any.
struct Meddler {
    stream: Stream,
    /// What was to be written.
    written: Vec<u8>,
    at: Option<usize>,
    bit: u32,
}

impl Meddler {
    fn new(stream: UnixStream, at: Option<usize>, bit: u32) -> Meddler {
        let stream = Stream::Unix(stream);
        // Lengths that were changed make both ends wait.
        let limit = Some(Duration::from_secs(2));
        stream.set_limits(limit, limit).expect("limits");
        Meddler { stream, written: Vec::new(), at, bit }
    }
}

impl Read for Meddler {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.read(bytes)
    }
}

impl Write for Meddler {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut changed = bytes.to_vec();
        if let Some(at) = self.at.and_then(|at| at.checked_sub(self.written.len()))
            && let Some(byte) = changed.get_mut(at)
        {
            *byte ^= 1 << self.bit;
        }
        self.stream.write_all(&changed)?;
        self.written.extend_from_slice(bytes);
        Ok(changed.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What both ends say after a handshake in which the meddlers took part. Each end that is content
/// says something that the other must understand.
fn meet(
    client: &mut Meddler,
    server: &mut Meddler,
    expected: &Expected<'_>,
    acceptance: &Acceptance,
) -> (Result<Option<NodeIdentity>>, Result<Option<NodeIdentity>>) {
    use crate::frame::{FrameKind, FrameLimits, read_frame, write_frame};
    let converse = |stream: &mut Meddler, secured: Result<Secured>| {
        let result = secured.and_then(|mut secured| {
            write_frame(stream, &mut secured.sending, FrameKind::Hello, 0, b"hello", &[])?;
            let mut buffer = |bytes| vec![0; bytes];
            read_frame(stream, &mut secured.receiving, FrameLimits::HELLO, &mut buffer)?
                .ok_or(ErrorKind::Unreachable)?;
            Ok(secured.peer)
        });
        if result.is_err() {
            stream.stream.shutdown();
        }
        result
    };
    strake_env::thread::scope(|scope| {
        let of_server = scope.spawn(|| {
            let secured = acceptance.accept(server);
            converse(server, secured)
        });
        let secured = connect(client, expected);
        let of_client = converse(client, secured);
        (of_client, of_server.join().expect("no panic"))
    })
}

#[test]
fn no_changed_handshake_leads_to_a_session_or_panics() {
    let cluster = TestCluster::new(1);
    let own = cluster.node("c1", &[Role::Client], Cipher::AuthOnly);
    let server = cluster.node("n1", &[Role::Server], Cipher::AuthOnly);
    let acceptance = Acceptance::new(&server).expect("a server");
    let n1 = name("n1");
    let expected = Expected::Node(&own, &n1);
    let run = |by_client: Option<usize>, by_server: Option<usize>, bit: u32| {
        let (near, far) = UnixStream::pair().expect("a pair");
        let mut client = Meddler::new(near, by_client, bit);
        let mut far = Meddler::new(far, by_server, bit);
        let results = meet(&mut client, &mut far, &expected, &acceptance);
        (results, client.written.len(), far.written.len(), versions_in(&client, &far))
    };
    let ((of_client, of_server), by_client, by_server, versions) = run(None, None, 0);
    assert_eq!(of_client.expect("a session"), Some(server.identity().clone()));
    assert_eq!(of_server.expect("a session"), Some(own.identity().clone()));
    for seed in strake_env::rng::test_seeds(0, 150) {
        let mut rng = Rng::new(seed);
        let bit = rng.below(8) as u32;
        let (client_at, server_at) = match rng.one_in(2) {
            true => (Some(rng.index(by_client)), None),
            false => (None, Some(rng.index(by_server))),
        };
        let ((of_client, of_server), ..) = run(client_at, server_at, bit);
        let went_through = of_client.is_ok() && of_server.is_ok();
        assert!(
            !went_through || versions.contains(&(client_at, server_at)),
            "seed {seed}: bit {bit} of {client_at:?} {server_at:?}"
        );
    }
}

/// The places of the second byte of each record's version, which has no meaning in TLS 1.3 and must
/// be ignored (RFC 8446, 5.1): the one change that may pass.
fn versions_in(client: &Meddler, server: &Meddler) -> Vec<(Option<usize>, Option<usize>)> {
    let places = |written: &[u8]| {
        let (mut places, mut at) = (Vec::new(), 0);
        // Our first frame ends the records.
        while at + RECORD_HEAD_BYTES < written.len() && !written[at..].starts_with(b"SRPC") {
            places.push(at + 2);
            let length = u16::from_be_bytes([written[at + 3], written[at + 4]]);
            at += RECORD_HEAD_BYTES + usize::from(length);
        }
        places
    };
    let by_client = places(&client.written).into_iter().map(|at| (Some(at), None));
    by_client.chain(places(&server.written).into_iter().map(|at| (None, Some(at)))).collect()
}

#[test]
fn a_client_without_a_certificate_is_refused_and_told_so() {
    let cluster = TestCluster::new(1);
    let server = cluster.node("n1", &[Role::Server], Cipher::AuthOnly);
    let acceptance = Acceptance::new(&server).expect("a server");
    let (near, far) = UnixStream::pair().expect("a pair");
    let (mut client, mut far) = (Meddler::new(near, None, 0), Meddler::new(far, None, 0));
    // It asks for what only nodes get, and has nothing to show.
    let expected = Expected::Cluster(server.authority_fingerprint(), cluster.clock());
    let mut config = client_config(&expected).expect("a config");
    config.alpn_protocols = vec![AUTH_ONLY.to_vec()];
    let server_name = ServerName::try_from("strake").expect("a name");
    let tls = ClientConnection::new(Arc::new(config), server_name).expect("a client");
    let mut tls = rustls::Connection::Client(tls);
    strake_env::thread::scope(|scope| {
        let of_server = scope.spawn(|| acceptance.accept(&mut far).err().expect("refused"));
        finish(&mut tls, &mut client).expect("its half is over before the server looks");
        let error = of_server.join().expect("no panic");
        assert_eq!(error.kind(), ErrorKind::Access, "{error}");
        assert!(error.to_string().contains("no certificate"), "{error}");
        let mut secured = secure(tls, None, "server", "client").expect("keys");
        let mut word = vec![0; 64];
        let length = client.read(&mut word).expect("a word");
        let told = secured.last_word(&word[..length]).expect("a word of TLS");
        assert_eq!(told.kind(), ErrorKind::Access, "{told}");
        assert!(told.to_string().contains("CertificateRequired"), "{told}");
    });
}

#[test]
fn an_older_tls_and_a_foreign_protocol_are_refused() {
    let cluster = TestCluster::new(1);
    let own = cluster.node("c1", &[Role::Client], Cipher::AuthOnly);
    let server = cluster.node("n1", &[Role::Server], Cipher::AuthOnly);
    let acceptance = Acceptance::new(&server).expect("a server");
    let n1 = name("n1");
    for protocols in [vec![], vec![b"h2".to_vec()], vec![b"strake authonly 2".to_vec()]] {
        let (near, far) = UnixStream::pair().expect("a pair");
        let (mut client, mut far) = (Meddler::new(near, None, 0), Meddler::new(far, None, 0));
        let mut config = client_config(&Expected::Node(&own, &n1)).expect("a config");
        config.alpn_protocols = protocols;
        let server_name = ServerName::try_from("strake").expect("a name");
        let tls = ClientConnection::new(Arc::new(config), server_name).expect("a client");
        let mut tls = rustls::Connection::Client(tls);
        strake_env::thread::scope(|scope| {
            let of_server = scope.spawn(|| acceptance.accept(&mut far).err());
            let of_client = finish(&mut tls, &mut client).err();
            client.stream.shutdown();
            let of_server = of_server.join().expect("no panic").expect("refused");
            assert_eq!(of_server.kind(), ErrorKind::Access, "{of_server} {of_client:?}");
        });
    }
}

#[test]
fn what_a_genuine_certificate_may_do_depends_on_each_thing_that_it_says() {
    use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let cluster = TestCluster::new(1);
    let own = cluster.node("c1", &[Role::Client], Cipher::AuthOnly);
    let roots = || roots_of(&own.authority).expect("an authority");
    let id = own.identity().cluster;
    let whom = Whom::Node { roots: roots(), cluster: id, name: name("n1") };
    let by_client = ServerCheck { whom, algorithms: algorithms() };
    let by_joiner =
        ServerCheck { whom: Whom::Cluster(own.authority_fingerprint()), algorithms: algorithms() };
    let by_server = ClientCheck { roots: roots(), cluster: id, algorithms: algorithms() };
    let now = rustls::time_provider::TimeProvider::current_time(&*calendar(&cluster.clock()));
    let now = now.expect("a time");
    let judge = |certificate: &CertificateDer<'_>| {
        let name = ServerName::try_from("strake").expect("a name");
        let sent = [own.authority.clone()];
        [
            by_client.verify_server_cert(certificate, &sent, &name, &[], now).is_ok(),
            by_joiner.verify_server_cert(certificate, &sent, &name, &[], now).is_ok(),
            by_server.verify_client_cert(certificate, &sent, now).is_ok(),
        ]
    };
    let (n1, n2) = (format!("strake:{id}:n1:server"), format!("strake:{id}:n2:server"));
    let client = format!("strake:{id}:n1:client");
    let foreign = format!("strake:{}:n1:server", "9".repeat(32));
    let authority = format!("strake:{id}");
    let both = [ClientAuth, ServerAuth];
    for (uris, usages, expected) in [
        (vec![&*n1], &both[..], [true, true, true]),
        (vec![&*n2], &both[..], [false, true, true]),
        // Each of the two checks refuses a client's certificate by itself.
        (vec![&*client], &both[..], [false, false, true]),
        (vec![&*n1], &both[..1], [false, false, true]),
        (vec![&*n1], &both[1..], [true, true, false]),
        (vec![&*foreign], &both[..], [false, false, false]),
        (vec![&*authority], &both[..], [false, false, false]),
        (vec![], &both[..], [false, false, false]),
        (vec![&*n1, &*n2], &both[..], [false, false, false]),
    ] {
        let certificate = cluster.authority.sign_anything(&uris, usages);
        assert_eq!(judge(&certificate), expected, "{uris:?} {usages:?}");
    }
    // The same words under the signature of another authority.
    let other = TestCluster::new(1).authority.sign_anything(&[&n1], &both);
    assert_eq!(judge(&other), [false, false, false]);
}
