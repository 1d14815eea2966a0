//! Settings of an NFS appliance: LVM, XFS, NFS server and NFS clients.

use crate::design::Tier;
use crate::tune::{Maker, Setting, Target, Wishes, short};
use crate::unit::MIB;

/// Adds all of them.
pub(crate) fn nfs(tier: &Tier, wishes: Wishes, make: &Maker, add: &mut dyn FnMut(Setting)) {
    volumes(tier, make, add);
    server(make, add);
    clients(wishes, make, add);
}

fn volumes(tier: &Tier, make: &Maker, add: &mut dyn FnMut(Setting)) {
    let storage = &tier.storage;
    let segment = short(storage.segment).to_lowercase();
    // A RAID 60 volume spans the arrays of one controller; its stripe unit stays the segment.
    let spans = storage.arrays_per_enclosure();
    let width = spans * storage.code.data;
    let level = if spans > 1 { format!("r60, {spans} spans") } else { "r6".into() };
    add(make.setting(
        Target::Controller,
        ("virtual disk", format!("{level}, stripe element {segment}")),
        vec![format!(
            "omconfig storage controller action=createvdisk controller=N raid={} size=max \
             stripesize={segment}b pdisk=…{}",
            if spans > 1 { "r60" } else { "r6" },
            if spans > 1 { format!(" spanlength={}", storage.code.width()) } else { String::new() }
        )],
        "one volume per controller, one span per array",
        "dell-nss: Configuring the LUNs on the MD1200",
    ));
    if storage.per_block == 1 {
        add(make.setting(
            Target::Nfs,
            ("mkfs.xfs", format!("su={segment},sw={width}")),
            vec![format!("mkfs.xfs -d su={segment},sw={width} -l size=128m /dev/sdX")],
            format!(
                "stripe unit = segment, stripe width = {spans} spans x {} data disks (the appendix \
                 of the guide prints a log of 64m, its main text 128m)",
                storage.code.data
            ),
            "dell-nss: Red Hat Scalable File System (XFS)",
        ));
    } else {
        let stripe = storage.segment * spans as f64;
        let volumes = storage.per_block;
        add(make.setting(
            Target::Nfs,
            ("LVM and mkfs.xfs", format!("{volumes} stripes of {}", short(stripe))),
            vec![
                "pvcreate /dev/sdb /dev/sdc".into(),
                "vgcreate VGName /dev/sdb /dev/sdc".into(),
                format!("lvcreate -i {volumes} -I {} -l 100%FREE VGName", stripe / 1024.0),
                "mkfs.xfs -l size=128m /dev/VGName/lvol0".into(),
            ],
            "stripes over the controllers, each one segment from every span; mkfs.xfs asks LVM \
             for the geometry",
            "dell-nss: LVM",
        ));
    }
    add(make.setting(
        Target::Nfs,
        ("mount options", "noatime,allocsize=1g,nobarrier,inode64,logbsize=262144".into()),
        vec![
            "mount -o noatime,allocsize=1g,nobarrier,inode64,logbsize=262144 /dev/sdX MOUNTPOINT"
                .into(),
        ],
        "nobarrier only because the controller's write cache has a battery; kernels from 4.19 on \
         no longer know it",
        "dell-nss: Red Hat Scalable File System (XFS)",
    ));
}

fn server(make: &Maker, add: &mut dyn FnMut(Setting)) {
    add(make.setting(
        Target::Nfs,
        ("nfsd threads", "256".into()),
        vec!["echo RPCNFSDCOUNT=256 >> /etc/sysconfig/nfs".into()],
        "8 by default; 256 balance reads and writes and enlarge the server's read-ahead",
        "dell-nss: NFS optimizations",
    ));
    add(make.setting(
        Target::Nfs,
        ("export", "sync (async is faster and loses data)".into()),
        vec!["echo \"/path/to/share *(rw,sync,no_root_squash)\" >> /etc/exports".into()],
        "the guide measures with async, which acknowledges what is only in memory and says itself \
         that a failure then loses it",
        "dell-nss: NFS optimizations",
    ));
    add(make.setting(
        Target::Server,
        ("I/O scheduler", "deadline".into()),
        vec!["elevator=deadline on the kernel line (mq-deadline on present kernels)".into()],
        "the fair scheduler starves processes under the seeks of many NFS clients",
        "dell-nss: NFS optimizations",
    ));
}

fn clients(wishes: Wishes, make: &Maker, add: &mut dyn FnMut(Setting)) {
    let rsize = wishes.rsize.unwrap_or(MIB);
    let receive = 2.5 * rsize;
    add(make.setting(
        Target::Nfs,
        ("tcp_rmem of the clients", format!("{receive:.0}")),
        vec![format!("sysctl -w net.ipv4.tcp_rmem=\"4096 {receive:.0} 16777216\"")],
        format!("2.5 x rsize {rsize:.0}"),
        "dell-nss: TCP/IP",
    ));
}
