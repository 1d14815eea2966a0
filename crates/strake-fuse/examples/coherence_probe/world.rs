//! One file system in memory, mounted several times: each mount has a client of its own, and an
//! authority between them gives out tokens.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use strake_array::{Array, ArrayOptions};
use strake_client::tokens::FILES_MAX;
use strake_client::{Settings, StrakeVfs, Tokens, Vfs};
use strake_env::{Clock, RealClock};
use strake_fuse::{FuseMount, KernelOptions, MountOptions, StayAwake};
use strake_manager::TokenService;
use strake_observe::Observe;
use strake_proto::meta::{Configuration, MetaEntry, MetaOp, MetaPort};
use strake_proto::nsd::NsdPort;
use strake_proto::{ByteCount, ClientId, ClusterId, NsdId, PoolMap, Result, SlotIndex, Timestamp};
use strake_testing::{CrashMeta, MemoryNsd};
use strake_token::authority::Times;
use strake_token::port::ToClient;

const BLOCK_SIZE: u32 = 1 << 20;
const TIMES: Times =
    Times { hold_min: Duration::from_millis(2), repeat: Duration::from_millis(500) };

/// What all mounts share.
pub(crate) struct World {
    clock: Arc<dyn Clock>,
    nsd: Arc<MemoryNsd>,
    tokens: Arc<TokenService>,
    mounts: Vec<Mounted>,
}

struct Mounted {
    client: ClientId,
    path: PathBuf,
    vfs: Arc<StrakeVfs>,
    mount: FuseMount,
}

/// Reports what everybody waits for.
pub(crate) struct Hang {
    mounts: Vec<(PathBuf, Arc<Observe>)>,
    tokens: Arc<TokenService>,
}

impl Hang {
    pub(crate) fn report_and_abort(&self) -> ! {
        eprintln!("coherence_probe: it hangs");
        for wait in self.tokens.waits() {
            eprintln!("authority: {wait:?}");
        }
        for (path, observe) in &self.mounts {
            for wait in observe.waiters.snapshot_with_locks() {
                eprintln!("{}: {wait:?}", path.display());
            }
        }
        // A thread of this process may wait for one of its mounts, so that it could not end.
        for (path, _) in &self.mounts {
            let _ = Command::new("umount").args(["-f", "-l"]).arg(path).status();
        }
        std::process::abort();
    }
}

impl World {
    /// Mounts it `count` times, at `dir/0` and so on.
    pub(crate) fn mount(dir: &Path, count: u64) -> Result<World> {
        let mut world = World::new()?;
        for number in 0..count {
            let path = dir.join(number.to_string());
            std::fs::create_dir_all(&path)?;
            let mounted = world.mount_one(number, path)?;
            world.mounts.push(mounted);
        }
        Ok(world)
    }

    /// The place of `name` on one of the mounts.
    pub(crate) fn path(&self, mount: usize, name: &str) -> PathBuf {
        self.mounts[mount].path.join(name)
    }

    /// Who waits for a lock on one of the mounts, and what for.
    pub(crate) fn waits(&self, mount: usize) -> Vec<(String, String)> {
        let waits = self.mounts[mount].vfs.array().observe.waiters.snapshot().into_iter();
        waits.filter(|wait| wait.reason == "lock").map(|wait| (wait.thread, wait.detail)).collect()
    }

    /// The report, and the end, of a probe that hangs.
    pub(crate) fn hang(&self) -> Hang {
        let mounts = self
            .mounts
            .iter()
            .map(|mounted| (mounted.path.clone(), Arc::clone(&mounted.vfs.array().observe)));
        Hang { mounts: mounts.collect(), tokens: Arc::clone(&self.tokens) }
    }

    /// Unmounts all, in order.
    pub(crate) fn end(self) -> Result<()> {
        for mounted in &self.mounts {
            mounted.mount.unmount(true)?;
            mounted.mount.wait();
            mounted.vfs.shutdown()?;
            self.tokens.gone(mounted.client);
        }
        self.tokens.stop();
        Ok(())
    }

    fn new() -> Result<World> {
        let clock = RealClock::shared();
        let meta = CrashMeta::new();
        let created: Timestamp = clock.wall();
        let configuration = Configuration {
            cluster: ClusterId([9; 16]),
            name: "several".to_owned(),
            code: "1".parse()?,
            block_size: BLOCK_SIZE,
            pool: PoolMap::new([(NsdId(1), 0)]),
            created,
            settings: Vec::new(),
            incompat_flags: 0,
            compat_flags: 0,
        };
        let op = MetaOp::Format(Box::new(configuration));
        meta.apply(&MetaEntry { client: ClientId(0), sequence: 0, time: created, op })?;
        meta.sync()?;
        let meta = meta as Arc<dyn MetaPort>;
        let tokens = TokenService::start(&[], TIMES, meta, Arc::clone(&clock), Arc::new(()))?;
        Ok(World { clock, nsd: MemoryNsd::new(NsdId(1)), tokens, mounts: Vec::new() })
    }

    fn mount_one(&self, number: u64, path: PathBuf) -> Result<Mounted> {
        let client = ClientId(number + 1);
        let observe = Observe::new(Arc::clone(&self.clock), 512);
        let settings = Settings { page_pool: ByteCount::mib(64), ..Settings::default() };
        let array = Array::open(ArrayOptions {
            meta: self.tokens.metadata(),
            nsds: vec![(SlotIndex(0), Some(Arc::clone(&self.nsd) as Arc<dyn NsdPort>))],
            clock: Arc::clone(&self.clock),
            observe: Arc::clone(&observe),
            client,
            io_threads: settings.io_threads,
            beside_others: true,
            find: None,
        })?;
        let way = self.tokens.way_of(client);
        let clock = Arc::clone(&self.clock);
        let own = Tokens::new(self.tokens.term(), way, clock, Arc::clone(&observe), FILES_MAX);
        self.tokens.join(client, Arc::clone(&own) as Arc<dyn ToClient>);
        let vfs = StrakeVfs::start_with_tokens(array, settings, own)?;
        let options = MountOptions {
            name: "several".to_owned(),
            path: path.clone(),
            threads: 8,
            io_uring: false,
            stay_awake: StayAwake::Off,
            kernel: KernelOptions::default(),
        };
        let mount = FuseMount::mount(Arc::clone(&vfs) as Arc<dyn Vfs>, observe, &options)?;
        Ok(Mounted { client, path, vfs, mount })
    }
}
