// SPDX-License-Identifier: GPL-2.0

//! Findings of the doctor.

use serde::Serialize;

/// Severity of a fault.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// RDMA does not work.
    Error,
    /// RDMA works badly, or fails for some programs.
    Warning,
}

/// A fault and its remedy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Finding {
    /// Name of the check, for scripts.
    pub(crate) check: &'static str,
    pub(crate) severity: Severity,
    /// One sentence that names the fault.
    pub(crate) problem: String,
    /// One sentence that says what to do.
    pub(crate) remedy: String,
}

/// Returns a finding of an error.
pub(crate) fn error(
    check: &'static str,
    problem: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    finding(check, Severity::Error, problem, remedy)
}

/// Returns a finding of a warning.
pub(crate) fn warning(
    check: &'static str,
    problem: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    finding(check, Severity::Warning, problem, remedy)
}

fn finding(
    check: &'static str,
    severity: Severity,
    problem: impl Into<String>,
    remedy: impl Into<String>,
) -> Finding {
    Finding {
        check,
        severity,
        problem: problem.into(),
        remedy: remedy.into(),
    }
}
