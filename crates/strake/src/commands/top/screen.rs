//! The state of `strake top`, and the frame that it makes. Pure: the driver tells it of keys, looks
//! and answers, and has it draw.

use super::look::Look;
use super::pages::{self, About, Page, Row, mark};
use ratatui::Frame;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use std::time::Duration;
use strake_observe::health::Colour;

/// Figures are called old after this time.
const OLD: Duration = Duration::from_secs(10);
/// Page up and page down move by so many rows.
const LEAP: usize = 10;
const HELP: &str = "\
1 to 6, Tab, ← →   choose a page
↑ ↓, PgUp PgDn     choose a row, or move in a text
Enter              explain the row: why it is yellow or red, and what to do
s                  why is it slow: `strake diag explain slow`
Esc                back
q                  end

Rates are for each second, of the last seconds. Sizes are in bytes, with K, M, G, powers of 1024.
ms is the mean time of a request, or of an I/O of a disk. Behind ! something is yellow, look at it
soon; behind !! it is red, programs fail or will. Processes are those of this machine.";

/// The driver's next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Nothing,
    /// Find out what there is to say about it, and tell [`Screen::explained`].
    Explain(About),
    End,
}

/// A text that lies over the page.
struct Overlay {
    about: Option<About>,
    title: String,
    text: String,
    /// The lines above the screen.
    above: usize,
}

/// See the head of this file.
#[derive(Default)]
pub(super) struct Screen {
    /// The lines above all pages, the worst colour, and the pages.
    shown: Option<([String; 3], Colour, [Page; 6])>,
    page: usize,
    /// The row that is chosen, on each page, and where it stood.
    chosen: [(Option<About>, usize); 6],
    /// Why there is no newer look.
    fault: Option<String>,
    /// How old the look is.
    age: Duration,
    overlay: Option<Overlay>,
}

impl Screen {
    /// There is a new look.
    pub(super) fn looked(&mut self, look: &Look) {
        self.shown = Some((pages::head(look), look.health.colour, pages::pages(look)));
        (self.fault, self.age) = (None, Duration::ZERO);
        for page in 0..self.chosen.len() {
            self.choose(page, self.place(page));
        }
    }

    /// A look failed.
    pub(super) fn failed(&mut self, why: String) {
        self.fault = Some(why);
    }

    /// The look is so old.
    pub(super) fn aged(&mut self, age: Duration) {
        self.age = age;
    }

    /// Takes in the answer to a question.
    pub(super) fn explained(&mut self, about: &About, text: String) {
        if let Some(overlay) = &mut self.overlay
            && overlay.about.as_ref() == Some(about)
        {
            overlay.text = text;
        }
    }

    /// A key was pressed.
    pub(super) fn key(&mut self, key: KeyCode) -> Effect {
        let pages = self.chosen.len();
        let digit = |c: char| c.to_digit(10).map(|digit| digit as usize);
        match key {
            KeyCode::Char('q') => return Effect::End,
            KeyCode::Char('s') => return self.ask(About::Slow),
            KeyCode::Char('?' | 'h') => self.open(None, "keys".to_owned(), HELP.to_owned()),
            KeyCode::Esc | KeyCode::Backspace => self.overlay = None,
            KeyCode::Enter if self.overlay.is_none() => {
                let (row, _) = &self.chosen[self.page];
                return row.clone().map_or(Effect::Nothing, |about| self.ask(about));
            }
            KeyCode::Char(c) if digit(c).is_some_and(|it| (1..=pages).contains(&it)) => {
                self.turn(digit(c).map_or(0, |it| it - 1));
            }
            KeyCode::Tab | KeyCode::Right => self.turn((self.page + 1) % pages),
            KeyCode::BackTab | KeyCode::Left => self.turn((self.page + pages - 1) % pages),
            KeyCode::Up | KeyCode::Char('k') => self.walk(|at| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.walk(|at| at + 1),
            KeyCode::PageUp => self.walk(|at| at.saturating_sub(LEAP)),
            KeyCode::PageDown => self.walk(|at| at + LEAP),
            KeyCode::Home => self.walk(|_| 0),
            KeyCode::End => self.walk(|_| usize::MAX / 2),
            _ => {}
        }
        Effect::Nothing
    }

    fn turn(&mut self, page: usize) {
        (self.page, self.overlay) = (page, None);
    }

    fn open(&mut self, about: Option<About>, title: String, text: String) {
        self.overlay = Some(Overlay { about, title, text, above: 0 });
    }

    fn ask(&mut self, about: About) -> Effect {
        self.open(Some(about.clone()), about.title(), "…".to_owned());
        Effect::Explain(about)
    }

    /// Moves the text, or the chosen row.
    fn walk(&mut self, to: impl Fn(usize) -> usize) {
        match &mut self.overlay {
            Some(overlay) => overlay.above = to(overlay.above),
            None => self.choose(self.page, to(self.place(self.page))),
        }
    }

    fn rows(&self, page: usize) -> &[Row] {
        self.shown.as_ref().map_or(&[], |(_, _, pages)| &pages[page].rows)
    }

    /// Where the chosen row stands now. One that is gone has left its place to another one.
    fn place(&self, page: usize) -> usize {
        let (about, place) = &self.chosen[page];
        // The first row may be about another thing at each look, and stays chosen.
        let moved = self.rows(page).iter().position(|row| Some(&row.about) == about.as_ref());
        moved.filter(|_| *place > 0).unwrap_or(*place)
    }

    fn choose(&mut self, page: usize, place: usize) {
        let place = place.min(self.rows(page).len().saturating_sub(1));
        let about = self.rows(page).get(place).map(|row| row.about.clone());
        self.chosen[page] = (about, place);
    }

    /// Draws everything.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        let heights = [Constraint::Length(4), Constraint::Min(0), Constraint::Length(1)];
        let [top, middle, bottom] = Layout::vertical(heights).areas(frame.area());
        frame.render_widget(Paragraph::new(self.top()), top);
        let lines = match &mut self.overlay {
            Some(overlay) => overlay.lines(middle),
            None => self.table(middle),
        };
        frame.render_widget(Paragraph::new(lines), middle);
        frame.render_widget(Paragraph::new(self.bottom()), bottom);
    }

    /// The lines above the page.
    fn top(&self) -> Vec<Line<'static>> {
        let Some((head, colour, pages)) = &self.shown else { return Vec::new() };
        let mut names = Vec::new();
        for (number, page) in pages.iter().enumerate() {
            let is_open = number == self.page;
            let style = if is_open { bold().add_modifier(Modifier::REVERSED) } else { bold() };
            // A page with something red or yellow shows it from afar.
            let cells = page.rows.iter().flat_map(|row| &row.cells);
            let worst = cells.map(|cell| cell.colour).max().unwrap_or_default();
            let text = format!(" {} {}{} ", number + 1, page.name, mark(worst));
            names.push(Span::styled(text, tinted(style, worst)));
        }
        let mut lines: Vec<Line<'static>> =
            head.iter().map(|text| Line::from(text.clone())).collect();
        if let Some(first) = lines.first_mut() {
            first.spans.insert(0, Span::styled(format!("{colour} "), tinted(bold(), *colour)));
        }
        lines.push(Line::from(names));
        lines
    }

    fn bottom(&self) -> Line<'static> {
        let age = self.age.as_secs();
        match &self.fault {
            Some(why) => {
                let text = format!("as of {age} s ago: {why}");
                Line::styled(text, tinted(bold(), Colour::Red))
            }
            None if self.age >= OLD => {
                let text = format!("as of {age} s ago: something does not answer");
                Line::styled(text, tinted(bold(), Colour::Yellow))
            }
            None => Line::from("1-6 page  ↑↓ row  Enter explain  s why is it slow  ? keys  q end"),
        }
    }

    fn table(&self, area: Rect) -> Vec<Line<'static>> {
        let Some((_, _, pages)) = &self.shown else { return vec![Line::from("…")] };
        let page = &pages[self.page];
        if page.rows.is_empty() {
            return vec![Line::default(), Line::from(page.empty)];
        }
        let widths = widths(page);
        let head = page.heads.iter().enumerate().map(|(column, head)| {
            Span::styled(padded((*head).to_owned(), column, page, &widths), bold())
        });
        let mut lines = vec![Line::from(head.collect::<Vec<_>>())];
        let (place, room) = (self.place(self.page), usize::from(area.height).saturating_sub(1));
        let above = (place + 1).saturating_sub(room);
        for (number, row) in page.rows.iter().enumerate().skip(above).take(room) {
            let cells = row.cells.iter().enumerate().map(|(column, cell)| {
                let text = padded(cell.marked(), column, page, &widths);
                Span::styled(text, tinted(Style::default(), cell.colour))
            });
            let line = Line::from(cells.collect::<Vec<_>>());
            lines.push(if number == place { line.reversed() } else { line });
        }
        lines
    }
}

impl Overlay {
    fn lines(&mut self, area: Rect) -> Vec<Line<'static>> {
        let all = wrap(&self.text, usize::from(area.width));
        let room = usize::from(area.height).saturating_sub(1);
        self.above = self.above.min(all.len().saturating_sub(room));
        let more = if all.len() > self.above + room { "  (more below)" } else { "" };
        let head = Line::styled(format!("{}{more}", self.title), bold());
        let shown = all.into_iter().skip(self.above).take(room).map(Line::from);
        std::iter::once(head).chain(shown).collect()
    }
}

/// Lines of at most `width` characters, broken between words. A line goes on below its first word.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let (width, mut lines) = (width.max(1), Vec::new());
    for line in text.lines() {
        let mut rest: String = line.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let words = rest.trim_start().trim_start_matches("- ");
        let indent = " ".repeat((rest.len() - words.len()).min(width / 2));
        while let Some((cut, _)) = rest.char_indices().nth(width) {
            let blank = rest[..cut].rfind(' ').filter(|at| !rest[..*at].trim().is_empty());
            let at = blank.unwrap_or(cut);
            lines.push(rest[..at].trim_end().to_owned());
            rest = format!("{indent}{}", rest[at..].trim_start());
        }
        lines.push(rest);
    }
    lines
}

fn bold() -> Style {
    Style::default().add_modifier(Modifier::BOLD)
}

fn tinted(style: Style, colour: Colour) -> Style {
    match colour {
        Colour::Green => style,
        Colour::Yellow => style.fg(Color::Yellow),
        Colour::Red => style.fg(Color::Red),
    }
}

/// How wide each column is.
fn widths(page: &Page) -> Vec<usize> {
    let width = |text: &str| Span::raw(text).width();
    let mut widths: Vec<usize> = page.heads.iter().map(|head| width(head)).collect();
    for row in &page.rows {
        for (widest, cell) in widths.iter_mut().zip(&row.cells) {
            *widest = (*widest).max(width(&cell.marked()));
        }
    }
    widths
}

/// A cell with blanks up to the width of its column, and two before the next one.
fn padded(text: String, column: usize, page: &Page, widths: &[usize]) -> String {
    let room = widths.get(column).copied().unwrap_or(0);
    let blanks = " ".repeat(room.saturating_sub(Span::raw(text.as_str()).width()));
    match page.left.contains(&column) {
        true => format!("{text}{blanks}  "),
        false => format!("{blanks}{text}  "),
    }
}

#[cfg(test)]
#[path = "screen_test.rs"]
mod screen_test;
