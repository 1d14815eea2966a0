//! What a lab consists of: numbers, names and addresses. Nothing here touches the machine.

use crate::settings::Settings;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::Path;
use strake_lease::reservation::SERVERS_MAX;
use strake_proto::{ByteCount, Code, Error, ErrorKind, Result, Role, Roles};

/// The file in the lab's directory that has its [`LabFile`].
pub(super) const FILE: &str = "lab.json";
/// The directory in the lab's that has the disks which several nodes reach.
pub(super) const DISKS: &str = "disks";
/// The version of the form of that file.
const VERSION: u32 = 1;
/// More nodes than this need more memory than a machine for tests has.
pub(super) const NODES_MAX: u16 = 32;
const NSDS_PER_NODE_MAX: u16 = 16;
/// Enough for tests. The containers take space only as they fill.
pub(crate) const NSD_SIZE_DEFAULT: ByteCount = ByteCount::mib(512);
const NSD_SIZE_MIN: ByteCount = ByteCount::mib(64);
/// The code of a lab of several nodes, and that of a lab of one.
const CODE_DEFAULT: Code = Code { data: 1, parity: 1 };
/// See [`CODE_DEFAULT`].
const CODE_ALONE: Code = Code { data: 1, parity: 0 };
/// How many nodes have the role quorum unless the user says otherwise.
const QUORUM_DEFAULT: u16 = 3;
/// Settings of each mount, so that several fit on one machine.
const MOUNT_SETTINGS: [&str; 2] = ["pagepool=128M", "stay_awake=off"];
/// The longest path of a Unix socket, in bytes.
const SOCKET_PATH_MAX: usize = 107;
/// What follows the lab's directory in its longest such path.
const SOCKET_TAIL: &str = "/node32/mount/lab/admin.sock";

/// What was wanted: the contents of `lab.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct LabFile {
    version: u32,
    /// How many nodes have NSDs.
    pub(super) nodes: u16,
    /// How many nodes more have none, and only mount.
    #[serde(default)]
    pub(super) clients: u16,
    /// NSDs of each node.
    pub(super) nsds_per_node: u16,
    /// How many nodes reach each NSD.
    #[serde(default = "one")]
    pub(super) servers_per_nsd: u16,
    /// The file system's code.
    pub(super) code: Code,
    /// How many nodes have the role quorum: the first ones.
    pub(super) quorum: u16,
    /// Bytes of each NSD.
    pub(super) nsd_size: u64,
    /// `KEY=VALUE` settings of each mount.
    pub(super) settings: Vec<String>,
    /// True if the lab's directory was made by `up`, so that `down` removes it.
    pub(super) made_directory: bool,
    /// True if nothing was mounted at `/run/netns` before. iproute2 mounts that directory on itself
    /// when it first makes a namespace.
    pub(super) made_netns: bool,
}

/// Of labs that were made before disks could have several servers.
fn one() -> u16 {
    1
}

impl LabFile {
    /// A lab with these numbers. `None` stands for the default.
    ///
    /// # Errors
    /// `Invalid`; the message says what would do.
    pub(crate) fn new(
        nodes: u16,
        nsds_per_node: u16,
        nsd_size: ByteCount,
        code: Option<Code>,
        quorum: Option<u16>,
    ) -> Result<LabFile> {
        let within = |what: &str, value: u16, max: u16| match (1..=max).contains(&value) {
            true => Ok(()),
            false => invalid(format!("{what} {value}: 1 to {max}")),
        };
        within("--nodes", nodes, NODES_MAX)?;
        within("--nsds-per-node", nsds_per_node, NSDS_PER_NODE_MAX)?;
        if nsd_size < NSD_SIZE_MIN {
            return invalid(format!("--nsd-size {nsd_size}: an NSD has at least {NSD_SIZE_MIN}"));
        }
        let code = code.unwrap_or(if nodes == 1 { CODE_ALONE } else { CODE_DEFAULT });
        let nsds = usize::from(nodes) * usize::from(nsds_per_node);
        if code.width() > nsds {
            return invalid(format!(
                "--code {code} needs {} NSDs, and {nodes} nodes with {nsds_per_node} each have \
                 {nsds}: use more --nodes, more --nsds-per-node, or another code",
                code.width()
            ));
        }
        // An even number would tolerate no more losses than one less.
        let usual = if nodes < QUORUM_DEFAULT { 1 } else { QUORUM_DEFAULT };
        let quorum = quorum.unwrap_or(usual);
        within("--quorum", quorum, nodes)?;
        Ok(LabFile {
            version: VERSION,
            nodes,
            clients: 0,
            nsds_per_node,
            servers_per_nsd: 1,
            code,
            quorum,
            nsd_size: nsd_size.0,
            settings: MOUNT_SETTINGS.map(str::to_owned).to_vec(),
            made_directory: false,
            made_netns: false,
        })
    }

    /// The same lab with so many nodes more that have no NSDs.
    ///
    /// # Errors
    /// `Invalid` if there would be too many nodes.
    pub(crate) fn with_clients(mut self, clients: u16) -> Result<LabFile> {
        let max = NODES_MAX - self.nodes;
        if clients > max {
            let nodes = self.nodes;
            return invalid(format!("--clients {clients}: 0 to {max} beside {nodes} other nodes"));
        }
        self.clients = clients;
        Ok(self)
    }

    /// The same lab with so many servers of each NSD: its own node and the next ones.
    ///
    /// # Errors
    /// `Invalid` if there are not so many nodes.
    pub(crate) fn with_servers(mut self, servers_per_nsd: u16) -> Result<LabFile> {
        let max = self.nodes.min(SERVERS_MAX as u16);
        if !(1..=max).contains(&servers_per_nsd) {
            let nodes = self.nodes;
            return invalid(format!(
                "--servers-per-nsd {servers_per_nsd}: 1 to {max} in a lab of {nodes} nodes with NSDs"
            ));
        }
        self.servers_per_nsd = servers_per_nsd;
        Ok(self)
    }

    /// How many nodes there are in all. Those without NSDs have the highest numbers.
    pub(super) fn all_nodes(&self) -> u16 {
        self.nodes + self.clients
    }

    /// The same lab with more settings of its mounts.
    ///
    /// # Errors
    /// `Invalid` if a setting does not exist or a value does not fit.
    pub(crate) fn with_settings(mut self, settings: &[String]) -> Result<LabFile> {
        let mut known = Settings::default();
        settings.iter().try_for_each(|text| known.set(text))?;
        known.validate()?;
        self.settings.extend_from_slice(settings);
        Ok(self)
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(super) fn parse(text: &str) -> Result<LabFile> {
        let corrupt = |detail: String| Error::new(ErrorKind::Corrupt, detail);
        let file: LabFile =
            serde_json::from_str(text).map_err(|error| corrupt(error.to_string()))?;
        let is_sound =
            (1..=NODES_MAX).contains(&file.nodes) && file.clients <= NODES_MAX - file.nodes;
        if file.version != VERSION || !is_sound {
            return Err(corrupt(format!("a lab of version {}", file.version)));
        }
        Ok(file)
    }

    /// The file's text.
    ///
    /// # Errors
    /// None that can happen.
    pub(super) fn render(&self) -> Result<String> {
        serde_json::to_string_pretty(self)
            .map(|text| text + "\n")
            .map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
    }

    /// What a node does. The first node leads the cluster and does everything.
    pub(super) fn roles(&self, node: u16) -> Roles {
        match node {
            node if node <= self.quorum => Roles::ALL,
            node if node <= self.nodes => Roles::of(&[Role::Server, Role::Client]),
            _ => Roles::of(&[Role::Client]),
        }
    }

    /// The descriptions of all NSDs of the lab in the directory `root`, as `strake nsd create`
    /// reads them.
    pub(super) fn stanzas(&self, root: &Path) -> String {
        let mut text = String::new();
        for node in 1..=self.nodes {
            let reach = (0..self.servers_per_nsd).map(|next| (node - 1 + next) % self.nodes + 1);
            let servers: Vec<String> = reach.map(Names::node).collect();
            for nsd in 1..=self.nsds_per_node {
                let name = format!("{}nsd{nsd}", servers[0]);
                let device = match self.servers_per_nsd {
                    1 => format!("nsd{nsd}"),
                    _ => root.join(DISKS).join(&name).display().to_string(),
                };
                let (servers, size) = (servers.join(","), self.nsd_size);
                writeln!(text, "%nsd: device={device} nsd={name} servers={servers} size={size}")
                    .expect("invariant: a string takes all");
            }
        }
        text
    }
}

/// The names of what a lab makes outside of its directory. They have a hash of the directory's
/// path, so that two labs do not collide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    prefix: String,
}

impl Names {
    /// Those of the lab in the directory `root`.
    pub(super) fn of(root: &Path) -> Names {
        let hash = crc32c::crc32c(root.as_os_str().as_encoded_bytes());
        Names { prefix: format!("strake-lab-{hash:08x}-") }
    }

    /// How all of these names begin.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The network namespace of a node, and the cgroup in which its processes are frozen.
    pub(super) fn namespace(&self, node: u16) -> String {
        format!("{}{node}", self.prefix)
    }

    /// The network namespace that has the bridge.
    pub(super) fn bridge(&self) -> String {
        format!("{}bridge", self.prefix)
    }

    /// A node's name in the cluster, that of its folder, and that of its cable at the bridge.
    pub(super) fn node(node: u16) -> String {
        format!("node{node}")
    }

    /// A node's address. Every lab has the same ones, because each is a network by itself.
    pub(super) fn address(node: u16) -> String {
        format!("10.90.0.{node}")
    }
}

/// Refuses a directory whose sockets would have paths that are too long.
///
/// # Errors
/// `Invalid`.
pub(super) fn check_length(root: &Path) -> Result<()> {
    let max = SOCKET_PATH_MAX - SOCKET_TAIL.len();
    let length = root.as_os_str().len();
    if length <= max {
        return Ok(());
    }
    invalid(format!(
        "--dir {}: its path has {length} bytes, and the sockets below it allow {max}",
        root.display()
    ))
}

fn invalid<T>(message: String) -> Result<T> {
    Err(Error::new(ErrorKind::Invalid, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::stanza;

    fn wanted(nodes: u16, nsds: u16, code: Option<&str>, quorum: Option<u16>) -> Result<LabFile> {
        let code = code.map(|code| code.parse().expect("a code"));
        LabFile::new(nodes, nsds, NSD_SIZE_DEFAULT, code, quorum)
    }

    fn refusal(result: Result<LabFile>) -> String {
        let error = result.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "exit code 2: {error}");
        error.to_string()
    }

    #[test]
    fn numbers_that_make_no_lab_are_refused_with_what_would_do() {
        assert!(refusal(wanted(0, 1, None, None)).contains("--nodes 0: 1 to 32"));
        assert!(refusal(wanted(33, 1, None, None)).contains("1 to 32"));
        assert!(refusal(wanted(3, 0, None, None)).contains("--nsds-per-node 0"));
        assert!(refusal(wanted(3, 1, Some("4+2p"), None)).contains("needs 6 NSDs"));
        assert!(refusal(wanted(3, 1, None, Some(4))).contains("--quorum 4: 1 to 3"));
        assert!(refusal(wanted(3, 1, None, Some(0))).contains("--quorum 0"));
        let small = LabFile::new(3, 1, ByteCount::mib(1), None, None);
        assert!(refusal(small).contains("at least 64 MiB"));
    }

    #[test]
    fn settings_of_mounts_are_checked_before_anything_is_made() {
        let with = |text: &str| {
            wanted(3, 1, None, None).and_then(|lab| lab.with_settings(&[text.to_owned()]))
        };
        let lab = with("nsd_io_limit=2s").expect("a setting");
        assert_eq!(lab.settings, ["pagepool=128M", "stay_awake=off", "nsd_io_limit=2s"]);
        assert!(refusal(with("pagepol=1G")).contains("pagepool"));
    }

    #[test]
    fn defaults_survive_the_loss_of_a_node_where_there_are_several() {
        let lab = wanted(5, 2, None, None).expect("a lab");
        assert_eq!((lab.code.to_string().as_str(), lab.quorum), ("2x", 3));
        assert_eq!(lab.roles(3).to_string(), Roles::ALL.to_string());
        assert!(!lab.roles(4).has(Role::Quorum) && lab.roles(4).has(Role::Client));
        let alone = wanted(1, 1, None, None).expect("a lab");
        assert_eq!((alone.code.to_string().as_str(), alone.quorum), ("1", 1));
        assert_eq!(wanted(2, 1, None, None).expect("a lab").quorum, 1);
    }

    #[test]
    fn the_file_is_read_as_it_was_written_and_nothing_else_is() {
        let lab = wanted(3, 2, Some("4+2p"), Some(3)).expect("a lab");
        let text = lab.render().expect("renders");
        assert_eq!(LabFile::parse(&text).expect("reads"), lab);
        let newer = text.replace("\"version\": 1", "\"version\": 2");
        assert_ne!(newer, text);
        // Files of labs that were made before there were nodes without NSDs.
        let older = text.replace("  \"clients\": 0,\n", "");
        assert_ne!(older, text);
        assert_eq!(LabFile::parse(&older).expect("reads"), lab);
        let crowded = text.replace("\"clients\": 0", "\"clients\": 30");
        assert_ne!(crowded, text);
        let empty = text.replace("\"nodes\": 3", "\"nodes\": 0");
        for bad in [newer, crowded, empty, "{}".into(), "".into()] {
            assert_eq!(LabFile::parse(&bad).expect_err("refused").kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn each_node_gets_its_nsds() {
        let lab = wanted(3, 2, None, None).expect("a lab");
        let nsds = stanza::parse(&lab.stanzas(Path::new("/lab"))).expect("stanzas");
        let shown: Vec<String> = nsds
            .iter()
            .map(|nsd| format!("{} {}", nsd.server, nsd.name.clone().unwrap_or_default()))
            .collect();
        assert_eq!(shown.len(), 6);
        assert_eq!(&shown[1..3], ["node1 node1nsd2", "node2 node2nsd1"]);
        assert!(nsds.iter().all(|nsd| nsd.size == Some(512 << 20)));
    }

    #[test]
    fn nodes_beyond_those_with_nsds_are_clients_only() {
        let lab = wanted(3, 2, None, None).and_then(|lab| lab.with_clients(2)).expect("a lab");
        assert_eq!(lab.all_nodes(), 5);
        assert!(lab.roles(3).has(Role::Server));
        assert_eq!(lab.roles(4).to_string(), Roles::of(&[Role::Client]).to_string());
        assert_eq!(stanza::parse(&lab.stanzas(Path::new("/lab"))).expect("stanzas").len(), 6);
        let crowd = wanted(3, 1, None, None).and_then(|lab| lab.with_clients(30));
        assert!(refusal(crowd).contains("--clients 30: 0 to 29"));
    }

    #[test]
    fn labs_in_two_directories_have_nothing_in_common() {
        let (one, other) = (Names::of(Path::new("/a/b")), Names::of(Path::new("/a/c")));
        assert_ne!(one, other);
        assert!(one.namespace(3).starts_with(one.prefix()));
        assert!(one.bridge().starts_with(one.prefix()) && !one.bridge().starts_with(&other.prefix));
        assert_ne!(one.namespace(1), one.namespace(11));
    }

    #[test]
    fn a_path_that_leaves_no_room_for_sockets_is_refused() {
        let fits = format!("/{}", "a".repeat(SOCKET_PATH_MAX - SOCKET_TAIL.len() - 1));
        check_length(Path::new(&fits)).expect("fits");
        assert!(check_length(Path::new(&format!("{fits}a"))).is_err());
    }
}
