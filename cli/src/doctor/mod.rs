// SPDX-License-Identifier: GPL-2.0

//! `rrxe doctor`: collects facts, has the checks judge them, and reports the findings.

use serde::Serialize;

use crate::tool::Failure;
use finding::{Finding, Severity};

mod checks;
mod collect;
mod facts;
mod finding;
mod firewall;
mod peer;
mod port;

/// UDP port of RoCEv2.
pub(crate) const ROCE_PORT: u16 = 4791;

/// Result of all checks.
#[derive(Serialize)]
pub(crate) struct Report {
    healthy: bool,
    findings: Vec<Finding>,
    /// A sentence for each fact that could not be collected.
    unknown: Vec<String>,
}

/// Checks this host, and the path to a peer if one is given. `wait` is the time for the peer's
/// response to a connection request, in seconds.
///
/// # Errors
///
/// If iproute2 is missing or fails.
pub(crate) fn run(peer: Option<&str>, wait: u64) -> Result<Report, Failure> {
    let mut facts = collect::host()?;
    if let Some(name) = peer {
        facts.peer = Some(peer::collect(
            name,
            wait,
            &facts.devices,
            &mut facts.unknown,
        ));
    }
    let findings = checks::run(&facts);
    Ok(Report {
        healthy: findings.is_empty(),
        findings,
        unknown: facts.unknown,
    })
}

impl Report {
    /// Returns whether there is no fault.
    pub(crate) fn is_healthy(&self) -> bool {
        self.healthy
    }

    /// Returns the report as JSON or for people.
    pub(crate) fn text(&self, as_json: bool) -> String {
        if as_json {
            return format!("{}\n", serde_json::json!(self));
        }
        let mut text: String = self.findings.iter().map(paragraph).collect();
        for fact in &self.unknown {
            text += &format!("not checked: {fact}\n");
        }
        text + &match self.findings.len() {
            0 => "No fault was found.\n".to_owned(),
            1 => "1 fault was found.\n".to_owned(),
            number => format!("{number} faults were found.\n"),
        }
    }
}

/// Returns a finding for people.
fn paragraph(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    format!(
        "{severity}: {}\n    Remedy: {}\n",
        finding.problem, finding.remedy
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_each_finding_with_its_remedy() {
        let report = Report {
            healthy: false,
            findings: vec![finding::error("port", "It is taken.", "Free it.")],
            unknown: vec!["Rules are hidden.".to_owned()],
        };
        assert_eq!(
            report.text(false),
            "error: It is taken.\n    Remedy: Free it.\nnot checked: Rules are hidden.\n1 fault was found.\n"
        );
        let json =
            r#"{"check":"port","severity":"error","problem":"It is taken.","remedy":"Free it."}"#;
        let value: serde_json::Value = serde_json::from_str(&report.text(true)).unwrap();
        assert_eq!(
            value["findings"][0],
            serde_json::from_str::<serde_json::Value>(json).unwrap()
        );
    }
}
