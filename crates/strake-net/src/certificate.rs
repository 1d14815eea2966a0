//! What a certificate of a cluster says, and the files that hold one.
//!
//! **Contents.** X.509, Ed25519. The identity is the one URI among the subject's alternative names:
//!
//! ```text
//! strake:CLUSTER:NAME:ROLES     node       strake:07…07:n1:quorum,server,client
//! strake:CLUSTER                authority  strake:07…07
//! ```
//!
//! CLUSTER are 32 hexadecimal digits. ROLES are in the order in which [`Roles`] shows them; another
//! order is no identity, so each identity has one text. The common name repeats the node's name for
//! people who look with `openssl x509 -text`; nothing reads it.
//!
//! The *extended key usage* says the same in the words of TLS: every node may prove itself to a
//! server (`clientAuth`), and only nodes with the role quorum or server may be connected to
//! (`serverAuth`). So a client's certificate cannot serve, by two independent checks.
//!
//! **Files** of a node, mode 0600: `node.key` (PKCS #8), `node.crt`, `ca.crt`, all PEM. The
//! authority's `ca.key` is only at nodes that issue certificates ([`crate::authority`]).

use crate::certificate_end::end_of;
use crate::detour::Detours;
use crate::private_file;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use sha2::{Digest, Sha256};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use strake_env::Clock;
use strake_proto::{ClusterId, Error, ErrorKind, NodeIdentity, NodeName, Result, Roles};

/// The files' names.
pub(crate) const NODE_KEY: &str = "node.key";
pub(crate) const NODE_CERTIFICATE: &str = "node.crt";
pub(crate) const AUTHORITY_CERTIFICATE: &str = "ca.crt";

/// Certificates of ours have about 500 bytes.
pub(crate) const CERTIFICATE_BYTES_MAX: usize = 4096;

/// How the frames of a connection are protected after its handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cipher {
    /// Head and message have a keyed code, the payload a CRC; all of it can be read on the way.
    #[default]
    AuthOnly,
    /// Message and payload are encrypted (AES-256-GCM). A server with this setting refuses
    /// `AuthOnly`.
    Tls,
}

impl fmt::Display for Cipher {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Cipher::AuthOnly => "AUTHONLY",
            Cipher::Tls => "TLS",
        })
    }
}

/// The SHA-256 of a certificate's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Fingerprint {
        Fingerprint(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

/// A node's identity as its certificate has it.
pub(crate) fn identity_uri(identity: &NodeIdentity) -> String {
    let NodeIdentity { cluster, name, roles } = identity;
    format!("strake:{cluster}:{name}:{roles}")
}

/// An authority's identity as its certificate has it.
pub(crate) fn authority_uri(cluster: ClusterId) -> String {
    format!("strake:{cluster}")
}

fn parse_cluster(digits: &str) -> Option<ClusterId> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if digits.len() != 32 || !digits.bytes().all(is_digit) {
        return None;
    }
    Some(ClusterId(u128::from_str_radix(digits, 16).ok()?.to_be_bytes()))
}

fn parse_identity(uri: &str) -> Option<NodeIdentity> {
    let mut parts = uri.strip_prefix("strake:")?.split(':');
    let cluster = parse_cluster(parts.next()?)?;
    let name: NodeName = parts.next()?.parse().ok()?;
    let roles: Roles = parts.next()?.parse().ok()?;
    let identity = NodeIdentity { cluster, name, roles };
    (identity_uri(&identity) == uri).then_some(identity)
}

/// The one URI that a certificate names. Whether the certificate is genuine is not looked at.
fn uri_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut uris = parsed.valid_uri_names();
    let uri = uris.next()?.to_owned();
    uris.next().is_none().then_some(uri)
}

/// Who a node's certificate says it is. Whether the certificate is genuine is not looked at.
pub(crate) fn identity_of(certificate: &CertificateDer<'_>) -> Result<NodeIdentity> {
    let identity = uri_of(certificate).and_then(|uri| parse_identity(&uri));
    identity.ok_or_else(|| {
        Error::new(ErrorKind::Access, "the certificate does not name a node of a Strake cluster")
    })
}

/// The cluster whose authority a certificate belongs to.
pub(crate) fn cluster_of(certificate: &CertificateDer<'_>) -> Result<ClusterId> {
    let uri = uri_of(certificate);
    let cluster = uri.as_deref().and_then(|uri| parse_cluster(uri.strip_prefix("strake:")?));
    cluster.ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, "the certificate is no authority of a Strake cluster")
    })
}

/// A node's certificate with its key, and the authority that it trusts.
pub struct NodeCredentials {
    identity: NodeIdentity,
    cipher: Cipher,
    pub(crate) key: PrivatePkcs8KeyDer<'static>,
    pub(crate) certificate: CertificateDer<'static>,
    pub(crate) authority: CertificateDer<'static>,
    pub(crate) clock: Arc<dyn Clock>,
    detours: Option<Arc<Detours>>,
}

impl fmt::Debug for NodeCredentials {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "NodeCredentials({}, {})", self.identity, self.cipher)
    }
}

impl NodeCredentials {
    pub(crate) fn new(
        key: PrivatePkcs8KeyDer<'static>,
        certificate: CertificateDer<'static>,
        authority: CertificateDer<'static>,
        clock: Arc<dyn Clock>,
    ) -> Result<NodeCredentials> {
        let identity = identity_of(&certificate)?;
        if cluster_of(&authority)? != identity.cluster {
            let detail = "the node's certificate is of another cluster than the authority's";
            return Err(Error::new(ErrorKind::Corrupt, detail));
        }
        let cipher = Cipher::default();
        let detours = None;
        Ok(NodeCredentials { identity, cipher, key, certificate, authority, clock, detours })
    }

    /// Reads what [`NodeCredentials::store`] wrote into `folder`.
    ///
    /// # Errors
    /// `NotFound` if this node has joined no cluster, `Access` if others may read the files,
    /// `Corrupt` if they are no certificates and key that belong together.
    pub fn load(folder: &Path, clock: Arc<dyn Clock>) -> Result<NodeCredentials> {
        let certificate = read_certificate(&folder.join(NODE_CERTIFICATE))?;
        let authority = read_certificate(&folder.join(AUTHORITY_CERTIFICATE))?;
        let path = folder.join(NODE_KEY);
        let key = PrivatePkcs8KeyDer::from_pem_slice(&private_file::read(&path)?)
            .map_err(|_| corrupt(&path, "no private key"))?;
        let credentials = NodeCredentials::new(key, certificate, authority, clock)?;
        // Finds a key that does not belong to the certificate now, and not at the first connection.
        crate::tls::certified_key(&credentials).map_err(|error| error.context(path.display()))?;
        Ok(credentials)
    }

    /// Writes key and certificates into `folder`, in files of mode 0600 that must not exist.
    ///
    /// # Errors
    /// `Exists`; the file system's.
    pub fn store(&self, folder: &Path) -> Result<()> {
        let key = pem("PRIVATE KEY", self.key.secret_pkcs8_der());
        private_file::create(&folder.join(NODE_KEY), key.as_bytes())?;
        store_certificate(&folder.join(AUTHORITY_CERTIFICATE), &self.authority)?;
        store_certificate(&folder.join(NODE_CERTIFICATE), &self.certificate)
    }

    /// From now on connections in the name of this node may go through other nodes.
    #[must_use]
    pub fn with_detours(mut self, detours: Arc<Detours>) -> NodeCredentials {
        self.detours = Some(detours);
        self
    }

    /// The detours that connections in the name of this node may take.
    pub fn detours(&self) -> Option<&Arc<Detours>> {
        self.detours.as_ref()
    }

    /// Protects frames in this way: the way that connections of this node ask for, and the least
    /// that it accepts as a server.
    #[must_use]
    pub fn with_cipher(mut self, cipher: Cipher) -> NodeCredentials {
        self.cipher = cipher;
        self
    }

    /// Who this node is.
    pub fn identity(&self) -> &NodeIdentity {
        &self.identity
    }

    /// The second since 1970 at which the node's certificate ends. `None` if it does not say.
    pub fn ends(&self) -> Option<i64> {
        end_of(&self.certificate)
    }

    /// How frames are protected.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// The fingerprint of the authority's certificate.
    pub fn authority_fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.authority)
    }
}

/// Writes a certificate where there is none, or where the same one stands.
pub(crate) fn store_certificate(path: &Path, certificate: &CertificateDer<'_>) -> Result<()> {
    match private_file::create(path, pem("CERTIFICATE", certificate).as_bytes()) {
        Err(error) if error.kind() == ErrorKind::Exists => {
            let is_same = read_certificate(path).is_ok_and(|stored| stored == *certificate);
            if is_same { Ok(()) } else { Err(error) }
        }
        stored => stored,
    }
}

pub(crate) fn read_certificate(path: &Path) -> Result<CertificateDer<'static>> {
    let certificate = CertificateDer::from_pem_slice(&private_file::read(path)?);
    certificate.map_err(|_| corrupt(path, "no certificate"))
}

pub(crate) fn corrupt(path: &Path, holds: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{} holds {holds}", path.display()))
}

/// The text form of a key or certificate (RFC 7468): base64 in lines of 64 characters.
pub(crate) fn pem(label: &str, bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = format!("-----BEGIN {label}-----\n");
    for line in bytes.chunks(48) {
        for three in line.chunks(3) {
            let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
            let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
            for digit in 0..4 {
                let is_padding = digit > three.len();
                let index = (bits >> (18 - 6 * digit) & 63) as usize;
                text.push(if is_padding { '=' } else { char::from(DIGITS[index]) });
            }
        }
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}

#[cfg(test)]
#[path = "certificate_test.rs"]
mod certificate_test;
