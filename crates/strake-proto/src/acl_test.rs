//! ACLs against Linux's rules, and fuzzing of their codec.

use super::*;
use crate::attr::Timestamp;
use crate::ids::{Generation, Ino};

fn entry(tag: AclTag, permissions: u32) -> AclEntry {
    AclEntry { tag, permissions }
}

fn acl(entries: &[AclEntry]) -> Acl {
    Acl::new(entries.to_vec()).expect("a valid ACL")
}

/// `u::rwx,u:7:rw-,g::r-x,g:8:-wx,m::rw-,o::r--`
fn full() -> Acl {
    acl(&[
        entry(AclTag::Owner, 7),
        entry(AclTag::User(7), 6),
        entry(AclTag::OwningGroup, 5),
        entry(AclTag::Group(8), 3),
        entry(AclTag::Mask, 6),
        entry(AclTag::Others, 4),
    ])
}

fn attr(uid: u32, gid: u32, permissions: u32) -> Attr {
    Attr {
        ino: Ino(5),
        generation: Generation(1),
        file_type: FileType::Regular,
        permissions,
        links: 1,
        uid,
        gid,
        rdev: 0,
        size: 0,
        allocated: 0,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        btime: Timestamp::default(),
    }
}

/// SplitMix64. The real generator is in a crate above this one.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 7
}

#[test]
fn the_form_is_that_of_linux() {
    let bytes = acl(&[
        entry(AclTag::Owner, 7),
        entry(AclTag::User(1000), 6),
        entry(AclTag::OwningGroup, 5),
        entry(AclTag::Mask, 7),
        entry(AclTag::Others, 0),
    ])
    .to_xattr();
    // On ext4, `getfattr -e hex` shows this after `setfacl -m u:1000:rw` on a file of mode 0750.
    let golden = "0200000001000700ffffffff02000600e803000004000500ffffffff10000700ffffffff\
                  20000000ffffffff";
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, golden);
    assert_eq!(Acl::from_xattr(&full().to_xattr()), Ok(Some(full())));
}

#[test]
fn what_linux_refuses_is_refused() {
    assert_eq!(Acl::from_xattr(b""), Ok(None));
    assert_eq!(Acl::from_xattr(&[2, 0, 0, 0]), Ok(None));
    let kind = |bytes: &[u8]| Acl::from_xattr(bytes).expect_err("malformed").kind();
    assert_eq!(kind(&[2, 0, 0]), ErrorKind::Invalid);
    assert_eq!(kind(&[1, 0, 0, 0]), ErrorKind::NotSupported);
    assert_eq!(kind(&[2, 0, 0, 0, 1]), ErrorKind::Invalid);
    let owner = entry(AclTag::Owner, 7);
    let group = entry(AclTag::OwningGroup, 7);
    let others = entry(AclTag::Others, 7);
    let user = entry(AclTag::User(1), 7);
    let mask = entry(AclTag::Mask, 7);
    for bad in [
        vec![owner, group],
        vec![group, owner, others],
        vec![owner, user, group, others],
        vec![owner, group, mask],
        vec![owner, owner, group, others],
        vec![owner, group, others, others],
        vec![owner, group, mask, mask, others],
        vec![owner, group, user, mask, others],
        vec![entry(AclTag::Owner, 8), group, others],
        vec![owner, entry(AclTag::User(u32::MAX), 7), group, mask, others],
    ] {
        assert!(Acl::new(bad.clone()).is_err(), "{bad:?}");
    }
    assert!(Acl::new(vec![owner, group, mask, others]).is_ok());
}

#[test]
fn chmod_moves_the_mask_and_spares_the_owning_group() {
    let mut list = full();
    list.change_mode(0o510);
    assert_eq!(list.mode(), 0o510);
    assert_eq!(list.entries()[2], entry(AclTag::OwningGroup, 5));
    assert_eq!(list.entries()[4], entry(AclTag::Mask, 1));
    let mut plain =
        acl(&[entry(AclTag::Owner, 7), entry(AclTag::OwningGroup, 7), entry(AclTag::Others, 7)]);
    plain.change_mode(0o640);
    assert_eq!(plain.mode(), 0o640);
    assert!(plain.is_mode_alone());
}

#[test]
fn a_new_inode_gets_at_most_what_its_creator_asked_for() {
    let (mode, access) = full().inherit(0o4_640);
    assert_eq!(mode, 0o4_640);
    let access = access.expect("named entries need a list");
    assert_eq!(access.entries()[1], entry(AclTag::User(7), 6));
    assert_eq!(access.entries()[4], entry(AclTag::Mask, 4));
    let plain =
        acl(&[entry(AclTag::Owner, 7), entry(AclTag::OwningGroup, 5), entry(AclTag::Others, 0)]);
    assert_eq!(plain.inherit(0o666), (0o640, None));
}

#[test]
fn access_follows_owner_user_groups_others() {
    let list = full();
    let file = attr(1, 2, list.mode());
    let check = |uid: u32, groups: &[u32], want: u32| {
        permits(&file, Some(&list), uid, &mut |group| groups.contains(&group), want)
    };
    assert!(check(1, &[], 7), "the owner's own entry, unmasked");
    assert!(check(7, &[2, 8], 6) && !check(7, &[2, 8], 1), "a named user stops the search");
    assert!(check(9, &[2], READ) && !check(9, &[2], EXECUTE), "the mask cuts execute");
    assert!(check(9, &[8], WRITE) && !check(9, &[8], READ), "a member never falls to others");
    assert!(!check(9, &[2, 8], READ | WRITE), "no single group grants both");
    assert!(check(9, &[], READ) && !check(9, &[], WRITE));
    assert!(check(0, &[], 7), "the superuser, as someone may execute");
    assert!(!permits(&attr(1, 2, 0o666), None, 0, &mut |_| false, EXECUTE));
}

#[test]
fn mode_bits_alone_ask_for_groups_only_when_it_matters() {
    let never = &mut |_| panic!("not to be asked");
    assert!(permits(&attr(1, 2, 0o644), None, 9, never, READ));
    assert!(!permits(&attr(1, 2, 0o604), None, 9, &mut |group| group == 2, READ));
    assert!(permits(&attr(1, 2, 0o604), None, 9, &mut |_| false, READ));
    // The mask of this ACL is empty, so the bits of group and others decide.
    let mut list = full();
    list.change_mode(0o704);
    let file = attr(1, 2, 0o704);
    assert!(permits(&file, Some(&list), 7, &mut |_| false, READ));
}

#[test]
fn random_bytes_never_panic_and_what_is_read_is_written_alike() {
    let mut seed = 11;
    let mut read = 0;
    for _ in 0..200_000 {
        let mut bytes = full().to_xattr();
        for _ in 0..random(&mut seed) % 4 {
            let at = random(&mut seed) as usize % bytes.len();
            bytes[at] = random(&mut seed) as u8;
        }
        bytes.truncate(bytes.len() - (random(&mut seed) as usize % 3) * 8);
        if let Ok(Some(list)) = Acl::from_xattr(&bytes) {
            read += 1;
            let again = Acl::from_xattr(&list.to_xattr()).expect("written by us");
            assert_eq!(again.as_ref(), Some(&list));
            let wanted = random(&mut seed) as u32 & 0o7777;
            let (mode, access) = list.inherit(wanted);
            assert_eq!(mode & !wanted, 0, "inheriting never adds a bit");
            if let Some(access) = access {
                assert_eq!(access.mode(), mode & 0o777);
            }
        }
    }
    assert!(read > 1000, "the fuzzer reaches valid lists: {read}");
}
