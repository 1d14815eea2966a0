//! The options of mount(8) and `/etc/fstab`: a list of words with commas between them. Some are for
//! the kernel, some are settings of the daemon, and some are for other programs.

use std::path::PathBuf;
use strake_fuse::KernelOptions;
use strake_proto::{Error, ErrorKind, Result};

/// Options that mean nothing here: they tell mount(8), systemd or fsck what to do, or say what is
/// so anyway. A remount repeats those that the kernel shows.
const FOR_OTHERS: &[&str] = &[
    "_netdev",
    "auto",
    "default_permissions",
    "group",
    "nofail",
    "noauto",
    "noowner",
    "nouser",
    "owner",
    "silent",
    "user",
    "users",
];
/// The beginnings of such options.
const FOR_OTHERS_BEGIN: &[&str] =
    &["x-", "X-", "comment=", "user_id=", "group_id=", "user=", "uhelper=", "helper="];

/// A list of options, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MountWords {
    /// Those of the kernel.
    pub(crate) kernel: KernelOptions,
    /// The words that `kernel` was made of, for another process.
    pub(crate) kernel_words: Vec<String>,
    /// Settings, as `KEY=VALUE`.
    pub(crate) settings: Vec<String>,
    /// Change the options of a mount that is there.
    pub(crate) remount: bool,
    /// With `remount`: only of this place, and not of the file system.
    pub(crate) bind: bool,
    /// The directory of the cluster's node that mounts.
    pub(crate) node: Option<PathBuf>,
}

impl MountWords {
    /// Reads a list of options. With `ignore_unknown` those that nobody knows are left out.
    ///
    /// # Errors
    /// `Invalid` for an option that nobody knows; the message says where to look.
    pub(crate) fn parse(list: &str, ignore_unknown: bool) -> Result<MountWords> {
        let mut words = MountWords::default();
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            if words.kernel.add(word) {
                words.kernel_words.push(word.to_owned());
            } else if word == "remount" {
                words.remount = true;
            } else if word == "bind" {
                words.bind = true;
            } else if let Some(node) = word.strip_prefix("node=") {
                words.node = Some(node.into());
            } else if FOR_OTHERS.contains(&word)
                || FOR_OTHERS_BEGIN.iter().any(|begin| word.starts_with(begin))
            {
            } else if let Err(error) = crate::settings::Settings::default().set(word) {
                if !ignore_unknown {
                    let advice = "mount.strake(8) lists the options of a mount";
                    let detail = format!("option '{word}': {advice}; {}", error.detail());
                    return Err(Error::new(ErrorKind::Invalid, detail));
                }
            } else {
                words.settings.push(word.to_owned());
            }
        }
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_sorted_by_who_takes_them() {
        let list = "rw,noatime,_netdev,nofail,x-systemd.requires=a.service,pagepool=64M,\
                    node=/srv/strake,user_id=0";
        let words = MountWords::parse(list, false).expect("all are known");
        assert_eq!(words.kernel_words, ["rw", "noatime"]);
        assert_eq!(words.settings, ["pagepool=64M"]);
        assert_eq!(words.node, Some("/srv/strake".into()));
        assert!(!words.remount);
        assert!(MountWords::parse("remount,ro", false).expect("known").remount);
        let error = MountWords::parse("ro,fast", false).expect_err("nobody knows it");
        assert!(error.to_string().contains("'fast'"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let error = MountWords::parse("pagepool=1K", false).expect_err("too small");
        assert!(error.to_string().contains("16 MiB"), "{error}");
        let left = MountWords::parse("ro,fast", true).expect("left out");
        assert_eq!(left.kernel_words, ["ro"]);
    }
}
