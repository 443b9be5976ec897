//! A terminal while it is used, as an SVG that plays without a script, and as one that shows all of it at once.
//!
//! Everything appears when it did: the recording has the time of the run. Only the time between two scenes is left out.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use super::svg;

/// The width of the terminal, in cells.
const COLUMNS: usize = 96;

/// What a line begins with that continues the one above.
const CONTINUED: &str = "      ";

/// How long the end of a scene stays to be read.
const READ: Duration = Duration::from_secs(4);

/// How often the line below the terminal changes.
const TICK: Duration = Duration::from_millis(500);

/// The caption and the empty row below it; the empty row above the line below the terminal, and that line.
const ABOVE: usize = 2;
const BELOW: usize = 2;

/// Scenes, one after the other.
#[derive(Default)]
pub(super) struct Recording {
    scenes: Vec<Scene>,
}

/// What one terminal shows until it is cleared.
struct Scene {
    caption: String,
    begun: Instant,
    lines: Vec<Line>,
    /// What stands below the terminal, from a time on.
    below: Vec<(Duration, String)>,
    lasts: Duration,
}

/// A line, from a time on.
#[derive(Clone)]
struct Line {
    at: Duration,
    kind: Kind,
    text: String,
}

/// How a line looks.
#[derive(Clone, Copy)]
enum Kind {
    Caption,
    Typed,
    Printed,
    Emphasised,
    Below,
}

impl Kind {
    /// Its colour, and attributes of its element.
    fn look(self) -> (&'static str, &'static str) {
        match self {
            Self::Caption => ("#88c0d0", " font-weight=\"bold\""),
            Self::Typed => ("#ffffff", " font-weight=\"bold\""),
            Self::Printed => (svg::FOREGROUND, ""),
            Self::Emphasised => ("#ebcb8b", ""),
            Self::Below => ("#a3be8c", ""),
        }
    }
}

impl Recording {
    /// Clears the terminal for a scene.
    pub(super) fn scene(&mut self, caption: &str) {
        self.scenes.push(Scene {
            caption: caption.to_owned(),
            begun: Instant::now(),
            lines: Vec::new(),
            below: Vec::new(),
            lasts: Duration::ZERO,
        });
    }

    /// A command, with its prompt.
    pub(super) fn typed(&mut self, text: &str) {
        self.line(Kind::Typed, text);
    }

    /// What was printed. Lines with these words stand out.
    pub(super) fn printed(&mut self, text: &str, words: &str) {
        for line in text.trim_end().lines() {
            let stands_out = !words.is_empty() && line.contains(words);
            self.line(if stands_out { Kind::Emphasised } else { Kind::Printed }, line);
        }
    }

    fn line(&mut self, kind: Kind, text: &str) {
        if let Some(scene) = self.scenes.last_mut() {
            scene.lines.extend(rows(scene.begun.elapsed(), kind, text));
        }
    }

    /// Ends a scene once there was time to read it. `below` says what stood below the terminal at any time.
    pub(super) fn end(&mut self, below: impl Fn(Instant) -> String) {
        std::thread::sleep(READ);
        let Some(scene) = self.scenes.last_mut() else { return };
        scene.lasts = scene.begun.elapsed();
        let mut at = Duration::ZERO;
        while at < scene.lasts {
            let text = below(scene.begun + at);
            if scene.below.last().is_none_or(|(_, last)| *last != text) {
                scene.below.push((at, text));
            }
            at += TICK;
        }
    }

    /// A picture that plays. Where motion is not wanted, or not supported, it shows the end of the last scene.
    pub(super) fn playing(&self) -> String {
        let total: Duration = self.scenes.iter().map(|scene| scene.lasts).sum();
        let highest = self.scenes.iter().map(|scene| scene.lines.len()).max().unwrap_or_default();
        let rows = ABOVE + highest + BELOW;
        let mut film = Film { total, style: String::new(), parts: String::new(), shown: 0 };
        let mut begins = Duration::ZERO;
        for scene in &self.scenes {
            let ends = begins + scene.lasts;
            film.show(begins, ends, &scene.caption().draw(0));
            for (row, line) in (ABOVE..).zip(&scene.lines) {
                film.show(begins + line.at, ends, &line.draw(row));
            }
            for (number, (at, text)) in scene.below.iter().enumerate() {
                let until = scene.below.get(number + 1).map_or(ends, |(next, _)| begins + *next);
                film.show(begins + *at, until, &below(text).draw(rows - 1));
            }
            begins = ends;
        }
        let style = format!(
            "g{{visibility:hidden;animation:{:.1}s step-end infinite}}.end{{visibility:visible}}{}\
             @media (prefers-reduced-motion:reduce){{g{{animation:none!important}}}}",
            total.as_secs_f64(),
            film.style
        );
        svg::open(svg::count(rows), svg::count(COLUMNS), &style) + &film.parts + svg::CLOSE
    }

    /// A picture of all scenes, one below the other.
    pub(super) fn still(&self) -> String {
        let mut parts = String::new();
        let mut row = 0;
        for scene in &self.scenes {
            let last = scene.below.last().map(|(_, text)| below(text));
            let lines = [scene.caption()].into_iter().chain(scene.lines.clone()).chain(last);
            for line in lines {
                parts.push_str(&line.draw(row));
                row += 1;
            }
            row += 1;
        }
        svg::open(svg::count(row.saturating_sub(1)), svg::count(COLUMNS), "") + &parts + svg::CLOSE
    }
}

/// What stands below the terminal.
fn below(text: &str) -> Line {
    Line { at: Duration::ZERO, kind: Kind::Below, text: text.to_owned() }
}

impl Scene {
    fn caption(&self) -> Line {
        Line { at: Duration::ZERO, kind: Kind::Caption, text: self.caption.clone() }
    }
}

/// The rows that a text takes on the terminal. It is broken between words, where it can be.
fn rows(at: Duration, kind: Kind, text: &str) -> Vec<Line> {
    let mut rows = Vec::new();
    let mut rest = text.to_owned();
    while let Some((end, _)) = rest.char_indices().nth(COLUMNS) {
        let row = rest.get(..end).unwrap_or_default();
        let end = row.rfind(' ').filter(|space| *space > CONTINUED.len()).unwrap_or(end);
        let next = rest.split_off(end);
        rows.push(Line {
            at,
            kind,
            text: std::mem::replace(&mut rest, format!("{CONTINUED}{}", next.trim_start())),
        });
    }
    rows.push(Line { at, kind, text: rest });
    rows
}

impl Line {
    fn draw(&self, row: usize) -> String {
        let (colour, attributes) = self.kind.look();
        let shown = self.text.trim_end();
        if shown.is_empty() {
            String::new()
        } else {
            svg::text(svg::count(row), 0, colour, attributes, shown)
        }
    }
}

/// A picture that plays, in the making.
struct Film {
    total: Duration,
    style: String,
    parts: String,
    shown: usize,
}

impl Film {
    /// Shows a part from a time to another.
    fn show(&mut self, from: Duration, until: Duration, part: &str) {
        if part.is_empty() {
            return;
        }
        let percent = |time: Duration| 100.0 * time.as_secs_f64() / self.total.as_secs_f64();
        let is_end = until >= self.total;
        let name = self.shown;
        self.shown += 1;
        // Writing to a String cannot fail.
        let _ = write!(self.style, ".k{name}{{animation-name:k{name}}}@keyframes k{name}{{");
        let _ = if from.is_zero() {
            write!(self.style, "0%{{visibility:visible}}")
        } else {
            write!(self.style, "0%{{visibility:hidden}}{:.2}%{{visibility:visible}}", percent(from))
        };
        let _ = if is_end {
            write!(self.style, "100%{{visibility:visible}}}}")
        } else {
            write!(self.style, "{:.2}%{{visibility:hidden}}}}", percent(until))
        };
        let class = if is_end { " end" } else { "" };
        let _ = writeln!(self.parts, "<g class=\"k{name}{class}\">{}</g>", part.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recording() -> Recording {
        let line = |at, text: &str| rows(Duration::from_secs(at), Kind::Printed, text);
        let scene = |caption: &str, lines: Vec<Vec<Line>>| Scene {
            caption: caption.to_owned(),
            begun: Instant::now(),
            lines: lines.concat(),
            below: vec![
                (Duration::ZERO, "10 answers".to_owned()),
                (Duration::from_secs(2), "9 answers".to_owned()),
            ],
            lasts: Duration::from_secs(5),
        };
        Recording {
            scenes: vec![
                scene(
                    "first",
                    vec![
                        line(0, "a <b>"),
                        line(1, &"x".repeat(COLUMNS + 2)),
                        line(1, &format!("{} two words", "y".repeat(COLUMNS - 6))),
                    ],
                ),
                scene("second", vec![line(1, "last")]),
            ],
        }
    }

    #[test]
    fn each_line_is_shown_from_its_time_to_the_end_of_its_scene() {
        let svg = recording().playing();
        for part in [
            "animation:10.0s step-end infinite",
            // "first", "a <b>" and the first line below: from the beginning.
            "@keyframes k0{0%{visibility:visible}50.00%{visibility:hidden}}",
            // A long line takes two rows.
            "@keyframes k2{0%{visibility:hidden}10.00%{visibility:visible}50.00%{visibility:hidden}}",
            ">      xx</text>",
            ">      words</text>",
            // "last", which stays.
            "{0%{visibility:hidden}60.00%{visibility:visible}100%{visibility:visible}}",
            ">a &lt;b&gt;</text>",
        ] {
            assert!(svg.contains(part), "{part}: {svg}");
        }
        assert!(!svg.contains("<script"), "{svg}");
    }

    #[test]
    fn without_motion_the_end_of_the_last_scene_is_shown() {
        let svg = recording().playing();
        assert!(svg.contains("@media (prefers-reduced-motion:reduce){g{animation:none!important}}"), "{svg}");
        let at_the_end: Vec<&str> = svg.lines().filter(|line| line.contains(" end\"")).collect();
        assert_eq!(at_the_end.len(), 3, "{at_the_end:?}");
        for text in [">second<", ">last<", ">9 answers<"] {
            assert!(at_the_end.iter().any(|line| line.contains(text)), "{text}: {at_the_end:?}");
        }
    }

    #[test]
    fn a_still_shows_every_scene() {
        let svg = recording().still();
        for text in [">first<", ">a &lt;b&gt;<", ">second<", ">last<", ">9 answers<"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains("animation") && !svg.contains(">10 answers<"), "{svg}");
    }
}
