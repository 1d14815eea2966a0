//! The commands of Spectrum Scale on real file systems: they say what the native listings say, and
//! do what the native commands do.

use super::command;
use super::mounted::Mounted;
use super::session::Session;
use std::path::Path;
use std::time::Duration;

const SECONDS_MAX: u64 = 60;

/// Reads rows with colons, and holds them against JSON of the native listings.
const ROWS: &str = r"
import json, sys, urllib.parse
def rows(path):
    heads, found = {}, {}
    for line in open(path).read().splitlines():
        fields = [urllib.parse.unquote(field) for field in line.split(':')]
        assert fields[-1] == '', line
        section = fields[0], fields[1]
        if fields[2] == 'HEADER':
            heads[section] = fields[6:-1]
        else:
            assert len(fields[6:-1]) == len(heads[section]), line
            row = dict(zip(heads[section], fields[6:-1]))
            found.setdefault(section, []).append(row)
    return found
";

/// A check of the listings of a file system of six disks. One disk is suspended.
const ALONE: &str = r"
disks, space, attributes, native = sys.argv[1:5]
native = json.load(open(native))
listed = rows(disks)['mmlsdisk', '']
assert [row['nsdName'] for row in listed] == [disk['name'] for disk in native], listed
assert [row['status'] for row in listed] == ['ready'] * 5 + ['suspended'], listed
assert all(row['availability'] == 'up' for row in listed), listed
assert [int(row['failureGroup']) for row in listed] == [disk['failureGroup'] for disk in native]
listed = rows(space)
assert [row['nsdName'] for row in listed['mmdf', 'nsd']] == [disk['name'] for disk in native]
total, = listed['mmdf', 'fsTotal']
assert int(total['fsSize']) == sum(disk['totalBytes'] // 1024 for disk in native), total
inodes, = listed['mmdf', 'inode']
assert int(inodes['usedInodes']) > 0 and int(inodes['maxInodes']) > 1000, inodes
told = {row['fieldName']: row['data'] for row in rows(attributes)['mmlsfs', '']}
assert told['blockSize'] == str(1 << 20) and told['defaultDataReplicas'] == '4+2p', told
assert told['disks'] == ';'.join(disk['name'] for disk in native), told
assert told['defaultMountPoint'].endswith('mnt'), told
";

/// A check of the listings of a lab of three nodes.
const LAB: &str = r"
cluster, states, nsds, disks, nodes = sys.argv[1:6]
nodes = json.load(open(nodes))
listed = rows(cluster)['mmlscluster', 'clusterNode']
assert [row['daemonNodeName'] for row in listed] == [node['name'] for node in nodes], listed
assert [row['ipAddress'] for row in listed] == [node['address'].split(':')[0] for node in nodes]
assert all(row['designation'] == 'quorumManager' for row in listed), listed
summary, = rows(cluster)['mmlscluster', 'clusterSummary']
leader, = (node['name'] for node in nodes if node['leader'])
assert summary['primaryServer'] == leader != summary['secondaryServer'], summary
listed = rows(states)['mmgetstate', '']
assert [row['state'] for row in listed] == ['active'] * 3, listed
assert all((row['quorum'], row['nodesUp']) == ('2', '3') for row in listed), listed
served = {row['diskName']: row['serverList'] for row in rows(nsds)['mmlsnsd', 'nsd']}
assert served == {nsd: node['name'] for node in nodes for nsd in node['nsds']}, served
listed = rows(disks)['mmlsdisk', '']
assert {row['nsdName'] for row in listed} == served.keys(), listed
";

/// Has a program read files, which are named by their contents.
fn judge(session: &Session, dir: &Path, program: &str, texts: &[String]) -> Result<(), String> {
    let mut python = session.command("/usr/bin/python3");
    python.arg("-c").arg(format!("{ROWS}{program}"));
    for (number, text) in texts.iter().enumerate() {
        let path = dir.join(format!("mm-{number}"));
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        python.arg(path);
    }
    let log = session.log("mm", "judge");
    let limit = Duration::from_secs(SECONDS_MAX);
    command::run(&mut python, &log, limit)?.success().map(drop)
}

/// Runs commands where `variable` names a directory.
struct Face<'a> {
    session: &'a Session,
    variable: &'a str,
    dir: &'a Path,
    /// Where links are made.
    links: &'a Path,
}

impl Face<'_> {
    /// Runs `strake mm LINE`, or a link with the command's name.
    fn run(&self, line: &str, by_link: bool) -> Result<command::Ended, String> {
        let (name, words) = line.split_once(' ').unwrap_or((line, ""));
        let mut run = match by_link {
            true => {
                let link = self.links.join(name);
                std::os::unix::fs::symlink(&self.session.strake, &link)
                    .map_err(|error| format!("{}: {error}", link.display()))?;
                self.session.command(link)
            }
            false => {
                let mut run = self.session.command(&self.session.strake);
                run.args(["mm", name]);
                run
            }
        };
        run.args(words.split_whitespace()).env(self.variable, self.dir);
        let log = self.session.log("mm", &line.replace(['/', ' '], "-"));
        command::run(&mut run, &log, Duration::from_secs(SECONDS_MAX))
    }

    /// The output of a command that must succeed.
    fn say(&self, line: &str) -> Result<String, String> {
        self.run(line, false)?.success().map(|ended| ended.output())
    }

    /// A command is refused as wrong usage, with advice.
    fn refuses(&self, line: &str, advice: &str) -> Result<(), String> {
        let ended = self.run(line, false)?;
        match ended.status.code() == Some(2) && ended.output().contains(advice) {
            true => Ok(()),
            false => Err(ended.complaint(&format!("not exit code 2 with '{advice}'"))),
        }
    }
}

/// On a file system of `strake up` with six disks.
pub(crate) fn on_one(session: &Session, mounted: &Mounted<'_>) -> Result<(), String> {
    let (data, links) = (mounted.data(), mounted.beside("links")?);
    let face = Face { session, variable: "STRAKE_DATA", dir: &data, links: &links };
    let name = "diag";
    face.say(&format!("mmchdisk {name} suspend -d nsd6"))?;
    let texts = [
        face.run(&format!("mmlsdisk /dev/{name} -Y"), true)?.success()?.output(),
        face.say(&format!("mmdf {name} -Y"))?,
        face.say("mmlsfs all -Y")?,
        mounted.say("disk list --json")?,
    ];
    judge(session, &links, ALONE, &texts)?;
    face.say(&format!("mmchdisk {name} resume -d nsd6"))?;
    let screens = [
        ("mmlsnsd", "File system  Disk name  NSD servers"),
        ("mmlsconfig", "\npagepool "),
        ("mmdiag --iohist", "=== mmdiag: iohist ==="),
        ("mmdiag --waiters --version", "=== mmdiag: waiters ==="),
        ("mmlsfs diag -B", "Block size"),
        ("mmchlicense client --accept -N all", "no licence"),
    ];
    for (line, words) in screens {
        let said = face.say(line)?;
        if !said.contains(words) {
            return Err(format!("{line}: '{words}' is not in:\n{said}"));
        }
    }
    face.refuses("mmlsquota", "no quotas yet")?;
    face.refuses("mmchconfig pagepool=1G", "--set pagepool=1G")?;
    face.refuses("mmlsdisk diag --frobnicate", "mmlsdisk has:")?;
    face.refuses("mmlsfs elsewhere", "`strake fs list`")
}

/// On a lab whose nodes are in `dir`. The mount of the second node is taken away.
pub(crate) fn on_lab(session: &Session, dir: &Path) -> Result<(), String> {
    let node = |number: u32| dir.join(format!("node{number}"));
    let (first, second) = (node(1), node(2));
    let face = Face { session, variable: "STRAKE_NODE", dir: &first, links: dir };
    let mut nodes = session.command(&session.strake);
    nodes.args(["node", "list", "--json", "--dir"]).arg(&first);
    let log = session.log("mm", "node-list");
    let limit = Duration::from_secs(SECONDS_MAX);
    let nodes = command::run(&mut nodes, &log, limit)?.success()?.output();
    let texts = [
        face.say("mmlscluster -Y")?,
        face.say("mmgetstate -a -Y")?,
        face.say("mmlsnsd -Y")?,
        face.say("mmlsdisk lab -Y")?,
        nodes,
    ];
    let judged = session.root.join("mm-judged");
    std::fs::create_dir_all(&judged).map_err(|error| error.to_string())?;
    judge(session, &judged, LAB, &texts)?;
    let said = face.say("mmlscluster")?;
    if !said.contains("GPFS cluster configuration servers:") {
        return Err(format!("mmlscluster: {said}"));
    }
    face.refuses("mmshutdown -a", "`strake node stop` on each of them")?;
    let face = Face { dir: &second, ..face };
    let state = face.say("mmgetstate")?;
    if !state.contains("node2") || state.contains("node1") {
        return Err(format!("mmgetstate on node2: {state}"));
    }
    face.say("mmumount lab")?;
    face.refuses("mmlsfs lab", "`strake fs mount lab`")
}
