//! Files without a name, beside other mounts.

use crate::ops::names::new_inode;
use crate::testing::Rig;
use strake_proto::meta::{MetaEntry, MetaOp, MetaReply};
use strake_proto::{Caller, ClientId, FileType, Ino, Timestamp};

/// Regression: when the leader looked for files that nobody has open before the maker had opened
/// its file, the file was gone.
#[test]
fn a_file_made_without_a_name_is_there_until_its_maker_opens_it_or_is_gone() {
    const MAKER: ClientId = ClientId(77);
    const OTHER: ClientId = ClientId(78);
    let rig = Rig::new("1", 1);
    let service = rig.tokens(&[]);
    [MAKER, OTHER].into_iter().for_each(|client| service.admit(client));
    let before = rig.inodes();
    let new = new_inode(&Caller::ROOT, FileType::Regular, 0o600);
    let op = MetaOp::CreateOrphan { parent: Ino::ROOT, new };
    let time = Timestamp { seconds: 2_000, nanos: 0 };
    let entry = MetaEntry { client: MAKER, sequence: 0, time, op };
    let made = service.metadata().apply(&entry).expect("made");
    assert!(matches!(made, MetaReply::Inode(_)), "{made:?}");
    // The service looks for files that nobody has open.
    service.gone(OTHER);
    assert_eq!(rig.inodes(), before + 1, "its maker opens it next");
    service.gone(MAKER);
    assert_eq!(rig.inodes(), before, "nobody will open it");
    service.stop();
}
