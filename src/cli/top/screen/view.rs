//! The part of the table that is shown, and how keys change it. Independent of the terminal.

use std::time::Duration;

use operator::top::{self, Cells, Column, Frame, ServiceRow};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// The length up to which a Service's name takes the place of columns. A longer one loses its middle: one such name
/// would otherwise cost every row its numbers.
const LONGEST_SERVICE: usize = 32;

/// The part of the table that is shown, and its order.
pub(super) struct View {
    frame: Option<Frame>,
    /// The length of the longest name in it, of a Service at most [`LONGEST_SERVICE`], without real servers and with
    /// them.
    longest: (usize, usize),
    delay: Duration,
    sort: Column,
    /// Whether real servers are shown below their Services.
    real_servers: bool,
    /// Only Services with this in their names.
    filter: String,
    typing: bool,
    help: bool,
    /// The number of lines above the first visible one.
    above: usize,
    /// The number of lines that fit.
    height: usize,
    doubt: Option<String>,
}

/// The action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Show,
    Quit,
}

impl View {
    pub(super) fn new(sort: Column, delay: Duration) -> Self {
        Self {
            frame: None,
            longest: (0, 0),
            delay,
            sort,
            real_servers: false,
            filter: String::new(),
            typing: false,
            help: false,
            above: 0,
            height: 0,
            doubt: None,
        }
    }

    /// Shows a new frame, and why the names of Services may be out of date.
    pub(super) fn see(&mut self, mut frame: Frame, doubt: Option<String>) {
        frame.sort(self.sort);
        let service = |row: &ServiceRow| match &row.service {
            Some(_) => row.name().len().min(LONGEST_SERVICE),
            None => row.name().len(),
        };
        let services = frame.services.iter().map(service).max().unwrap_or_default();
        let all = top::lines(&frame, true, |_| true).filter(|line| line.name.starts_with(' '));
        let real_servers = all.map(|line| line.name.len()).max().unwrap_or_default();
        self.longest = (services, services.max(real_servers));
        self.frame = Some(frame);
        self.doubt = doubt;
    }

    /// Takes a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Next {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Next::Quit } else { Next::Show };
        }
        if self.typing {
            self.type_filter(key.code);
            return Next::Show;
        }
        match key.code {
            KeyCode::Char('q') => return Next::Quit,
            KeyCode::Char('h' | '?') => self.help = !self.help,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('r') => self.real_servers = !self.real_servers,
            KeyCode::Char(letter) => self.sort_by(letter),
            KeyCode::Up => self.above = self.above.saturating_sub(1),
            KeyCode::Down => self.above = self.above.saturating_add(1),
            KeyCode::PageUp => self.above = self.above.saturating_sub(self.height),
            KeyCode::PageDown => self.above = self.above.saturating_add(self.height),
            KeyCode::Home => self.above = 0,
            KeyCode::End => self.above = usize::MAX,
            _ => {}
        }
        Next::Show
    }

    fn type_filter(&mut self, key: KeyCode) {
        self.above = 0;
        match key {
            KeyCode::Char(letter) => self.filter.push(letter),
            KeyCode::Backspace => drop(self.filter.pop()),
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.filter.clear();
                self.typing = false;
            }
            _ => {}
        }
    }

    fn sort_by(&mut self, letter: char) {
        self.sort = match letter {
            'n' => Column::Name,
            'a' => Column::Active,
            's' => Column::SynRecv,
            'i' => Column::Inactive,
            'c' => Column::Connections,
            'p' => Column::Packets,
            'b' => Column::Bytes,
            'f' => Column::Answer,
            _ => return,
        };
        if let Some(frame) = &mut self.frame {
            frame.sort(self.sort);
        }
    }

    /// The lines that fit into this height.
    pub(super) fn lines(&mut self, height: usize) -> Vec<Cells<String>> {
        let Some(frame) = &self.frame else { return Vec::new() };
        let is_wanted = |name: &str| name.contains(&self.filter);
        let count = frame.services.iter().filter(|row| is_wanted(&row.name()));
        let count: usize =
            count.map(|row| 1 + if self.real_servers { row.real_servers.len() } else { 0 }).sum();
        self.height = height;
        self.above = self.above.min(count.saturating_sub(height));
        top::lines(frame, self.real_servers, is_wanted).skip(self.above).take(height).collect()
    }

    /// The lines above the table.
    pub(super) fn title(&self) -> String {
        let Some(frame) = &self.frame else {
            return format!("kube-ipvs top: measuring for {:.1} s", self.delay.as_secs_f64());
        };
        let services = frame.services.iter().filter(|row| row.service.is_some()).count();
        let active: u64 = frame.services.iter().map(|row| row.load.active_connections).sum();
        let real_servers: usize = frame.services.iter().map(|row| row.real_servers.len()).sum();
        format!(
            "kube-ipvs top: {:.1} s, Services {services}, real servers {real_servers}, active connections {active}",
            frame.interval.as_secs_f64(),
        )
    }

    /// The lines below the table.
    pub(super) fn foot(&self) -> String {
        if self.typing {
            format!("/{}_", self.filter)
        } else if !self.filter.is_empty() {
            format!("only with {:?}; Esc shows all", self.filter)
        } else {
            self.doubt
                .clone()
                .unwrap_or_else(|| "q quit  h help  / filter  r real servers  sort n a s i c p b".to_owned())
        }
    }

    /// Whether the keys are to be explained.
    pub(super) fn help(&self) -> bool {
        self.help
    }

    /// The length of the longest name, including filtered names, so that columns do not move.
    pub(super) fn longest_name(&self) -> usize {
        let (services, all) = self.longest;
        if self.real_servers { all } else { services }
    }

    /// The refresh interval.
    pub(super) fn delay(&self) -> Duration {
        self.delay
    }

    /// The column that the rows are sorted by.
    pub(super) fn sort(&self) -> Column {
        self.sort
    }
}
