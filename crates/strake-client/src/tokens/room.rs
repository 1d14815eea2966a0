//! Files are given back for room, several together.
//!
//! From the moment at which a file is to be given back no operation on it begins. So one sync after
//! that makes durable what was changed under the tokens of all of them. A program that makes more
//! files than a client keeps tokens of would else wait for a sync of each.

use super::{Job, State, Todo, Tokens};
use std::sync::Weak;
use strake_proto::Ino;
use strake_token::held::Limit;

/// The most files that are given back at a time. It is at most a third of all.
const BACK_TOGETHER_MAX: usize = 256;

/// The number of files that the authority is told of in one message.
const TOLD_TOGETHER: usize = 32;

impl Tokens {
    /// Gives files back for room.
    pub(super) fn give_back(&self, files: Vec<(Ino, Limit)>) {
        let Some(keeper) = self.keeper.get().and_then(Weak::upgrade) else { return };
        let inodes: Vec<Ino> = files.iter().map(|(ino, _)| *ino).collect();
        let is_saved = keeper.save_all(&inodes);
        if !is_saved {
            // A file that waits for disks that are away holds up no other.
            files.into_iter().for_each(|(ino, limit)| self.submit(Job::GiveUp(ino, limit)));
            return;
        }
        for some in files.chunks(TOLD_TOGETHER) {
            let mut told = Todo::default();
            for (ino, limit) in some {
                told.add(self.give_up_untold(*ino, limit, true));
            }
            self.perform(told);
        }
    }
}

impl Todo {
    fn add(&mut self, mut more: Todo) {
        self.messages.append(&mut more.messages);
        self.files.append(&mut more.files);
        self.back.append(&mut more.back);
    }
}

impl State {
    /// Lists files whose tokens were just granted. Returns those to be given back if there are too
    /// many.
    pub(super) fn make_room(&mut self, granted: &[Ino]) -> Vec<(Ino, Limit)> {
        for ino in granted {
            if self.listed.insert(*ino) {
                self.granted.push_back(*ino);
            }
        }
        let together = (self.files_max / 3).clamp(1, BACK_TOGETHER_MAX);
        if self.granted.len() < self.files_max + together {
            return Vec::new();
        }
        let mut back = Vec::new();
        // A few more are looked at, so that files that had to stay hold up no others.
        for _ in 0..2 * together {
            if self.granted.len() <= self.files_max {
                break;
            }
            let Some(ino) = self.granted.pop_front() else { break };
            let is_open = self.handles.contains_key(&ino);
            let given = if is_open { None } else { self.holder.give_back(ino) };
            if given.is_none() && !self.holder.in_use(ino).is_empty() {
                self.granted.push_back(ino);
                continue;
            }
            self.listed.remove(&ino);
            back.extend(given.map(|limit| (ino, limit)));
        }
        back
    }
}
