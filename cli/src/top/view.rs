// SPDX-License-Identifier: GPL-2.0

//! Draws the tables of `rrxe top`.

use ratatui::{
    layout::{Constraint, Layout, Rect},
    style::{Color, Style, Stylize},
    text::Line,
    widgets::{Cell, Row, Table},
    Frame,
};

use super::rates::{short, LinkRow, Qp};

/// Widths of the columns of the links.
const LINK_WIDTHS: [u16; 10] = [12, 12, 8, 6, 8, 8, 8, 8, 9, 8];
/// Widths of the columns of the QPs.
const QP_WIDTHS: [u16; 9] = [12, 9, 6, 6, 9, 9, 8, 9, 20];

/// All that is drawn.
#[derive(Default)]
pub(super) struct View {
    pub(super) links: Vec<LinkRow>,
    pub(super) qps: Vec<Qp>,
    /// Index of the link whose QPs are shown.
    pub(super) selected: usize,
    /// Reason why the last update failed.
    pub(super) failure: Option<String>,
}

impl View {
    /// Selects the next link, or the one before.
    pub(super) fn select(&mut self, is_next: bool) {
        let last = self.links.len().saturating_sub(1);
        self.selected = match is_next {
            true => (self.selected + 1).min(last),
            false => self.selected.saturating_sub(1),
        };
    }

    /// Draws the view.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let links = u16::try_from(self.links.len())
            .unwrap_or(u16::MAX)
            .saturating_add(1);
        let [title, top, gap, bottom, help] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Max(links),
            Constraint::Length(1),
            Constraint::Min(2),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Line::from(self.title()).bold(), title);
        self.draw_links(frame, top);
        frame.render_widget(Line::from(self.qp_title()).bold(), gap);
        self.draw_qps(frame, bottom);
        frame.render_widget(Line::from("up/down: select a link   q: quit").dim(), help);
    }

    fn title(&self) -> String {
        match (&self.failure, self.links.is_empty()) {
            (Some(failure), _) => format!("rrxe top: {failure}"),
            (None, true) => "rrxe top: there is no link (`rrxe add NAME NETDEV`)".to_owned(),
            (None, false) => "rrxe top: links, per second".to_owned(),
        }
    }

    fn qp_title(&self) -> String {
        match self.links.get(self.selected) {
            Some(link) => format!("QPs of {}", link.name),
            None => String::new(),
        }
    }

    fn draw_links(&self, frame: &mut Frame<'_>, area: Rect) {
        let names = [
            "LINK", "NETDEV", "STATE", "QPS", "SENT", "RCVD", "SENT B", "RCVD B", "RESENT", "DROPS",
        ];
        let rows = self.links.iter().enumerate().map(|(index, link)| {
            let style = match index == self.selected {
                true => Style::new().reversed(),
                false => Style::new(),
            };
            Row::new(link_cells(link)).style(style)
        });
        let table = Table::new(rows, LINK_WIDTHS).header(Row::new(names).underlined());
        frame.render_widget(table, area);
    }

    fn draw_qps(&self, frame: &mut Frame<'_>, area: Rect) {
        let names = [
            "LINK",
            "QPN",
            "TYPE",
            "STATE",
            "PEER QPN",
            "IN FLIGHT",
            "SENDS",
            "RECEIVES",
            "PROCESS",
        ];
        let selected = self.links.get(self.selected);
        let qps = self
            .qps
            .iter()
            .filter(|qp| selected.is_some_and(|link| link.name == qp.link));
        let table = Table::new(qps.map(qp_row), QP_WIDTHS).header(Row::new(names).underlined());
        frame.render_widget(table, area);
    }
}

/// Returns the cells of a link. Retransmissions and drops above 0 are red.
fn link_cells(link: &LinkRow) -> [Cell<'_>; 10] {
    let trouble = |rate: f64| {
        let cell = Cell::new(short(rate));
        match rate > 0.0 {
            true => cell.style(Style::new().fg(Color::Red)),
            false => cell,
        }
    };
    [
        Cell::new(link.name.as_str()),
        Cell::new(link.netdev.as_str()),
        Cell::new(link.state.as_str()),
        Cell::new(link.qps.to_string()),
        Cell::new(short(link.sent_packets)),
        Cell::new(short(link.received_packets)),
        Cell::new(short(link.sent_bytes)),
        Cell::new(short(link.received_bytes)),
        trouble(link.retransmissions),
        trouble(link.drops),
    ]
}

fn qp_row(qp: &Qp) -> Row<'_> {
    let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
    let process = match qp.pid {
        Some(pid) => format!("{} ({pid})", qp.process),
        None => qp.process.clone(),
    };
    Row::new([
        qp.link.clone(),
        qp.number.to_string(),
        qp.kind.clone(),
        qp.state.clone(),
        number(qp.peer),
        number(qp.in_flight),
        number(qp.sends),
        number(qp.receives),
        process,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::{backend::TestBackend, Terminal};

    fn link(name: &str) -> LinkRow {
        LinkRow {
            name: name.to_owned(),
            netdev: "eth0".to_owned(),
            state: "ACTIVE".to_owned(),
            qps: 2,
            sent_packets: 1234.0,
            received_packets: 0.0,
            sent_bytes: 5e6,
            received_bytes: 0.0,
            retransmissions: 7.0,
            drops: 0.0,
        }
    }

    fn qp(link: &str, number: u64) -> Qp {
        Qp {
            link: link.to_owned(),
            number,
            ..Qp::default()
        }
    }

    /// Returns the lines of the screen.
    fn screen(view: &View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| {
            (0..width)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        (0..height).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn the_screen_shows_links_and_the_qps_of_the_selected_one() {
        let mut view = View {
            links: vec![link("rrxe0"), link("rrxe1")],
            qps: vec![qp("rrxe0", 17), qp("rrxe1", 18)],
            ..View::default()
        };
        let lines = screen(&view, 100, 10);
        let words: Vec<_> = lines[2].split_whitespace().collect();
        assert_eq!(
            words,
            ["rrxe0", "eth0", "ACTIVE", "2", "1.2k", "0", "5.0M", "0", "7.0", "0"]
        );
        assert!(
            lines.iter().any(|line| line.starts_with("rrxe0        17")),
            "{lines:#?}"
        );
        assert!(
            !lines.iter().any(|line| line.starts_with("rrxe1        18")),
            "{lines:#?}"
        );
        view.select(true);
        view.select(true);
        let lines = screen(&view, 100, 10);
        assert!(
            lines.iter().any(|line| line.starts_with("rrxe1        18")),
            "{lines:#?}"
        );
        view.select(false);
        assert_eq!(view.selected, 0);
    }

    #[test]
    fn small_and_empty_screens_are_drawn() {
        for (width, height) in [(1, 1), (20, 3), (80, 24)] {
            screen(&View::default(), width, height);
        }
        let lines = screen(&View::default(), 80, 6);
        assert!(lines[0].contains("there is no link"));
    }

    #[test]
    fn the_reason_of_a_failed_update_is_shown() {
        let view = View {
            failure: Some("rdma is missing".to_owned()),
            ..View::default()
        };
        assert_eq!(screen(&view, 80, 6)[0], "rrxe top: rdma is missing");
    }
}
