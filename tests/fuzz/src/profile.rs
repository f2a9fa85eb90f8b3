// SPDX-License-Identifier: GPL-2.0

//! The profile of a run: its settings, and the weights of the operations.

use crate::ops::Operation;

/// The settings of a run.
pub struct Profile {
    /// Seed of all random choices.
    pub seed: u64,
    /// Duration of the run in seconds.
    pub seconds: u64,
    /// Number of attackers that run at the same time.
    pub attackers: u64,
    /// Number of threads of each attacker.
    pub threads: u64,
    /// User and group ID of attackers. One attacker in eight stays root, because some operations
    /// need privileges.
    pub user: u32,
    /// One message in this many has changed bytes, and one object in this many a random handle.
    pub mutate_one_in: u64,
    /// Whether allocations and user copies of attackers fail, on a kernel with fault injection.
    pub faults: bool,
    /// Whether network devices, links and namespaces are added and removed.
    pub chaos: bool,
    /// Whether the module is removed, too.
    pub unload: bool,
    /// Names of the two devices between which a victim transfers data, or none.
    pub victims: Vec<String>,
    /// Path of a cgroup that attackers join, or nothing.
    pub cgroup: String,
    /// Factor by which this kernel is slower than a stock kernel. It multiplies the life of
    /// attackers, `timeout` and `stall`.
    pub slow: u64,
    /// Maximum duration of an operation or of the end of a process, in milliseconds.
    pub timeout: u64,
    /// Maximum time for which a CPU may leave a runnable real-time thread waiting, in milliseconds.
    pub stall: u64,
    /// The focus of all attackers. If it is `None`, [`Self::focus_of`] gives every other attacker
    /// one of [`FOCI`], in turn.
    pub focus: Option<Focus>,
}

/// The operations that an attacker makes, with their weights. An empty focus means all operations
/// with their own weights.
pub type Focus = &'static [(&'static str, u64)];

/// The foci by name. The first one, `all`, is empty and restricts nothing. Each other focus has
/// only the operations that are needed to reproduce one earlier finding
/// (Documentation/testing.rst).
const FOCI: &[(&str, Focus)] = &[
    ("all", &[]),
    (
        "secret",
        &[
            ("setup", 1),
            ("create_qp", 4),
            ("connect_qp", 8),
            ("map_secret", 4),
            ("brief_mr", 20),
            ("reg_mr", 8),
            ("post_send", 40),
            ("post_recv", 20),
            ("consume", 10),
            ("dereg_mr", 2),
        ],
    ),
    (
        "rereg",
        &[("rereg_often", 1), ("rereg_mr", 20), ("dump_mr", 80)],
    ),
    (
        "notify",
        &[("setup", 1), ("reg_mr", 1), ("brief_cq", 60), ("flip", 1)],
    ),
    (
        "resize",
        &[("resize_long_cq", 20), ("flip_long", 60), ("alloc_pd", 2)],
    ),
];

impl Profile {
    /// Parses the arguments: `--name value` or `--name`.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut profile = Self {
            seed: 1,
            seconds: 60,
            attackers: 2,
            threads: 4,
            user: 65534,
            mutate_one_in: 64,
            faults: false,
            chaos: false,
            unload: false,
            victims: Vec::new(),
            cgroup: String::new(),
            slow: 1,
            timeout: 120_000,
            stall: 20_000,
            focus: None,
        };
        let mut rest = arguments.iter();
        while let Some(name) = rest.next() {
            let mut number = || -> Result<u64, String> {
                let value = rest.next().ok_or(format!("{name} needs a value"))?;
                value
                    .parse()
                    .map_err(|_| format!("{name} {value}: not a number"))
            };
            match name.as_str() {
                "--seed" => profile.seed = number()?,
                "--seconds" => profile.seconds = number()?,
                "--attackers" => profile.attackers = number()?.clamp(1, 8),
                "--threads" => profile.threads = number()?.clamp(1, 8),
                "--user" => profile.user = number()? as u32,
                "--mutate-one-in" => profile.mutate_one_in = number()?.max(1),
                "--slow" => profile.slow = number()?.clamp(1, 100),
                "--timeout" => profile.timeout = number()?,
                "--stall" => profile.stall = number()?,
                "--faults" => profile.faults = true,
                "--chaos" => profile.chaos = true,
                "--unload" => profile.unload = true,
                "--cgroup" => profile.cgroup = rest.next().cloned().unwrap_or_default(),
                "--victims" => {
                    let names = rest.next().map(String::as_str).unwrap_or_default();
                    profile.victims = names.split(',').map(str::to_owned).collect();
                }
                "--focus" => {
                    let wanted = rest.next().map(String::as_str).unwrap_or_default();
                    let focus = FOCI.iter().find(|(name, _)| *name == wanted);
                    profile.focus = Some(focus.ok_or(format!("no focus {wanted}"))?.1);
                }
                _ => return Err(format!("no option {name}")),
            }
        }
        profile.timeout *= profile.slow;
        profile.stall *= profile.slow;
        Ok(profile)
    }

    /// The focus of attacker `number`: [`Self::focus`] if there is one. Otherwise every other
    /// attacker has an empty focus, and the rest have the foci of [`FOCI`] after the first one, in
    /// turn.
    pub fn focus_of(&self, number: u64) -> Focus {
        if let Some(focus) = self.focus {
            return focus;
        }
        let turn = (self.seed.wrapping_add(number) / 2) as usize % (FOCI.len() - 1);
        match number % 2 {
            0 => &[],
            _ => FOCI[1 + turn].1,
        }
    }
}

/// The weight of an operation under a focus.
pub fn weight(focus: Focus, operation: &Operation) -> u64 {
    if focus.is_empty() {
        return operation.weight;
    }
    focus
        .iter()
        .find(|(name, _)| *name == operation.name)
        .map_or(0, |(_, weight)| *weight)
}
