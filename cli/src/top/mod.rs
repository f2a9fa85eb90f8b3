// SPDX-License-Identifier: GPL-2.0

//! `rrxe top`: a live table of links and QPs.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use ratatui::{
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    DefaultTerminal,
};

use crate::{
    device::{self, Device},
    netdev,
    tool::{self, Failure},
};
use rates::Qp;
use view::View;

mod rates;
mod view;

/// Request of the user.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Request {
    Quit,
    Redraw,
    Select { is_next: bool },
}

/// Shows the table until the user quits, or `count` updates were shown. Returns an empty text.
///
/// # Errors
///
/// If standard output is no terminal, or the terminal fails.
pub(crate) fn run(interval: f64, count: Option<u64>) -> Result<String, Failure> {
    if !io::stdout().is_terminal() {
        return Err(Failure(
            "`rrxe top` needs a terminal: `rrxe status --json` prints counters for scripts."
                .to_owned(),
        ));
    }
    let mut terminal = ratatui::try_init().map_err(|error| terminal_failure(&error))?;
    let result = show(&mut terminal, Duration::from_secs_f64(interval), count);
    ratatui::restore();
    result.map_err(|error| terminal_failure(&error))?;
    Ok(String::new())
}

fn terminal_failure(error: &io::Error) -> Failure {
    Failure(format!("The terminal fails: {error}."))
}

/// Updates and draws the view at each interval.
fn show(terminal: &mut DefaultTerminal, interval: Duration, count: Option<u64>) -> io::Result<()> {
    let (mut view, mut last) = (View::default(), None);
    let mut updates = 0;
    loop {
        last = update(&mut view, last);
        updates += 1;
        let end = Instant::now() + interval;
        loop {
            terminal.draw(|frame| view.draw(frame))?;
            match request_until(end)? {
                Some(Request::Quit) => return Ok(()),
                Some(Request::Redraw) => {}
                Some(Request::Select { is_next }) => view.select(is_next),
                None => break,
            }
        }
        if count.is_some_and(|count| updates >= count) {
            return Ok(());
        }
    }
}

/// The devices at one time.
type Sample = (Instant, Vec<Device>);

/// Takes a sample, and fills the view with the changes since the last one.
fn update(view: &mut View, last: Option<Sample>) -> Option<Sample> {
    match sample() {
        Ok((devices, qps)) => {
            let now = Instant::now();
            let (old, seconds) = match &last {
                Some((time, devices)) => (devices.as_slice(), (now - *time).as_secs_f64()),
                None => (devices.as_slice(), 0.0),
            };
            view.links = rates::link_rows(old, &devices, seconds);
            view.qps = qps;
            view.selected = view.selected.min(view.links.len().saturating_sub(1));
            view.failure = None;
            Some((now, devices))
        }
        Err(failure) => {
            view.failure = Some(failure.0);
            last
        }
    }
}

fn sample() -> Result<(Vec<Device>, Vec<Qp>), Failure> {
    let devices = device::all(&netdev::all()?)?;
    // Without a device, the kernel may have no RDMA core, on which `rdma` depends.
    let qps = match devices.is_empty() {
        true => Vec::new(),
        false => tool::json("rdma", &["-j", "-dd", "resource", "show", "qp"])?,
    };
    Ok((devices, qps))
}

/// Waits for a request of the user. Returns none at the time `end`.
fn request_until(end: Instant) -> io::Result<Option<Request>> {
    while event::poll(end.saturating_duration_since(Instant::now()))? {
        match event::read()? {
            Event::Key(key) => {
                if let Some(request) = request(key) {
                    return Ok(Some(request));
                }
            }
            Event::Resize(..) => return Ok(Some(Request::Redraw)),
            _ => {}
        }
    }
    Ok(None)
}

/// Returns the request that a key stands for.
fn request(key: KeyEvent) -> Option<Request> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Request::Quit),
        KeyCode::Char('q') | KeyCode::Esc => Some(Request::Quit),
        KeyCode::Down | KeyCode::Char('j') => Some(Request::Select { is_next: true }),
        KeyCode::Up | KeyCode::Char('k') => Some(Request::Select { is_next: false }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stand_for_requests() {
        let plain = KeyModifiers::NONE;
        for (code, modifiers, wanted) in [
            (KeyCode::Char('q'), plain, Some(Request::Quit)),
            (KeyCode::Esc, plain, Some(Request::Quit)),
            (
                KeyCode::Char('c'),
                KeyModifiers::CONTROL,
                Some(Request::Quit),
            ),
            (KeyCode::Char('c'), plain, None),
            (
                KeyCode::Down,
                plain,
                Some(Request::Select { is_next: true }),
            ),
            (KeyCode::Up, plain, Some(Request::Select { is_next: false })),
        ] {
            assert_eq!(request(KeyEvent::new(code, modifiers)), wanted, "{code:?}");
        }
    }
}
