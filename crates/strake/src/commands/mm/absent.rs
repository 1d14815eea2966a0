//! The commands that have no counterpart, each with what to do in its place.

use super::{ByName, refused};
use clap::CommandFactory;
use std::ffi::OsString;
use strake_proto::Error;

const QUOTAS: &str = "Strake has no quotas yet";
const SNAPSHOTS: &str = "Strake has no snapshots yet: copy what is to be kept";
const FILESETS: &str = "Strake has no filesets yet: use directories";
const POLICIES: &str = "Strake has one storage pool and no policies yet";
const ACLS: &str = "Strake has POSIX ACLs: getfacl and setfacl show and change them";

/// Names of commands, and what to do.
const TABLE: &[(&str, &str)] = &[
    ("mmaddcallback", "Strake calls no programs: `strake health --json` has events for scripts"),
    ("mmapplypolicy", POLICIES),
    ("mmauth", "other clusters cannot mount a file system yet"),
    ("mmbackup", "a program that copies files can back the mount up"),
    ("mmchattr", "files have the code and the block size of their file system"),
    ("mmchcluster", "the nodes of the quorum keep the records: `strake cluster show`"),
    (
        "mmchfs",
        "the attributes of a file system do not change. Mount options and settings do: `strake fs \
         mount NAME -o OPTIONS --set KEY=VALUE`",
    ),
    ("mmchmgr", "the node that leads is chosen by the nodes of the quorum: `strake cluster show`"),
    ("mmchnode", "the roles of a node do not change: delete it, and add it with other roles"),
    ("mmchnsd", "the server of an NSD does not change: delete the NSD, and make it anew"),
    ("mmcheckquota", QUOTAS),
    ("mmchfileset", FILESETS),
    ("mmchpolicy", POLICIES),
    ("mmcrfileset", FILESETS),
    ("mmcrsnapshot", SNAPSHOTS),
    ("mmdelacl", ACLS),
    ("mmdelfileset", FILESETS),
    ("mmdelsnapshot", SNAPSHOTS),
    ("mmdsh", "ssh runs commands on other machines"),
    ("mmedquota", QUOTAS),
    ("mmfsadm", "`strake diag` shows what a daemon does"),
    ("mmgetacl", ACLS),
    ("mmhealth", "`strake health` has one line for each component, and an exit code for scripts"),
    ("mmlinkfileset", FILESETS),
    ("mmlsattr", "`strake diag explain FILE` shows where a file lies and how healthy it is"),
    ("mmlsfileset", FILESETS),
    ("mmlsmgr", "`strake cluster show` names the node that leads"),
    ("mmlsmount", "`strake fs list` names the nodes that have a file system mounted"),
    ("mmlspolicy", POLICIES),
    ("mmlspool", "Strake has one storage pool, `system`: `strake fs df`"),
    ("mmlsquota", QUOTAS),
    ("mmlssnapshot", SNAPSHOTS),
    ("mmnetverify", "`strake bench net` measures a network, and `strake diag network` watches it"),
    ("mmperfmon", "Prometheus keeps the metrics: the setting `metrics`, and `docs/METRICS.md`"),
    ("mmputacl", ACLS),
    ("mmquotaoff", QUOTAS),
    ("mmquotaon", QUOTAS),
    ("mmrepquota", QUOTAS),
    (
        "mmrestripefs",
        "Strake mends what a returned disk has missed by itself. `strake fs scrub start` verifies \
         and mends everything, and `strake fs rebalance start` moves files to disks that were added",
    ),
    ("mmrestorefs", SNAPSHOTS),
    ("mmsetquota", QUOTAS),
    ("mmsnapdir", SNAPSHOTS),
    ("mmtrace", "`strake diag trace` records what happens"),
    ("mmvdisk", "the code of a file system is chosen when it is made: `strake fs create --code`"),
];

/// True for a command that this page has an answer for.
pub(super) fn is_known(name: &str) -> bool {
    TABLE.iter().any(|(known, _)| *known == name)
}

/// Why a command does not run.
pub(super) fn refusal(words: &[OsString]) -> Error {
    let name = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    if let Some((_, advice)) = TABLE.iter().find(|(known, _)| *known == name) {
        return refused(format!("{name}: {advice}. `strake help mm-commands` lists what there is"));
    }
    let all = ByName::command();
    let names: Vec<&str> = all.get_subcommands().map(clap::Command::get_name).collect();
    refused(format!("{name}: there is no such command. There are: {}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_but_for_families_and_names_no_command_that_exists() {
        let all = ByName::command();
        for (name, advice) in TABLE {
            assert!(name.starts_with("mm") && !advice.ends_with('.'), "{name}");
            assert!(all.find_subcommand(name).is_none(), "{name} exists");
        }
    }

    #[test]
    fn a_missing_command_says_what_to_do_and_an_unknown_one_what_there_is() {
        let said = refusal(&["mmlsquota".into(), "-u".into()]);
        assert_eq!(crate::output::exit_code(&said), 2);
        assert!(said.to_string().contains("no quotas yet"), "{said}");
        let said = refusal(&["mmfrobnicate".into()]).to_string();
        assert!(said.contains("mmlsfs") && said.contains("mmdiag"), "{said}");
    }
}
