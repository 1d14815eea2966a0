//! The TLS 1.3 handshake by which nodes of a cluster prove themselves to each other.
//!
//! Only the handshake is TLS: `rustls` is fed its records one by one, so that not a byte behind the
//! last record is read, and afterwards the stream carries frames of ours (`frame.rs`) under keys
//! that both ends export from the handshake (RFC 8446, 7.5):
//!
//! ```text
//! export(label "EXPERIMENTAL strake frames", context "AUTHONLY to server"), 32 bytes
//! export(label "EXPERIMENTAL strake frames", context "AUTHONLY to client"), 32 bytes
//! ```
//!
//! and the same with `TLS` in the place of `AUTHONLY`. Which of the two it is, and whether the
//! client is a node or wants to become one, is agreed as the application protocol (ALPN): the
//! client offers exactly one of `strake authonly`, `strake tls` and `strake join`. So nobody on the
//! way can choose for them.
//!
//! There is one version of TLS, no ticket, no resumption and no early data: each connection
//! proves everything anew.
//!
//! **Whom the client accepts**: a certificate that its cluster's authority signed, that may serve,
//! and that names the node that it expects. It looks before it sends its own certificate.
//! **Whom the server accepts**: a certificate that the same authority signed. Only a client that
//! wants to join has none; it gets nothing but the service of joining ([`crate::joining`]).

use crate::certificate::{Cipher, Fingerprint, NodeCredentials, cluster_of, identity_of};
use crate::seal::Seal;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{Accepted, Acceptor, NoServerSessionStorage, ParsedCertificate};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct,
    DistinguishedName, OtherError, RootCertStore, ServerConfig, SignatureScheme,
};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;
use strake_env::Clock;
use strake_proto::{ClusterId, Error, ErrorKind, NodeIdentity, NodeName, Result};

const LABEL: &[u8] = b"EXPERIMENTAL strake frames";
const AUTH_ONLY: &[u8] = b"strake authonly";
const ENCRYPTED: &[u8] = b"strake tls";
const JOINING: &[u8] = b"strake join";
/// Of a record: type, version, length.
const RECORD_HEAD_BYTES: usize = 5;
/// Of a record's contents (RFC 8446, 5.2).
const RECORD_BYTES_MAX: usize = (1 << 14) + 256;
/// A handshake of ours has fewer than ten.
const RECORDS_MAX: usize = 64;

/// What a handshake leads to.
pub(crate) struct Secured {
    pub(crate) sending: Seal,
    pub(crate) receiving: Seal,
    /// The peer; `None` if it wants to become a node.
    pub(crate) peer: Option<NodeIdentity>,
    /// To understand what the peer says if it ends the handshake after us.
    tls: rustls::Connection,
}

/// Whom an end that connects expects.
pub(crate) enum Expected<'a> {
    /// This node of its own cluster.
    Node(&'a NodeCredentials, &'a NodeName),
    /// Any node that serves, of the cluster whose authority has this fingerprint. This end has no
    /// certificate yet.
    Cluster(Fingerprint, Arc<dyn Clock>),
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    rustls::crypto::ring::default_provider().signature_verification_algorithms
}

/// The time by which certificates are judged.
struct Calendar(Arc<dyn Clock>);

impl std::fmt::Debug for Calendar {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Calendar")
    }
}

impl rustls::time_provider::TimeProvider for Calendar {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.wall().seconds).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

fn calendar(clock: &Arc<dyn Clock>) -> Arc<Calendar> {
    Arc::new(Calendar(Arc::clone(clock)))
}

fn internal(error: &rustls::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("cannot set up TLS: {error}"))
}

/// A node's certificate with its key.
///
/// # Errors
/// `Corrupt` if the two do not belong together.
pub(crate) fn certified_key(node: &NodeCredentials) -> Result<CertifiedKey> {
    let key = PrivateKeyDer::Pkcs8(node.key.clone_key());
    // The authority goes along for those who know only its fingerprint.
    let chain = vec![node.certificate.clone(), node.authority.clone()];
    CertifiedKey::from_der(chain, key, &provider()).map_err(|error| {
        let detail = format!("the key does not belong to the node's certificate: {error}");
        Error::new(ErrorKind::Corrupt, detail)
    })
}

fn roots_of(authority: &CertificateDer<'_>) -> std::result::Result<RootCertStore, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone().into_owned())?;
    Ok(roots)
}

/// Checks that a node's own certificate is one that its authority signed.
///
/// # Errors
/// `Corrupt` if it is not.
pub(crate) fn check_chain(node: &NodeCredentials) -> Result<()> {
    let cluster = node.identity().cluster;
    let now = Calendar(Arc::clone(&node.clock));
    let now = rustls::time_provider::TimeProvider::current_time(&now);
    let check = roots_of(&node.authority).and_then(|roots| {
        let check = ClientCheck { roots, cluster, algorithms: algorithms() };
        let now = now.ok_or(rustls::Error::FailedToGetCurrentTime)?;
        check.verify_client_cert(&node.certificate, &[], now)
    });
    check.map(|_| ()).map_err(|error| {
        let detail =
            format!("key and certificate of the authority do not belong together: {error}");
        Error::new(ErrorKind::Corrupt, detail)
    })
}

/// Refuses a certificate for a reason of ours.
fn refusal(error: Error) -> rustls::Error {
    CertificateError::Other(OtherError(Arc::new(error))).into()
}

/// Checks that a certificate names a node of this cluster.
fn identity_in(
    certificate: &CertificateDer<'_>,
    cluster: ClusterId,
) -> std::result::Result<NodeIdentity, rustls::Error> {
    let identity = identity_of(certificate).map_err(refusal)?;
    if identity.cluster != cluster {
        let detail = format!("{identity} is of another cluster");
        return Err(refusal(Error::new(ErrorKind::Access, detail)));
    }
    Ok(identity)
}

/// How a client judges servers.
#[derive(Debug)]
struct ServerCheck {
    whom: Whom,
    algorithms: WebPkiSupportedAlgorithms,
}

#[derive(Debug)]
enum Whom {
    Node { roots: RootCertStore, cluster: ClusterId, name: NodeName },
    Cluster(Fingerprint),
}

impl ServerCertVerifier for ServerCheck {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let of_fingerprint;
        let (roots, cluster) = match &self.whom {
            Whom::Node { roots, cluster, .. } => (roots, *cluster),
            Whom::Cluster(fingerprint) => {
                let mut sent = intermediates.iter();
                let authority = sent.find(|sent| Fingerprint::of(sent) == *fingerprint);
                let authority = authority.ok_or(CertificateError::UnknownIssuer)?;
                of_fingerprint = roots_of(authority)?;
                (&of_fingerprint, cluster_of(authority).map_err(refusal)?)
            }
        };
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            roots,
            &[],
            now,
            self.algorithms.all,
        )?;
        let identity = identity_in(end_entity, cluster)?;
        if !identity.roles.may_serve() {
            let detail = format!("{identity} may not serve");
            return Err(refusal(Error::new(ErrorKind::Access, detail)));
        }
        if let Whom::Node { name, .. } = &self.whom
            && identity.name != *name
        {
            let detail = format!("this is {identity}, not node {name}: is the address right?");
            return Err(refusal(Error::new(ErrorKind::Access, detail)));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::Tls13RequiredForQuic.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// How a server judges clients.
#[derive(Debug)]
struct ClientCheck {
    roots: RootCertStore,
    cluster: ClusterId,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for ClientCheck {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> std::result::Result<ClientCertVerified, rustls::Error> {
        // The authority signs nodes and no further authorities, so what was sent beside the
        // certificate is of no use.
        let certificate = webpki::EndEntityCert::try_from(end_entity)
            .map_err(|_| CertificateError::BadEncoding)?;
        let checked = certificate.verify_for_usage(
            self.algorithms.all,
            &self.roots.roots,
            &[],
            now,
            webpki::KeyUsage::client_auth(),
            None,
            None,
        );
        checked.map_err(|error| match error {
            webpki::Error::CertExpired { .. } => CertificateError::Expired,
            webpki::Error::CertNotValidYet { .. } => CertificateError::NotValidYet,
            webpki::Error::UnknownIssuer | webpki::Error::InvalidSignatureForPublicKey => {
                CertificateError::UnknownIssuer
            }
            error => CertificateError::Other(OtherError(Arc::new(error))),
        })?;
        identity_in(end_entity, self.cluster)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::Tls13RequiredForQuic.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn client_config(expected: &Expected<'_>) -> Result<ClientConfig> {
    let clock = match expected {
        Expected::Node(own, _) => &own.clock,
        Expected::Cluster(_, clock) => clock,
    };
    let whom = match expected {
        Expected::Node(own, name) => Whom::Node {
            roots: roots_of(&own.authority).map_err(|error| internal(&error))?,
            cluster: own.identity().cluster,
            name: (*name).clone(),
        },
        Expected::Cluster(fingerprint, _) => Whom::Cluster(*fingerprint),
    };
    let check = Arc::new(ServerCheck { whom, algorithms: algorithms() });
    let builder = ClientConfig::builder_with_details(provider(), calendar(clock))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| internal(&error))?
        .dangerous()
        .with_custom_certificate_verifier(check);
    let (mut config, protocol) = match expected {
        Expected::Node(own, _) => {
            let key = Arc::new(SingleCertAndKey::from(certified_key(own)?));
            let protocol = match own.cipher() {
                Cipher::AuthOnly => AUTH_ONLY,
                Cipher::Tls => ENCRYPTED,
            };
            (builder.with_client_cert_resolver(key), protocol)
        }
        Expected::Cluster(..) => (builder.with_no_client_auth(), JOINING),
    };
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(config)
}

/// What a server needs for its handshakes; made once.
pub(crate) struct Acceptance {
    nodes: Arc<ServerConfig>,
    joiners: Arc<ServerConfig>,
}

impl Acceptance {
    pub(crate) fn new(own: &NodeCredentials) -> Result<Acceptance> {
        let key = Arc::new(SingleCertAndKey::from(certified_key(own)?));
        let builder = || {
            ServerConfig::builder_with_details(provider(), calendar(&own.clock))
                .with_protocol_versions(&[&rustls::version::TLS13])
                .map_err(|error| internal(&error))
        };
        let finish = |mut config: ServerConfig, protocols: &[&[u8]]| {
            config.send_tls13_tickets = 0;
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            Arc::new(config)
        };
        let roots = roots_of(&own.authority).map_err(|error| internal(&error))?;
        let cluster = own.identity().cluster;
        let check = Arc::new(ClientCheck { roots, cluster, algorithms: algorithms() });
        let nodes =
            builder()?
                .with_client_cert_verifier(check)
                .with_cert_resolver(Arc::<SingleCertAndKey>::clone(&key));
        let accepted: &[&[u8]] = match own.cipher() {
            Cipher::AuthOnly => &[AUTH_ONLY, ENCRYPTED],
            Cipher::Tls => &[ENCRYPTED],
        };
        let joiners = builder()?.with_no_client_auth().with_cert_resolver(key);
        Ok(Acceptance { nodes: finish(nodes, accepted), joiners: finish(joiners, &[JOINING]) })
    }

    /// The server's half of the handshake.
    ///
    /// # Errors
    /// `Access` if the client proves nothing that is accepted here, `Corrupt` if it speaks no TLS,
    /// the stream's.
    pub(crate) fn accept(&self, stream: &mut (impl Read + Write)) -> Result<Secured> {
        let accepted = hear_hello(stream)?;
        let wants_to_join = {
            let hello = accepted.client_hello();
            hello.alpn().is_some_and(|mut offered| offered.any(|protocol| protocol == JOINING))
        };
        let config = if wants_to_join { &self.joiners } else { &self.nodes };
        let connection = accepted.into_connection(Arc::clone(config));
        let connection = connection.map_err(|(error, mut alert)| {
            let _ = alert.write_all(stream);
            explain(&error)
        })?;
        let mut tls = rustls::Connection::Server(connection);
        finish(&mut tls, stream)?;
        let peer = match wants_to_join {
            true => None,
            false => {
                let certificate = tls.peer_certificates().and_then(<[_]>::first);
                Some(identity_of(certificate.expect("invariant: clients must have certificates"))?)
            }
        };
        secure(tls, peer, "client", "server")
    }
}

fn hear_hello(stream: &mut (impl Read + Write)) -> Result<Accepted> {
    let mut acceptor = Acceptor::default();
    for _ in 0..RECORDS_MAX {
        let record = read_record(stream)?;
        feed(&record, &mut |rest| acceptor.read_tls(rest))?;
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok(accepted),
            Ok(None) => {}
            Err((error, mut alert)) => {
                let _ = alert.write_all(stream);
                return Err(explain(&error));
            }
        }
    }
    Err(Error::new(ErrorKind::Corrupt, "a handshake without end"))
}

/// The client's half of the handshake.
///
/// # Errors
/// `Access` if the server is not the expected one, or refuses this end; `Corrupt` if it speaks no
/// TLS; the stream's.
pub(crate) fn connect(
    stream: &mut (impl Read + Write),
    expected: &Expected<'_>,
) -> Result<Secured> {
    let config = Arc::new(client_config(expected)?);
    let name = ServerName::try_from("strake").expect("invariant: a name");
    let tls = ClientConnection::new(config, name).map_err(|error| internal(&error))?;
    let mut tls = rustls::Connection::Client(tls);
    finish(&mut tls, stream)?;
    let peer = match expected {
        Expected::Node(..) => {
            let certificate = tls.peer_certificates().and_then(<[_]>::first);
            Some(identity_of(certificate.expect("invariant: servers have certificates"))?)
        }
        Expected::Cluster(..) => None,
    };
    secure(tls, peer, "server", "client")
}

/// Sends and receives records until the handshake is over on this side.
fn finish(tls: &mut rustls::Connection, stream: &mut (impl Read + Write)) -> Result<()> {
    for _ in 0..RECORDS_MAX {
        while tls.wants_write() {
            tls.write_tls(stream)?;
        }
        if !tls.is_handshaking() {
            stream.flush()?;
            return Ok(());
        }
        let record = read_record(stream)?;
        feed(&record, &mut |rest| tls.read_tls(rest))?;
        if let Err(error) = tls.process_new_packets() {
            // The peer learns why, if it still listens.
            while tls.wants_write() && tls.write_tls(stream).is_ok() {}
            return Err(explain(&error));
        }
    }
    Err(Error::new(ErrorKind::Corrupt, "a handshake without end"))
}

/// Takes the keys of both directions out of a finished handshake.
fn secure(
    tls: rustls::Connection,
    peer: Option<NodeIdentity>,
    to: &str,
    from: &str,
) -> Result<Secured> {
    let cipher = match tls.alpn_protocol() {
        Some(AUTH_ONLY) => Cipher::AuthOnly,
        // A token's secret travels on it.
        Some(ENCRYPTED | JOINING) => Cipher::Tls,
        _ => return Err(Error::new(ErrorKind::Access, "the peer names no protocol of ours")),
    };
    let seal = |receiver: &str| -> Result<Seal> {
        let context = format!("{cipher} to {receiver}");
        let key = tls.export_keying_material([0; 32], LABEL, Some(context.as_bytes()));
        let key = key.map_err(|error| internal(&error))?;
        Ok(match cipher {
            Cipher::AuthOnly => Seal::new(&key),
            Cipher::Tls => Seal::encrypting(&key),
        })
    };
    Ok(Secured { sending: seal(to)?, receiving: seal(from)?, peer, tls })
}

impl Secured {
    /// What the peer meant by `bytes`, which it sent where a frame was expected: it may have ended
    /// the handshake after this side had finished it. `None` if it is no word of TLS.
    pub(crate) fn last_word(&mut self, bytes: &[u8]) -> Option<Error> {
        let mut rest = bytes;
        let record = read_record(&mut rest).ok()?;
        feed(&record, &mut |rest| self.tls.read_tls(rest)).ok()?;
        self.tls.process_new_packets().err().map(|error| explain(&error))
    }
}

/// Hands a whole record to the library, which takes nothing more after the peer's farewell.
fn feed(record: &[u8], read: &mut dyn FnMut(&mut &[u8]) -> io::Result<usize>) -> Result<()> {
    let mut rest = record;
    while !rest.is_empty() {
        if read(&mut rest)? == 0 {
            let detail = "the peer ended the handshake";
            return Err(Error::new(ErrorKind::Unreachable, detail));
        }
    }
    Ok(())
}

/// Reads one record of TLS, head and all, and not a byte more.
fn read_record(stream: &mut impl Read) -> Result<Vec<u8>> {
    let mut head = [0; RECORD_HEAD_BYTES];
    read_exact(stream, &mut head)?;
    let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
    if head.starts_with(b"SRPC") {
        let detail = "the peer wants to prove a shared secret, and this end wants certificates";
        return Err(Error::new(ErrorKind::Access, detail));
    }
    // Change cipher spec, alert, handshake, application data; the version is 3.1 or 3.3.
    if !(20..=23).contains(&head[0]) || head[1] != 3 || length > RECORD_BYTES_MAX {
        return Err(Error::new(ErrorKind::Corrupt, "the peer does not speak TLS"));
    }
    let mut record = vec![0; RECORD_HEAD_BYTES + length];
    record[..RECORD_HEAD_BYTES].copy_from_slice(&head);
    read_exact(stream, &mut record[RECORD_HEAD_BYTES..])?;
    Ok(record)
}

fn read_exact(stream: &mut impl Read, bytes: &mut [u8]) -> Result<()> {
    stream.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::new(ErrorKind::Unreachable, "the peer closed the connection in the handshake")
        }
        _ => error.into(),
    })
}

/// An error of the handshake in the words of this program.
fn explain(error: &rustls::Error) -> Error {
    use rustls::Error as Tls;
    let (kind, detail) = match error {
        Tls::InvalidCertificate(error) => return explain_certificate(error),
        Tls::NoCertificatesPresented => {
            (ErrorKind::Access, "the peer has no certificate".to_owned())
        }
        Tls::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            let detail = "the server accepts only encrypted connections: set cipher=TLS here too";
            (ErrorKind::Access, detail.to_owned())
        }
        Tls::NoApplicationProtocol => {
            let detail = "the peer asks for less protection than this node accepts (cipher=TLS)";
            (ErrorKind::Access, detail.to_owned())
        }
        Tls::AlertReceived(alert) => {
            let detail = format!("the peer refuses this node ({alert:?}): its log says why");
            (ErrorKind::Access, detail)
        }
        Tls::PeerIncompatible(why) => {
            (ErrorKind::NotSupported, format!("the peer speaks another TLS than 1.3: {why:?}"))
        }
        _ => (ErrorKind::Corrupt, format!("the TLS handshake failed: {error}")),
    };
    Error::new(kind, detail)
}

fn explain_certificate(error: &CertificateError) -> Error {
    use CertificateError as Bad;
    let detail = match error {
        Bad::Other(OtherError(reason)) => match reason.downcast_ref::<Error>() {
            Some(ours) => return ours.clone(),
            None => format!("the peer's certificate is not accepted: {reason}"),
        },
        Bad::Expired | Bad::ExpiredContext { .. } => {
            "the peer's certificate has expired: check the clocks, or let it join again".to_owned()
        }
        Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
            "the peer's certificate is not valid yet: check the clocks of both machines".to_owned()
        }
        Bad::UnknownIssuer | Bad::BadSignature => {
            "the peer's certificate is of another cluster".to_owned()
        }
        Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. } => {
            "the peer has a client's certificate, which may not serve".to_owned()
        }
        error => format!("the peer's certificate is not accepted: {error}"),
    };
    Error::new(ErrorKind::Access, detail)
}

#[cfg(test)]
#[path = "tls_test.rs"]
mod tls_test;
