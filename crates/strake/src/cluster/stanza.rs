//! Reads the files that describe NSDs, in the two forms that administrators have.
//!
//! *Stanzas*: `%nsd:` and then `attribute=value` words on any number of lines. A stanza ends at the
//! next one, at a blank line, and at the end. Other stanzas (`%pool:`, …) are passed over.
//!
//! ```text
//! %nsd: device=/dev/sdb
//!   nsd=d1  servers=n1  usage=dataAndMetadata  failureGroup=1  pool=system
//! ```
//!
//! *Descriptors*: one line for each NSD, `device:servers::usage:failureGroup:name:pool`. What is
//! left out has its default.
//!
//! Lines that begin with `#` are comments. `device` is a block device below `/dev`, the absolute
//! path of a directory, or one word: the name of a directory in the node's own directory. Several
//! servers have a comma between each two: all of them reach the disk, and the first one that is
//! there serves it. One attribute is ours: `size=`, the size of the container of an NSD that is a
//! directory.

use super::records::Usage;
use serde::{Deserialize, Serialize};
use strake_proto::{ByteCount, Error, ErrorKind, Result};

/// One NSD as the file describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Described {
    /// The line where it begins, for messages.
    pub(crate) line: usize,
    pub(crate) device: String,
    /// The name of the node that serves it.
    pub(crate) server: String,
    /// The names of the other nodes that reach it, in the order in which they take its place.
    #[serde(default)]
    pub(crate) others: Vec<String>,
    pub(crate) name: Option<String>,
    pub(crate) data_only: bool,
    pub(crate) failure_group: Option<u32>,
    pub(crate) pool: Option<String>,
    /// Bytes of its container.
    pub(crate) size: Option<u64>,
}

impl Described {
    /// What it is used for.
    pub(crate) fn usage(&self) -> Usage {
        if self.data_only { Usage::DataOnly } else { Usage::DataAndMetadata }
    }

    fn set(&mut self, attribute: &str, value: &str) -> Result<()> {
        if value.is_empty() {
            return Ok(());
        }
        match attribute {
            "device" => value.clone_into(&mut self.device),
            "servers" => {
                let mut names = value.split(',').map(str::to_owned);
                self.server = names.next().unwrap_or_default();
                self.others = names.collect();
            }
            "nsd" => self.name = Some(value.to_owned()),
            "usage" => self.data_only = is_data_only(value)?,
            "failureGroup" => {
                let group = value.parse().map_err(|_| {
                    bad(format!("failureGroup={value}: a failure group is a whole number"))
                })?;
                self.failure_group = Some(group);
            }
            "pool" if value != "system" => {
                return Err(bad(format!("pool={value}: there is only the pool system so far")));
            }
            "pool" => self.pool = Some(value.to_owned()),
            "size" => {
                let size: ByteCount = value.parse()?;
                self.size = Some(size.0);
            }
            "thinDiskType" => {}
            _ => {
                return Err(bad(format!(
                    "'{attribute}': an NSD has device, nsd, servers, usage, failureGroup, pool and \
                     size"
                )));
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Described> {
        let at = format!("line {}", self.line);
        if self.device.is_empty() {
            return Err(bad("name its device or directory: device=…".into()).context(at));
        }
        if self.server.is_empty() {
            return Err(bad("name the node that serves it: servers=…".into()).context(at));
        }
        if self.others.iter().any(String::is_empty) {
            return Err(bad("servers=… names nodes with one comma between two".into()).context(at));
        }
        if !self.others.is_empty() && !self.device.starts_with('/') {
            let detail = format!(
                "device={}: a disk with several servers has the same absolute path on each",
                self.device
            );
            return Err(bad(detail).context(at));
        }
        Ok(self)
    }
}

fn bad(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

fn is_data_only(value: &str) -> Result<bool> {
    match value {
        "dataAndMetadata" => Ok(false),
        "dataOnly" => Ok(true),
        _ => Err(bad(format!("usage={value}: dataAndMetadata or dataOnly"))),
    }
}

/// Reads a file's text.
///
/// # Errors
/// `Invalid`; the message names the line and says what to write.
pub(crate) fn parse(text: &str) -> Result<Vec<Described>> {
    let mut found = Vec::new();
    let mut open: Option<Described> = None;
    // Within a stanza that is not about NSDs.
    let mut passed_over = false;
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.trim();
        if text.starts_with('#') {
            continue;
        }
        if text.is_empty() {
            passed_over = false;
            found.extend(open.take());
            continue;
        }
        let words = match text.strip_prefix('%') {
            Some(stanza) => {
                found.extend(open.take());
                let (kind, rest) = stanza.split_once(':').ok_or_else(|| {
                    bad(format!("line {line}: a stanza begins like %nsd: with a colon"))
                })?;
                passed_over = kind.trim() != "nsd";
                open = (!passed_over).then(|| Described { line, ..Described::default() });
                rest
            }
            None => text,
        };
        if passed_over {
            continue;
        }
        match &mut open {
            Some(nsd) => {
                for word in words.split_whitespace() {
                    let (attribute, value) = word.split_once('=').ok_or_else(|| {
                        bad(format!("line {line}: '{word}': write attribute=value"))
                    })?;
                    nsd.set(attribute, value)
                        .map_err(|error| error.context(format!("line {line}")))?;
                }
            }
            None => found.push(descriptor(line, text)?),
        }
    }
    found.extend(open);
    if found.is_empty() {
        return Err(bad("the file describes no NSD".to_owned()));
    }
    found.into_iter().map(Described::finish).collect()
}

/// Reads `device:servers::usage:failureGroup:name:pool`.
fn descriptor(line: usize, text: &str) -> Result<Described> {
    const FIELDS: [&str; 7] = ["device", "servers", "", "usage", "failureGroup", "nsd", "pool"];
    let mut nsd = Described { line, ..Described::default() };
    let fields: Vec<&str> = text.split(':').collect();
    let is_plain = fields.len() <= FIELDS.len() + 1 && fields.len() > 1;
    if !is_plain || fields.get(FIELDS.len()).is_some_and(|last| !last.is_empty()) {
        return Err(bad(format!(
            "line {line}: write a stanza that begins with %nsd:, or \
             device:servers::usage:failureGroup:name:pool"
        )));
    }
    for (attribute, value) in FIELDS.iter().zip(fields) {
        match (*attribute, value) {
            (_, "") => {}
            ("", _) => return Err(bad(format!("line {line}: the third field is empty: ::"))),
            _ => nsd
                .set(attribute, value.trim())
                .map_err(|error| error.context(format!("line {line}")))?,
        }
    }
    Ok(nsd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stanzas_are_read_over_several_lines() {
        let text = "# disks\n%nsd: device=/dev/sdb\n  nsd=d1 servers=n1\n  # mid\n  usage=dataOnly\n\
                    %pool: pool=fast blockSize=1M\n  more=x\n\n\
                    %nsd: device=disk2 servers=n2 failureGroup=7 pool=system size=1G\n";
        let found = parse(text).expect("reads");
        assert_eq!(found.len(), 2);
        let first = &found[0];
        assert_eq!((&*first.device, &*first.server), ("/dev/sdb", "n1"));
        assert_eq!((first.name.as_deref(), first.data_only), (Some("d1"), true));
        assert_eq!((found[1].failure_group, found[1].size), (Some(7), Some(1 << 30)));
        let shared = parse("/dev/sdc:n1,n2,n3::::d\n").expect("reads");
        assert_eq!((&*shared[0].server, shared[0].others.join("+")), ("n1", "n2+n3".to_owned()));
    }

    #[test]
    fn descriptors_are_read_with_empty_fields() {
        let text =
            "/dev/sdc:n1::::dcs_c\n\n# /dev/sdd:n1\n/dev/sdd:n2::dataAndMetadata:4005:d:system:\n";
        let found = parse(text).expect("reads");
        assert_eq!(found[0].name.as_deref(), Some("dcs_c"));
        assert_eq!(found[0].failure_group, None);
        assert_eq!((found[1].failure_group, &*found[1].server), (Some(4005), "n2"));
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        for (text, wanted) in [
            ("", "no NSD"),
            ("%nsd: device=/dev/sdb\n", "line 1: name the node"),
            ("\n%nsd: servers=n1\n", "line 2: name its device"),
            ("%nsd: device=a servers=n1\n usage=metadataOnly", "line 2: usage=metadataOnly"),
            ("%nsd: device=a servers=n1,n2", "line 1: device=a: a disk with several servers"),
            ("%nsd: device=/dev/a servers=n1,,n2", "line 1: servers=… names nodes"),
            ("%nsd: device=a servers=n1 failuregroup=1", "'failuregroup'"),
            ("%nsd: device=a servers=n1 failureGroup=x", "whole number"),
            ("%nsd: device=a servers=n1 pool=fast", "only the pool system"),
            ("%nsd: device=a server", "attribute=value"),
            ("%nsd device=a", "with a colon"),
            ("dcs_c:::dataAndMetadata:4005::", "line 1: name the node"),
            ("/dev/sdb:n1:x:dataOnly", "the third field is empty"),
            ("/dev/sdb n1", "line 1: write a stanza"),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
            assert!(error.to_string().contains(wanted), "{text}: {error}");
        }
    }
}
