//! Makes a file system. All options are checked before anything is touched, and a failure leaves
//! nothing behind.

use crate::assemble;
use crate::data_dir::{DataDir, NodeConfig, NsdConfig};
use crate::output;
use crate::settings::Settings;
use std::path::{Path, PathBuf};
use strake_env::Rng;
use strake_net::SharedSecret;
use strake_proto::limits::{BLOCK_SIZE_DEFAULT, BLOCK_SIZE_MAX, BLOCK_SIZE_MIN};
use strake_proto::{ByteCount, Code, Error, ErrorKind, Result};

/// The code if `--code` is not given.
pub(crate) const CODE_DEFAULT: Code = Code { data: 4, parity: 2 };
/// The least number of directory NSDs that are made if `--nsds` is not given.
const NSDS_MIN: u16 = 4;
/// The most NSDs that one file system can have.
const NSDS_MAX: u16 = strake_proto::limits::SLOTS_MAX as u16;
/// The percentage of the free space that containers of default size share. The host keeps the
/// rest.
const FREE_SPACE_PERCENT: u64 = 90;

/// The options of `strake up` that apply when a file system is made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) nsds: Option<u16>,
    pub(crate) nsd_size: Option<ByteCount>,
    pub(crate) nsd_paths: Vec<String>,
    pub(crate) code: Option<Code>,
    pub(crate) block_size: Option<ByteCount>,
    pub(crate) name: Option<String>,
    pub(crate) prealloc: bool,
    pub(crate) force: bool,
}

impl Wanted {
    fn code(&self) -> Code {
        self.code.unwrap_or(CODE_DEFAULT)
    }

    fn count(&self) -> u16 {
        if !self.nsd_paths.is_empty() {
            return u16::try_from(self.nsd_paths.len()).unwrap_or(u16::MAX);
        }
        self.nsds.unwrap_or_else(|| NSDS_MIN.max(self.code().width() as u16))
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Refuses options of which no file system can be made.
///
/// # Errors
/// `Invalid`; the message says what to write instead.
pub(crate) fn check(wanted: &Wanted) -> Result<()> {
    let (code, count) = (wanted.code(), wanted.count());
    if usize::from(count) < code.width() {
        return Err(invalid(format!(
            "code {code} needs {} NSDs, {count} are named: add NSDs or choose a narrower code",
            code.width()
        )));
    }
    if count > NSDS_MAX {
        return Err(invalid(format!("at most {NSDS_MAX} NSDs, not {count}")));
    }
    wanted.block_size.map_or(Ok(()), check_block_size)?;
    if let Some(size) = wanted.nsd_size
        && size < ByteCount::mib(64)
    {
        return Err(invalid(format!("--nsd-size {size}: an NSD has at least 64 MiB")));
    }
    if let Some(name) = &wanted.name {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 63 || !name.chars().all(fits) {
            return Err(invalid(format!(
                "--name '{name}': letters, digits, '-', '_' and '.', at most 63"
            )));
        }
    }
    let mut paths = Vec::new();
    for text in &wanted.nsd_paths {
        let (path, _) = parse_nsd(text, 0)?;
        if paths.contains(&path) {
            return Err(invalid(format!("--nsd {} is named twice", path.display())));
        }
        paths.push(path);
    }
    Ok(())
}

/// Refuses what is no block size.
///
/// # Errors
/// `Invalid`; the message says what is one.
pub(crate) fn check_block_size(size: ByteCount) -> Result<()> {
    if !size.0.is_power_of_two() || size < BLOCK_SIZE_MIN || size > BLOCK_SIZE_MAX {
        return Err(invalid(format!(
            "--block-size {size}: a power of two from {BLOCK_SIZE_MIN} to {BLOCK_SIZE_MAX}"
        )));
    }
    Ok(())
}

/// Reads `PATH[:GROUP]`.
fn parse_nsd(text: &str, default_group: u32) -> Result<(PathBuf, u32)> {
    let (path, group) = match text.rsplit_once(':') {
        Some((path, group)) if !group.contains('/') => {
            let group = group.parse().map_err(|_| {
                invalid(format!("--nsd {text}: the failure group after ':' is a whole number"))
            })?;
            (path, group)
        }
        _ => (text, default_group),
    };
    if path.is_empty() {
        return Err(invalid(format!("--nsd {text}: no path before ':'")));
    }
    Ok((std::path::absolute(path)?, group))
}

/// Refuses options that contradict the file system that is there.
///
/// # Errors
/// `Invalid`; the message names the option and what the file system has.
pub(crate) fn agree(dir: &DataDir, config: &NodeConfig, wanted: &Wanted) -> Result<()> {
    let there = |option: &str, has: String| {
        Err(invalid(format!(
            "the file system at {} has {has}: leave out {option} or make it agree",
            dir.root().display()
        )))
    };
    if wanted.code.is_some_and(|code| code.to_string() != config.code) {
        return there("--code", format!("code {}", config.code));
    }
    if wanted.block_size.is_some_and(|size| size.0 != u64::from(config.block_size)) {
        return there("--block-size", ByteCount(config.block_size.into()).to_string());
    }
    if wanted.nsds.is_some_and(|count| usize::from(count) != config.nsd.len()) {
        return there("--nsds", format!("{} NSDs", config.nsd.len()));
    }
    if wanted.name.as_ref().is_some_and(|name| *name != config.name) {
        return there("--name", format!("the name {}", config.name));
    }
    if !wanted.nsd_paths.is_empty() {
        let mut named = Vec::new();
        for (text, nsd) in wanted.nsd_paths.iter().zip(&config.nsd) {
            named.push(parse_nsd(text, nsd.failure_group)?);
        }
        let has: Vec<(PathBuf, u32)> =
            config.nsd.iter().map(|nsd| (dir.root().join(&nsd.path), nsd.failure_group)).collect();
        if named != has || wanted.nsd_paths.len() != config.nsd.len() {
            let list: Vec<String> =
                has.iter().map(|(path, group)| format!("{}:{group}", path.display())).collect();
            return there("--nsd", format!("the NSDs {}", list.join(" ")));
        }
    }
    if let Some(size) = wanted.nsd_size {
        for nsd in &config.nsd {
            let path = dir.container_path(nsd);
            // A container that is away cannot be compared; `up` reports it as missing.
            if let Ok(found) = std::fs::metadata(&path)
                && found.is_file()
                && found.len() != round_size(size.0)
            {
                return there("--nsd-size", format!("NSDs of {}", ByteCount(found.len())));
            }
        }
    }
    Ok(())
}

fn round_size(bytes: u64) -> u64 {
    bytes / (1 << 20) * (1 << 20)
}

/// Refuses a directory that holds anything.
///
/// # Errors
/// `Invalid`; the message names something that is there.
pub(crate) fn refuse_used_directory(dir: &DataDir) -> Result<()> {
    let Ok(mut entries) = std::fs::read_dir(dir.root()) else { return Ok(()) };
    if let Some(entry) = entries.find_map(|entry| entry.ok()) {
        return Err(invalid(format!(
            "{} is not empty (it holds {}) and has no file system: name an empty or new directory",
            dir.root().display(),
            entry.file_name().to_string_lossy()
        )));
    }
    Ok(())
}

/// Makes the file system. On failure it removes what it made.
///
/// # Errors
/// The host's errors, and refusals of devices that are in use.
pub(crate) fn create(dir: &DataDir, wanted: &Wanted, mount: &Path) -> Result<NodeConfig> {
    let existed = dir.root().exists();
    std::fs::create_dir_all(dir.root())
        .map_err(|error| Error::from(error).context(dir.root().display()))?;
    let mut made = Vec::new();
    let result = try_create(dir, wanted, mount, &mut made);
    if result.is_err() {
        for path in made.iter().rev() {
            let removed =
                if path.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) };
            if let Err(error) = removed {
                output::tell(&format_args!("cannot remove {}: {error}", path.display()));
            }
        }
        if !existed {
            let _ = std::fs::remove_dir(dir.root());
        }
    }
    result
}

fn try_create(
    dir: &DataDir,
    wanted: &Wanted,
    mount: &Path,
    made: &mut Vec<PathBuf>,
) -> Result<NodeConfig> {
    let mut nsds = Vec::new();
    for index in 0..wanted.count() {
        let id = u32::from(index) + 1;
        let name = format!("nsd{id}");
        let (path, failure_group) = match wanted.nsd_paths.get(usize::from(index)) {
            Some(text) => parse_nsd(text, id)?,
            None => (PathBuf::from(&name), id),
        };
        nsds.push(NsdConfig { id, name, path, failure_group, shared: None });
    }
    let mut rng = Rng::from_entropy()?;
    let mut cluster = [0u8; 16];
    rng.fill(&mut cluster);
    let config = NodeConfig {
        version: 1,
        name: wanted.name.clone().unwrap_or_else(|| "strake".to_owned()),
        cluster: strake_proto::ClusterId(cluster).to_string(),
        code: wanted.code().to_string(),
        block_size: wanted.block_size.unwrap_or(BLOCK_SIZE_DEFAULT).0 as u32,
        mount: mount.to_owned(),
        node: None,
        nsd: nsds,
        settings: Settings::default(),
    };
    SharedSecret::generate()?.store(&dir.secret_path())?;
    made.push(dir.secret_path());
    let size = match wanted.nsd_size {
        Some(size) => size.0,
        None => default_size(dir, &config.nsd)?,
    };
    assemble::format(dir, &config, round_size(size), wanted, &mut rng, made)?;
    dir.write_config(&config)?;
    Ok(config)
}

/// An equal part of the free space of the host file systems that hold container files.
///
/// # Errors
/// `NoSpace` if that is less than an NSD needs; the host's.
pub(crate) fn default_size(dir: &DataDir, nsds: &[NsdConfig]) -> Result<u64> {
    let mut least = u64::MAX;
    for nsd in nsds {
        let path = dir.root().join(&nsd.path);
        let host = path.ancestors().find(|path| path.exists()).unwrap_or(dir.root());
        let space = rustix::fs::statvfs(host).map_err(std::io::Error::from)?;
        least = least.min(space.f_bavail.saturating_mul(space.f_frsize));
    }
    let each = least / 100 * FREE_SPACE_PERCENT / nsds.len() as u64;
    if each < ByteCount::mib(64).0 {
        return Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "{} is free, too little for {} NSDs of at least 64 MiB",
                ByteCount(least),
                nsds.len()
            ),
        ));
    }
    Ok(each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_made_is_refused_with_advice() {
        let narrow = Wanted { nsds: Some(5), ..Wanted::default() };
        assert!(check(&narrow).expect_err("5 < 6").to_string().contains("needs 6 NSDs"));
        let odd = Wanted { block_size: Some(ByteCount(3 << 20)), ..Wanted::default() };
        assert!(check(&odd).expect_err("no power of two").to_string().contains("power of two"));
        let twice = Wanted {
            code: Some(Code { data: 1, parity: 1 }),
            nsd_paths: vec!["/a:1".into(), "/a:2".into()],
            ..Wanted::default()
        };
        assert!(check(&twice).expect_err("twice").to_string().contains("twice"));
        assert!(check(&Wanted::default()).is_ok());
    }

    #[test]
    fn nsds_are_read_with_and_without_group() {
        assert_eq!(parse_nsd("/dev/sdb:4005", 7).expect("ok"), ("/dev/sdb".into(), 4005));
        assert_eq!(parse_nsd("/dev/sdb", 7).expect("ok"), ("/dev/sdb".into(), 7));
        assert_eq!(parse_nsd("/odd:dir/x", 7).expect("ok"), ("/odd:dir/x".into(), 7));
        assert!(parse_nsd("/dev/sdb:one", 7).is_err());
        assert!(parse_nsd(":1", 7).is_err());
    }
}
