//! Records of all tasks tile their files, whatever the layout.

use super::*;
use crate::pattern::Dice;

pub(crate) fn phase() -> Phase {
    Phase {
        operation: Operation::Create,
        pattern: Pattern::Sequential,
        record_bytes: 4096,
        records: 16,
        visits: Vec::new(),
        layout: Layout::FilePerTask,
        files: Files::Scratch(0),
        direct: false,
        fsync: Counting::No,
        fsync_each: false,
        close_counted: true,
        cache: CacheFlush::Keep,
        verify: true,
        hint_records: 8,
        seed: 1,
        shift: 0,
        generation: 0,
        stonewall_seconds: None,
    }
}

#[test]
fn all_tasks_together_touch_every_record_of_every_file_once() {
    for seed in 0..500 {
        let mut dice = Dice::new(seed);
        let tasks = 1 + dice.below(9) as u32;
        let mut phase = phase();
        phase.layout =
            [Layout::FilePerTask, Layout::Segmented, Layout::Interleaved][dice.below(3) as usize];
        phase.pattern = [
            Pattern::Sequential,
            Pattern::Backward,
            Pattern::Random,
            Pattern::Strided { skip: dice.below(20) },
            Pattern::SemiRandom { window: 1 + dice.below(9) },
        ][dice.below(5) as usize];
        phase.record_bytes = 1 + dice.below(9_000);
        phase.records = 1 + dice.below(60);
        phase.shift = dice.below(12) as u32;
        phase.validate(tasks).unwrap();
        let mut touched = std::collections::BTreeMap::new();
        for rank in 0..tasks {
            let owner = phase.owner(rank, tasks);
            for record in phase.pattern.order(phase.records, phase.order_seed(owner)) {
                let place = (phase.file_number(owner), phase.offset(owner, tasks, record));
                *touched.entry(place).or_insert(0) += 1;
            }
        }
        let files = if phase.layout == Layout::FilePerTask { u64::from(tasks) } else { 1 };
        let per_file = phase.records * u64::from(tasks) / files;
        let wanted: std::collections::BTreeMap<_, _> = (0..files)
            .flat_map(|file| (0..per_file).map(move |record| (file, record)))
            .map(|(file, record)| ((file, record * phase.record_bytes), 1))
            .collect();
        assert_eq!(touched, wanted, "seed {seed}: {tasks} tasks, {phase:?}");
    }
}

#[test]
fn ior_hard_lies_as_ior_lays_it() {
    // Two tasks, 47,008-byte records in turn: task 1's third record is the sixth of the file.
    let mut phase = phase();
    phase.layout = Layout::Interleaved;
    phase.record_bytes = 47_008;
    phase.records = 8_000;
    assert_eq!(phase.offset(1, 2, 2), 5 * 47_008);
    phase.shift = 1;
    assert_eq!((phase.owner(0, 2), phase.owner(1, 2)), (1, 0));
}

#[test]
fn impossible_phases_are_refused() {
    let refused = |change: fn(&mut Phase)| {
        let mut phase = phase();
        change(&mut phase);
        phase.validate(4).is_err()
    };
    assert!(!refused(|_| {}));
    assert!(refused(|phase| phase.record_bytes = 0));
    assert!(refused(|phase| phase.record_bytes = 1 << 40));
    assert!(refused(|phase| phase.records = 0));
    assert!(refused(|phase| phase.records = u64::MAX / 4));
    assert!(refused(|phase| phase.visits = vec![1; 3]));
    assert!(refused(|phase| phase.visits = vec![17; 4]));
    assert!(refused(|phase| {
        phase.direct = true;
        phase.record_bytes = 47_008 + 1;
    }));
}
