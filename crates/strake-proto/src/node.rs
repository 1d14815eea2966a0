//! Who a node of a cluster is: its name, its roles, its cluster. A node's certificate says all
//! three, and the cluster's records name nodes the same way.

use crate::error::{Error, ErrorKind, Result};
use crate::ids::ClusterId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The longest name of a node, which is the longest label of a host name.
pub const NODE_NAME_BYTES_MAX: usize = 63;

/// The name of a node: 1 to 63 characters of `a-z`, `0-9`, `-`, `.` and `_`, the first a letter or
/// a digit. Unique within a cluster. It is part of certificates and file names, so it holds nothing
/// that must be escaped anywhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

impl NodeName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = Error;

    fn from_str(text: &str) -> Result<NodeName> {
        let is_part = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '.' | '_');
        let begins = text.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        if !begins || text.len() > NODE_NAME_BYTES_MAX || !text.chars().all(is_part) {
            let shown: String = text.chars().filter(|c| !c.is_control()).take(80).collect();
            let detail = format!(
                "{shown:?} is no name of a node: use 1 to {NODE_NAME_BYTES_MAX} characters of a-z, \
                 0-9, -, . and _, the first a letter or a digit"
            );
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        Ok(NodeName(text.to_owned()))
    }
}

impl TryFrom<String> for NodeName {
    type Error = Error;

    fn try_from(text: String) -> Result<NodeName> {
        text.parse()
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> String {
        name.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// What a node is for. The number is the bit in [`Roles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Holds the metadata and votes; one of these nodes leads.
    Quorum = 0,
    /// Serves NSDs.
    Server = 1,
    /// Mounts file systems.
    Client = 2,
}

impl Role {
    /// All roles, in the order in which they are shown.
    pub const ALL: [Role; 3] = [Role::Quorum, Role::Server, Role::Client];

    /// The role's name.
    pub fn name(self) -> &'static str {
        match self {
            Role::Quorum => "quorum",
            Role::Server => "server",
            Role::Client => "client",
        }
    }
}

/// A set of roles that is not empty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Roles(u8);

impl Roles {
    /// Every role.
    pub const ALL: Roles = Roles(0b111);

    /// These roles.
    ///
    /// # Panics
    /// If there are none.
    pub fn of(roles: &[Role]) -> Roles {
        let bits = roles.iter().fold(0, |bits, role| bits | 1 << *role as u8);
        assert!(bits != 0, "a node has at least one role");
        Roles(bits)
    }

    /// True if `role` is one of them.
    pub fn has(self, role: Role) -> bool {
        self.0 & 1 << role as u8 != 0
    }

    /// True if the two sets have a role in common.
    pub fn any_of(self, other: Roles) -> bool {
        self.0 & other.0 != 0
    }

    /// True if a node with these roles may be connected to: it holds metadata or NSDs.
    pub fn may_serve(self) -> bool {
        self.any_of(Roles::of(&[Role::Quorum, Role::Server]))
    }
}

impl TryFrom<u8> for Roles {
    type Error = Error;

    fn try_from(bits: u8) -> Result<Roles> {
        match bits {
            1..=0b111 => Ok(Roles(bits)),
            _ => Err(Error::new(ErrorKind::Corrupt, format!("{bits} is no set of roles"))),
        }
    }
}

impl From<Roles> for u8 {
    fn from(roles: Roles) -> u8 {
        roles.0
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Role::ALL.into_iter().filter(|role| self.has(*role)).map(Role::name);
        names.enumerate().try_for_each(|(at, name)| match at {
            0 => out.write_str(name),
            _ => write!(out, ",{name}"),
        })
    }
}

impl fmt::Debug for Roles {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Roles({self})")
    }
}

impl FromStr for Roles {
    type Err = Error;

    /// Reads `quorum,server,client` or a part of it, in any order.
    fn from_str(text: &str) -> Result<Roles> {
        let mut roles = Vec::new();
        for word in text.split(',') {
            let role = Role::ALL.into_iter().find(|role| role.name() == word).ok_or_else(|| {
                let shown: String = word.chars().filter(|c| !c.is_control()).take(80).collect();
                let detail = format!("{shown:?} is no role: use quorum, server and client");
                Error::new(ErrorKind::Invalid, detail)
            })?;
            roles.push(role);
        }
        Ok(Roles::of(&roles))
    }
}

/// What a certificate says of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// Its name.
    pub name: NodeName,
    /// What it may do.
    pub roles: Roles,
}

impl fmt::Display for NodeIdentity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "node {} ({})", self.name, self.roles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hold_nothing_that_must_be_escaped() {
        for good in ["n1", "1", "host-7.rack_2", &"a".repeat(63)] {
            assert_eq!(good.parse::<NodeName>().expect("a name").as_str(), good);
        }
        for bad in ["", "N1", "-a", ".a", "_a", "a/b", "a b", "a\n", "ä", "a:b", &"a".repeat(64)] {
            let error = bad.parse::<NodeName>().expect_err("no name");
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad:?}");
            assert!(!error.to_string().contains('\n'));
        }
    }

    #[test]
    fn roles_are_shown_and_read_back() {
        for bits in 1..=7u8 {
            let roles = Roles::try_from(bits).expect("a set");
            assert_eq!(roles.to_string().parse::<Roles>().expect("roles"), roles);
            assert_eq!(roles.may_serve(), bits & 3 != 0);
        }
        assert_eq!(Roles::of(&[Role::Client, Role::Quorum]).to_string(), "quorum,client");
        assert!(Roles::try_from(0).is_err() && Roles::try_from(8).is_err());
        assert!("".parse::<Roles>().is_err() && "client,root".parse::<Roles>().is_err());
    }

    #[test]
    fn golden_bytes_and_bytes_that_are_no_identity() {
        let name = "n1".parse().expect("a name");
        let identity = NodeIdentity { cluster: ClusterId([7; 16]), name, roles: Roles::ALL };
        let bytes = postcard::to_allocvec(&identity).expect("encodes");
        assert_eq!(bytes, [[7; 16].as_slice(), &[2, b'n', b'1', 7]].concat());
        assert_eq!(postcard::from_bytes::<NodeIdentity>(&bytes).expect("decodes"), identity);
        let mut bad = bytes.clone();
        bad[17] = b'N';
        assert!(postcard::from_bytes::<NodeIdentity>(&bad).is_err(), "a name that is none");
        let mut bad = bytes;
        bad[19] = 8;
        assert!(postcard::from_bytes::<NodeIdentity>(&bad).is_err(), "roles that are none");
    }
}
