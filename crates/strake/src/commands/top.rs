//! `strake top`: a file system in the terminal, with keys from a red number to its explanation.
//!
//! The parts that decide are pure: `pages.rs` makes tables of a look, `screen.rs` has the state and
//! draws it. This file is the driver. One thread looks again and again, one explains what was asked
//! for last, and this one has the terminal. So the keys work also while the daemon does not answer.

mod about;
mod look;
mod pages;
mod screen;

use crate::output;
use crate::registry;
use about::explain;
use clap::Args;
use look::{Eyes, Look};
use pages::About;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use screen::{Effect, Screen};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use strake_env::channel::{Receiver, Sender, channel};
use strake_env::thread::Builder;
use strake_env::{Clock, RealClock};
use strake_proto::{Error, ErrorKind, Result};
use strake_report::Table;

/// Looks, answers and signals are noticed after this time at most. Keys are at once.
const TICK: Duration = Duration::from_millis(100);
/// The age of the figures is drawn again after this time.
const DRAWN_AGAIN: Duration = Duration::from_secs(1);

/// Watch a file system in the terminal: what is slow now, disks, nodes, files, clients and waits.
///
/// A fault is yellow (!) or red (!!). Enter explains the chosen row, and `s` says why it is
/// slow. `?` lists the keys. In a cluster it shows what the mount of this machine sees.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  strake top                  until q; 1 to 6 choose a page, Enter explains a row
  strake top 5                a look every five seconds
  strake top --once           all pages once, as text
  strake top --once --json    everything that they show, for programs")]
pub(crate) struct TopArgs {
    /// The data directory [default: $STRAKE_DATA, or the only file system that is up].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Seconds between two looks.
    #[arg(value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,
    /// Print all pages once, as text, after one such time. This needs no terminal.
    #[arg(long)]
    once: bool,
    /// With --once: answer in JSON.
    #[arg(long, requires = "once")]
    json: bool,
}

/// Runs `strake top`.
pub(crate) fn run(args: &TopArgs) -> Result<()> {
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if !args.once && !is_terminal {
        let detail = "this is no terminal: `strake top --once` prints all pages as text";
        return Err(Error::new(ErrorKind::Invalid, detail));
    }
    let dir = registry::find(args.data.as_deref())?;
    let every = Duration::from_secs(args.seconds);
    let mut eyes = Eyes::open(dir.clone(), every)?;
    if args.once {
        RealClock.sleep(every);
        return once(&eyes.look()?, args.json);
    }
    let first = eyes.look()?;
    let (tell, told) = channel();
    let looking = tell.clone();
    start("top-look", move || {
        let mut is_wanted = true;
        while is_wanted {
            RealClock.sleep(every);
            let looked = eyes.look().map(Arc::new).map_err(|error| error.to_string());
            is_wanted = looking.send(Told::Looked(looked)).is_ok();
        }
    })?;
    let (ask, asked) = channel::<(Arc<Look>, About)>();
    start("top-explain", move || {
        while let Ok(mut last) = asked.recv() {
            // Only what was asked for last is still wanted.
            while let Ok(newer) = asked.try_recv() {
                last = newer;
            }
            let text = explain(&dir, &last.0, &last.1);
            if tell.send(Told::Explained(last.1, text)).is_err() {
                return;
            }
        }
    })?;
    Driver { screen: Screen::default(), look: Arc::new(first), ask, told }.run()
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    Ok(Builder::new().name(name.to_owned()).spawn(work).map(drop)?)
}

/// Prints all pages as text.
fn once(look: &Look, json: bool) -> Result<()> {
    if json {
        return output::print_json(look);
    }
    let mut text = pages::head(look).join("\n");
    text.push('\n');
    for page in pages::pages(look) {
        text.push_str(&format!("\n{}\n", page.name));
        if page.rows.is_empty() {
            text.push_str(&format!("{}\n", page.empty));
            continue;
        }
        let mut table = Table::new(page.heads, page.left);
        for row in &page.rows {
            table.row(row.cells.iter().map(pages::Cell::marked).collect());
        }
        text.push_str(&table.render());
    }
    // The reader may have seen enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// The messages of the other threads to this one.
enum Told {
    /// A look, or why there is none.
    Looked(std::result::Result<Arc<Look>, String>),
    Explained(About, String),
}

/// The terminal. It is as it was before once this is dropped.
struct Tty(DefaultTerminal);

impl Drop for Tty {
    fn drop(&mut self) {
        // A terminal that is gone has nothing to restore.
        let _ = ratatui::try_restore();
    }
}

/// Waits for a key, for so long at most. True once the terminal is gone: `event::poll` would look
/// for its keys for ever then.
fn is_gone(limit: Duration) -> Result<bool> {
    let stdin = std::io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    let limit = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
    match poll(&mut polled, Some(&limit)) {
        // The window has another size, or a signal ends the command.
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(std::io::Error::from(error).into()),
        Ok(_) => Ok(polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)),
    }
}

struct Driver {
    screen: Screen,
    look: Arc<Look>,
    ask: Sender<(Arc<Look>, About)>,
    told: Receiver<Told>,
}

impl Driver {
    fn run(mut self) -> Result<()> {
        let signalled = Arc::new(AtomicBool::new(false));
        for signal in [SIGHUP, SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&signalled))?;
        }
        let mut looked = RealClock.monotonic();
        self.screen.looked(&self.look);
        let mut tty = Tty(ratatui::try_init()?);
        let (mut is_new, mut drawn) = (true, looked);
        loop {
            let now = RealClock.monotonic();
            if is_new || now.saturating_sub(drawn) >= DRAWN_AGAIN {
                self.screen.aged(now.saturating_sub(looked));
                tty.0.draw(|frame| self.screen.draw(frame))?;
                (is_new, drawn) = (false, now);
            }
            if signalled.load(Ordering::Relaxed) {
                return Err(Error::new(ErrorKind::Interrupted, "ended by a signal"));
            }
            if is_gone(TICK)? {
                return Err(Error::new(ErrorKind::Interrupted, "the terminal is gone"));
            }
            if event::poll(Duration::ZERO)? {
                if self.obey(&event::read()?) {
                    return Ok(());
                }
                is_new = true;
            }
            while let Ok(told) = self.told.try_recv() {
                is_new = true;
                match told {
                    Told::Looked(Ok(look)) => {
                        self.screen.looked(&look);
                        (self.look, looked) = (look, RealClock.monotonic());
                    }
                    Told::Looked(Err(why)) => self.screen.failed(why),
                    Told::Explained(about, text) => self.screen.explained(&about, text),
                }
            }
        }
    }

    /// True if the key ends the command.
    fn obey(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return false };
        if key.kind == KeyEventKind::Release {
            return false;
        }
        let is_control_c =
            key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
        match self.screen.key(key.code) {
            Effect::End => true,
            Effect::Explain(about) => {
                // The thread lasts as long as this end of the channel.
                let _ = self.ask.send((Arc::clone(&self.look), about));
                is_control_c
            }
            Effect::Nothing => is_control_c,
        }
    }
}
