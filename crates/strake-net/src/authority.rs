//! The authority of a cluster: a key whose signature makes a certificate one of this cluster.
//!
//! It is made with the cluster, and lies at the nodes that issue certificates, in `ca.key` and
//! `ca.crt` (PEM, mode 0600; the key is of the form PKCS #8). Anybody with the key can make any
//! node of the cluster. Each node of the quorum gets a copy ([`AuthorityCopy`]), so the key
//! outlives the node that made it. If all copies are lost, no more nodes can join, and nothing else
//! is lost.
//!
//! **How long certificates live.** The authority's 30 years, a node's 10. A file system must not
//! stop on a date that nobody remembers, and nobody looks at certificates of machines that run. A
//! certificate that must end sooner is one of a node that was taken out of the cluster. Whether a
//! node is still a member is asked of the cluster's records at every connection
//! ([`crate::credentials::Members`]), not of a date.
//! Both begin a day early, because the clocks of machines that join differ.

use crate::certificate::{
    AUTHORITY_CERTIFICATE, Fingerprint, NodeCredentials, authority_uri, cluster_of, identity_uri,
    pem, read_certificate, store_certificate,
};
use crate::private_file;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519, PublicKeyData, SanType, SerialNumber,
    SignatureAlgorithm,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use strake_env::Clock;
use strake_proto::{ClusterId, Error, ErrorKind, NodeIdentity, Result};

const AUTHORITY_KEY: &str = "ca.key";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const AUTHORITY_YEARS: u32 = 30;
const NODE_YEARS: u32 = 10;

/// A cluster's authority, with its key.
pub struct ClusterAuthority {
    cluster: ClusterId,
    key: KeyPair,
    certificate: CertificateDer<'static>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for ClusterAuthority {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "ClusterAuthority({})", self.cluster)
    }
}

/// An authority on its way to another node that is to issue certificates: the contents of its two
/// files. It goes over encrypted connections only ([`Cipher::Tls`](crate::Cipher::Tls)).
#[derive(Serialize, Deserialize)]
pub struct AuthorityCopy {
    pub(crate) key: String,
    pub(crate) certificate: String,
}

/// An Ed25519 public key.
pub(crate) struct PublicKey(pub(crate) [u8; 32]);

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ED25519
    }
}

/// An error of the library that makes certificates.
pub(crate) fn failed(what: &str, error: &rcgen::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("cannot make {what}: {error}"))
}

/// What the certificate of an authority says.
fn authority_params(cluster: ClusterId) -> Result<CertificateParams> {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name("Strake cluster authority");
    params.subject_alt_names = vec![uri(&authority_uri(cluster))?];
    // It signs nodes, and no further authorities.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(params)
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn uri(text: &str) -> Result<SanType> {
    let text = text.try_into().map_err(|error| failed("a name", &error))?;
    Ok(SanType::URI(text))
}

impl ClusterAuthority {
    /// The authority of a new cluster.
    ///
    /// # Errors
    /// When the operating system gives no random bytes.
    pub fn create(cluster: ClusterId, clock: Arc<dyn Clock>) -> Result<ClusterAuthority> {
        let key = new_key()?;
        let mut params = authority_params(cluster)?;
        set_life(&mut params, &*clock, AUTHORITY_YEARS)?;
        let certificate =
            params.self_signed(&key).map_err(|error| failed("the authority", &error))?.into();
        Ok(ClusterAuthority { cluster, key, certificate, clock })
    }

    /// Writes the authority into `folder`, in files of mode 0600. A folder that has the key has the
    /// certificate too.
    ///
    /// # Errors
    /// `Exists` if the certificate of another one is there; the file system's.
    pub fn store(&self, folder: &Path) -> Result<()> {
        store_certificate(&folder.join(AUTHORITY_CERTIFICATE), &self.certificate)?;
        let key = pem("PRIVATE KEY", self.key.serialized_der());
        private_file::replace(&folder.join(AUTHORITY_KEY), key.as_bytes())
    }

    /// Reads what [`ClusterAuthority::store`] wrote.
    ///
    /// # Errors
    /// `NotFound` if the authority is not at this node, `Access` if others may read its files,
    /// `Corrupt` if they are no authority.
    pub fn load(folder: &Path, clock: Arc<dyn Clock>) -> Result<ClusterAuthority> {
        let path = folder.join(AUTHORITY_KEY);
        let key = private_file::read(&path)?;
        let certificate = read_certificate(&folder.join(AUTHORITY_CERTIFICATE))?;
        let authority = ClusterAuthority::of(&key, certificate, clock);
        authority.map_err(|error| error.context(path.display()))
    }

    /// The authority of a key in PEM and its certificate.
    fn of(
        key: &[u8],
        certificate: CertificateDer<'static>,
        clock: Arc<dyn Clock>,
    ) -> Result<ClusterAuthority> {
        let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, what);
        let bytes = PrivatePkcs8KeyDer::from_pem_slice(key)
            .map_err(|_| corrupt("this is no private key"))?;
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&bytes, &PKCS_ED25519)
            .map_err(|_| corrupt("this is no private key of an authority"))?;
        let cluster = cluster_of(&certificate)?;
        let authority = ClusterAuthority { cluster, key, certificate, clock };
        // Finds a key that does not belong to the certificate: nobody would accept its signatures.
        let trial: NodeIdentity =
            NodeIdentity { cluster, name: "trial".parse()?, roles: strake_proto::Roles::ALL };
        crate::tls::check_chain(&authority.issue(&trial)?)?;
        Ok(authority)
    }

    /// The authority for another node that is to issue certificates.
    pub fn copy(&self) -> AuthorityCopy {
        AuthorityCopy {
            key: pem("PRIVATE KEY", self.key.serialized_der()),
            certificate: pem("CERTIFICATE", &self.certificate),
        }
    }

    /// The authority that another node has sent to the node `own`.
    ///
    /// # Errors
    /// `Corrupt` if it is no authority, or not the one that `own` trusts.
    pub fn received(copy: &AuthorityCopy, own: &NodeCredentials) -> Result<ClusterAuthority> {
        let certificate = CertificateDer::from_pem_slice(copy.certificate.as_bytes());
        let certificate =
            certificate.map_err(|_| Error::new(ErrorKind::Corrupt, "this is no certificate"))?;
        if certificate != own.authority {
            let detail = "this is not the authority that this node trusts";
            return Err(Error::new(ErrorKind::Corrupt, detail));
        }
        ClusterAuthority::of(copy.key.as_bytes(), certificate, Arc::clone(&own.clock))
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The fingerprint of the authority's certificate, which join tokens carry.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Signs a certificate for the owner of `key`.
    ///
    /// # Errors
    /// `Invalid` if the node is of another cluster; when the operating system gives no random
    /// bytes.
    pub(crate) fn sign(
        &self,
        identity: &NodeIdentity,
        key: &PublicKey,
    ) -> Result<CertificateDer<'static>> {
        if identity.cluster != self.cluster {
            let detail = format!("{identity} is not of cluster {}", self.cluster);
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(identity.name.as_str());
        params.subject_alt_names = vec![uri(&identity_uri(identity))?];
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if identity.roles.may_serve() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        set_life(&mut params, &*self.clock, NODE_YEARS)?;
        let issuer = Issuer::new(authority_params(self.cluster)?, &self.key);
        let certificate = params.signed_by(key, &issuer);
        Ok(certificate.map_err(|error| failed("a certificate", &error))?.into())
    }

    /// Signs whatever a test wants signed.
    #[cfg(test)]
    pub(crate) fn sign_anything(
        &self,
        uris: &[&str],
        usages: &[ExtendedKeyUsagePurpose],
    ) -> CertificateDer<'static> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = uris.iter().map(|text| uri(text).expect("a URI")).collect();
        params.extended_key_usages = usages.to_vec();
        set_life(&mut params, &*self.clock, 1).expect("a life");
        let issuer = Issuer::new(authority_params(self.cluster).expect("params"), &self.key);
        params.signed_by(&new_key().expect("a key"), &issuer).expect("signed").into()
    }

    /// A key and a certificate for a node: for the node at which the authority itself is, and for
    /// tests. All other nodes join, and make their keys themselves.
    ///
    /// # Errors
    /// `Invalid` if the node is of another cluster; when the operating system gives no random
    /// bytes.
    pub fn issue(&self, identity: &NodeIdentity) -> Result<NodeCredentials> {
        let key = new_key()?;
        let certificate = self.sign(identity, &public_key(&key))?;
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        NodeCredentials::new(key, certificate, self.certificate.clone(), Arc::clone(&self.clock))
    }
}

/// A new key of a node or an authority.
pub(crate) fn new_key() -> Result<KeyPair> {
    KeyPair::generate_for(&PKCS_ED25519).map_err(|error| failed("a key", &error))
}

pub(crate) fn public_key(key: &KeyPair) -> PublicKey {
    PublicKey(key.der_bytes().try_into().expect("invariant: a key of Ed25519 has 32 bytes"))
}

/// Sets serial number, begin and end.
fn set_life(params: &mut CertificateParams, clock: &dyn Clock, years: u32) -> Result<()> {
    let mut serial = [0; 16];
    strake_env::rng::entropy(&mut serial)?;
    // Positive, and of this length in any case.
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    let now = Duration::from_secs(clock.wall().seconds.max(0).unsigned_abs());
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(DAY);
    params.not_after = epoch + now + YEAR * years;
    Ok(())
}
