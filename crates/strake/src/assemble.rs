//! Makes and opens the parts that lie on disks: containers, block stores, metadata. The client on
//! top of them is put together in `daemon/serve.rs`.

use crate::create::Wanted;
use crate::data_dir::{CONTAINER_FILE, DataDir, NodeConfig, NsdConfig};
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use strake_env::disk::file::{Allocation, FileDisk};
use strake_env::disk::guarded::{GuardedDisk, Permit};
use strake_env::disk::relieved::{Hosts, RelievedDisk, SpaceGiver};
use strake_env::{Clock, Disk, RealClock, Rng};
use strake_meta::{MetaOptions, MetaStore};
use strake_nsd::{BlockStore, BlockStoreOptions, Service};
use strake_observe::{MeasuredDisk, Observe};
use strake_proto::meta::{AttrChange, Configuration, MetaEntry, MetaOp, MetaPort};
use strake_proto::{ClientId, Error, ErrorKind, FsId, Ino, NsdId, PoolMap, Result};
use strake_store::Container;
use strake_store::container::FormatOptions;
use strake_store::superblock::{COPY_OFFSETS, SUPERBLOCK_BYTES, Superblock};

/// The id of the file system in strips. Each NSD belongs to one file system, so it is always the
/// same.
const FS: FsId = FsId(1);
/// The file in the data directory that knows the newest generation of the metadata.
const WITNESS_FILE: &str = "witness";
/// The cache of each copy of the metadata takes one part in so many of the page pool's size, but
/// no less and no more than the two limits below.
const META_CACHE_PARTS: u64 = 64;
const META_CACHE_BYTES_MIN: u64 = 32 << 20;
const META_CACHE_BYTES_MAX: u64 = 1 << 30;

/// Makes containers, block stores and the first metadata. `made` collects what the caller removes
/// if a later step fails, parents before children.
pub(crate) fn format(
    dir: &DataDir,
    config: &NodeConfig,
    size: u64,
    wanted: &Wanted,
    rng: &mut Rng,
    made: &mut Vec<PathBuf>,
) -> Result<()> {
    let cluster = config.cluster_id()?;
    let observe = Observe::new(RealClock::shared(), 512);
    let mut stores = Vec::new();
    let mut containers = Vec::new();
    for nsd in &config.nsd {
        let disk = make_disk(dir, nsd, size, wanted, made)
            .map_err(|error| error.context(format!("NSD {}", nsd.path.display())))?;
        let options = FormatOptions {
            cluster,
            nsd: NsdId(nsd.id),
            fs: FS,
            failure_group: nsd.failure_group,
            seed: rng.next_u64(),
        };
        let container = Container::format(Arc::new(disk), &options)
            .map_err(|error| error.context(format!("NSD {}", nsd.path.display())))?;
        stores.push(BlockStore::open(container.clone(), BlockStoreOptions::new(&observe))?);
        containers.push(container);
    }
    let configuration = Configuration {
        cluster,
        name: config.name.clone(),
        code: config.code.parse()?,
        block_size: config.block_size,
        pool: PoolMap::new(config.nsd.iter().map(|nsd| (NsdId(nsd.id), nsd.failure_group))),
        created: RealClock.wall(),
        settings: Vec::new(),
        incompat_flags: 0,
        compat_flags: 0,
    };
    let mut options = MetaOptions::new(Arc::clone(&observe.waiters));
    options.witness = Some(witness(dir, Some(made))?);
    let meta = MetaStore::format(&containers, &configuration, options)?;
    give_root_directory(&meta)?;
    meta.checkpoint()?;
    stores.iter().for_each(|store| store.end());
    Ok(())
}

/// Makes an NSD empty that this node has and that belongs to no file system. Then `prepare` does
/// what else the container needs.
///
/// # Errors
/// The disk's.
pub(crate) fn format_again(
    dir: &DataDir,
    config: &NodeConfig,
    nsd: &NsdConfig,
    prepare: &dyn Fn(&Container) -> Result<()>,
) -> Result<()> {
    let about = |error: Error| error.context(format!("NSD {}", nsd.name));
    let format = || -> Result<()> {
        let disk: Arc<dyn Disk> = Arc::new(FileDisk::open(&dir.container_path(nsd))?);
        // An NSD of another cluster may have been put in its place.
        let found = Container::open(Arc::clone(&disk))?.superblock();
        if found.cluster != config.cluster_id()? || found.nsd != NsdId(nsd.id) {
            let detail = "its place holds another NSD";
            return Err(Error::new(ErrorKind::Invalid, detail));
        }
        let options = FormatOptions {
            cluster: config.cluster_id()?,
            nsd: NsdId(nsd.id),
            fs: FS,
            failure_group: nsd.failure_group,
            seed: Rng::from_entropy()?.next_u64(),
        };
        let container = Container::format(disk, &options)?;
        let observe = Observe::new(RealClock::shared(), 512);
        let store = BlockStore::open(container.clone(), BlockStoreOptions::new(&observe))?;
        let prepared = prepare(&container);
        store.end();
        prepared
    };
    format().map_err(about)
}

/// Gives the root directory to the user who makes the file system. Otherwise an ordinary user
/// could do nothing in it.
pub(crate) fn give_root_directory(meta: &dyn MetaPort) -> Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    if (uid, gid) == (0, 0) {
        return Ok(());
    }
    let change = AttrChange { uid: Some(uid), gid: Some(gid), ..AttrChange::default() };
    let op = MetaOp::SetAttr { ino: Ino::ROOT, change };
    let entry = MetaEntry { client: ClientId(1), sequence: 0, time: RealClock.wall(), op };
    meta.apply(&entry).map(drop)
}

/// Makes the container of one more NSD. Without `size` it gets as large as the largest container
/// there is.
///
/// # Errors
/// `Invalid` if the place is in use. Otherwise the host's errors.
pub(crate) fn format_one(
    dir: &DataDir,
    config: &NodeConfig,
    nsd: &NsdConfig,
    size: Option<u64>,
    force: bool,
) -> Result<()> {
    let lengths = config.nsd.iter().filter_map(|other| {
        let found = std::fs::metadata(dir.container_path(other)).ok()?;
        found.is_file().then_some(found.len())
    });
    let size = size
        .or(lengths.max())
        .ok_or_else(|| Error::new(ErrorKind::Invalid, "name the new disk's size: --size SIZE"));
    // A device has a size of its own.
    let size = if is_device(&dir.root().join(&nsd.path)) { 0 } else { size? };
    let mut made = Vec::new();
    let wanted = Wanted { force, ..Wanted::default() };
    let result = make_disk(dir, nsd, size >> 20 << 20, &wanted, &mut made).and_then(|disk| {
        let options = FormatOptions {
            cluster: config.cluster_id()?,
            nsd: NsdId(nsd.id),
            fs: FS,
            failure_group: nsd.failure_group,
            seed: Rng::from_entropy()?.next_u64(),
        };
        Container::format(Arc::new(disk), &options).map(drop)
    });
    result.map_err(|error| {
        for path in made.iter().rev() {
            let _ =
                if path.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) };
        }
        advise(error, &nsd.path)
    })
}

/// Adds advice to an error that is about the place of a new container.
fn advise(error: Error, path: &std::path::Path) -> Error {
    use ErrorKind as Kind;
    let path = path.display();
    let is_of_the_place = matches!(
        error.kind(),
        Kind::NotFound
            | Kind::NotDirectory
            | Kind::IsDirectory
            | Kind::Access
            | Kind::NotPermitted
            | Kind::ReadOnly
            | Kind::Exists
            | Kind::NotEmpty
            | Kind::NameTooLong
            | Kind::Busy
            | Kind::Invalid
    );
    match error.kind() {
        Kind::NoSpace => error.context(format!("{path}: name a smaller --size, or another place")),
        _ if is_of_the_place => Error::new(
            Kind::Invalid,
            format!("{path}: {error}: name a new or empty directory, or a block device"),
        ),
        _ => error.context(path),
    }
}

/// The length of an NSD's container. `None` if it is missing or is not a file.
pub(crate) fn container_bytes(dir: &DataDir, nsd: &NsdConfig) -> Option<u64> {
    let found = std::fs::metadata(dir.container_path(nsd)).ok()?;
    found.is_file().then_some(found.len())
}

/// Deletes a container that cannot be used, so that another can be made in its place. A block
/// device is left as it is.
///
/// # Errors
/// The host's.
pub(crate) fn clear_place(dir: &DataDir, nsd: &NsdConfig) -> Result<()> {
    if is_device(&dir.root().join(&nsd.path)) {
        return Ok(());
    }
    match std::fs::remove_file(dir.container_path(nsd)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// True if a block device is at `path`.
pub(crate) fn is_device(path: &std::path::Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

fn make_disk(
    dir: &DataDir,
    nsd: &NsdConfig,
    size: u64,
    wanted: &Wanted,
    made: &mut Vec<PathBuf>,
) -> Result<FileDisk> {
    let path = dir.root().join(&nsd.path);
    let kind = std::fs::metadata(&path).map(|found| found.file_type());
    match kind {
        Ok(kind) if kind.is_block_device() => {
            return FileDisk::take_device(&path, wanted.force).map_err(|error| {
                let advice = "--force takes it all the same, and what it holds is lost";
                let refused = error.kind() == std::io::ErrorKind::AlreadyExists;
                let error = Error::from(error);
                if refused {
                    return Error::new(ErrorKind::Invalid, format!("{error} ({advice})"));
                }
                error
            });
        }
        Ok(kind) if kind.is_dir() => {}
        Ok(_) => {
            return Err(Error::new(ErrorKind::Invalid, "neither a directory nor a block device"));
        }
        Err(_) => {
            std::fs::create_dir(&path)?;
            made.push(path.clone());
        }
    }
    let file = path.join(CONTAINER_FILE);
    if file.exists() {
        return Err(Error::new(
            ErrorKind::Invalid,
            format!("{} is there already: name an empty directory", file.display()),
        ));
    }
    let allocation = if wanted.prealloc { Allocation::Preallocated } else { Allocation::Sparse };
    let disk = FileDisk::create(&file, size, allocation)?;
    made.push(file);
    Ok(disk)
}

/// Opens the witness, and makes it if it is missing. A new one is added to `made`.
fn witness(dir: &DataDir, made: Option<&mut Vec<PathBuf>>) -> Result<Arc<dyn Disk>> {
    let path = dir.root().join(WITNESS_FILE);
    if !path.exists() {
        let disk = FileDisk::create(&path, strake_meta::WITNESS_BYTES, Allocation::Sparse)?;
        if let Some(made) = made {
            made.push(path);
        }
        return Ok(Arc::new(disk));
    }
    Ok(Arc::new(FileDisk::open(&path)?))
}

/// One NSD that could be opened.
pub(crate) struct OpenNsd {
    /// The file or device.
    pub(crate) file: Arc<FileDisk>,
    /// Stands between the file and everything else, so that a hang of this disk blocks nothing
    /// else.
    pub(crate) guard: Arc<GuardedDisk>,
    /// Its container, for the metadata's copies.
    pub(crate) container: Container,
    /// Its block store.
    pub(crate) store: Arc<BlockStore>,
}

/// Opens one NSD and checks that it is the one the configuration means. `permit` is there if other
/// nodes reach it, too.
pub(crate) fn open_nsd(
    dir: &DataDir,
    config: &NodeConfig,
    nsd: &NsdConfig,
    permit: Option<Arc<Permit>>,
    hosts: &Hosts,
    observe: &Arc<Observe>,
) -> Result<OpenNsd> {
    let path = dir.container_path(nsd);
    let open = || -> Result<OpenNsd> {
        let file = match &permit {
            Some(_) => FileDisk::open_shared(&path),
            None => FileDisk::open(&path),
        };
        let (file, limit) = (Arc::new(file?), config.settings.time("nsd_io_limit"));
        let disk = Arc::clone(&file) as Arc<dyn Disk>;
        let guard = Arc::new(GuardedDisk::under(permit.clone(), disk, limit));
        let host = hosts.host(file.identity()?.0);
        let (clock, time) = (RealClock::shared(), observe.disks.of(NsdId(nsd.id)));
        let measured = MeasuredDisk::new(Arc::clone(&guard) as Arc<dyn Disk>, clock, time);
        let disk = RelievedDisk::new(Arc::new(measured), Arc::clone(&host));
        let container = Container::open(Arc::new(disk))?;
        let superblock = container.superblock();
        if superblock.cluster != config.cluster_id()? || superblock.nsd != NsdId(nsd.id) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "it is NSD {} of cluster {}, not NSD {} of this one",
                    superblock.nsd, superblock.cluster, nsd.id
                ),
            ));
        }
        let service = match config.node {
            Some(_) => Service::UnderManager,
            None => Service::OneProcess,
        };
        let options = BlockStoreOptions { service, ..BlockStoreOptions::new(observe) };
        let store = BlockStore::open(container.clone(), options)?;
        host.add(Arc::downgrade(&store) as Weak<dyn SpaceGiver>);
        Ok(OpenNsd { file, guard, container, store })
    };
    open().map_err(|error| {
        let error = match error.kind() {
            ErrorKind::Corrupt => Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{error}: the disk counts as lost; `strake disk replace {} --in-place` fills \
                     it anew from the others",
                    nsd.name
                ),
            ),
            _ => error,
        };
        error.context(format!("{} ({})", nsd.name, path.display()))
    })
}

/// The size of the page pool: the setting `pagepool`, or a quarter of the machine's memory.
pub(crate) fn page_pool_bytes(config: &NodeConfig) -> Result<u64> {
    if let Some(bytes) = config.settings.number("pagepool") {
        return Ok(bytes);
    }
    Ok(memory_bytes()? / 4)
}

/// Bytes of the machine's memory.
///
/// # Errors
/// `Internal` if the kernel names nonsense.
pub(crate) fn memory_bytes() -> Result<u64> {
    let info = rustix::system::sysinfo();
    info.totalram.checked_mul(u64::from(info.mem_unit)).ok_or_else(|| {
        Error::new(ErrorKind::Internal, "the kernel names an impossible amount of memory")
    })
}

/// Opens the metadata on the containers that are there.
pub(crate) fn open_meta(
    dir: &DataDir,
    config: &NodeConfig,
    containers: &[Container],
    observe: &Arc<Observe>,
) -> Result<Arc<MetaStore>> {
    let mut options = MetaOptions::new(Arc::clone(&observe.waiters));
    options.witness = Some(witness(dir, None)?);
    // The minimum suits a directory with some ten thousand files, and more memory gives more. All
    // copies together stay well below the tenth of the pool that everything else may take.
    let cache = page_pool_bytes(config)? / META_CACHE_PARTS;
    options.cache_bytes = cache.clamp(META_CACHE_BYTES_MIN, META_CACHE_BYTES_MAX) as usize;
    Ok(Arc::new(MetaStore::open(containers, options)?))
}

/// The NSDs that hold the metadata, according to the newest superblock on any of them. The
/// function reads the files itself, so it works no matter which process has the disks open.
pub(crate) fn metadata_holders(dir: &DataDir, config: &NodeConfig) -> Vec<NsdId> {
    use std::os::unix::fs::FileExt;
    let mut newest = Superblock::default();
    for nsd in &config.nsd {
        let Ok(file) = std::fs::File::open(dir.container_path(nsd)) else { continue };
        for offset in COPY_OFFSETS {
            let mut bytes = [0; SUPERBLOCK_BYTES];
            if file.read_exact_at(&mut bytes, offset).is_ok()
                && let Ok(found) = Superblock::decode(&bytes)
                && found.metadata_generation > newest.metadata_generation
            {
                newest = found;
            }
        }
    }
    newest.metadata_holders
}
