// SPDX-License-Identifier: GPL-2.0

//! What a run is to do: its settings, and which operations are chosen how often.

use crate::ops::Operation;

/// The settings of a run.
pub struct Profile {
    /// All choices follow from it.
    pub seed: u64,
    /// How long, in seconds.
    pub seconds: u64,
    /// Attackers at a time.
    pub attackers: u64,
    /// Threads of each.
    pub threads: u64,
    /// The user that attackers are; one in eight is root, whose operations reach further.
    pub user: u32,
    /// One message in so many is changed.
    pub wild: u64,
    /// Allocations and copies of attackers fail, where the kernel has fault injection.
    pub faults: bool,
    /// Devices, links and namespaces come and go.
    pub chaos: bool,
    /// The module, too.
    pub unload: bool,
    /// Devices between which a victim transfers data.
    pub victims: Vec<String>,
    /// A cgroup that attackers join.
    pub cgroup: String,
    /// How many times slower this kernel is than others: attackers live that much longer, and
    /// patience lasts.
    pub slow: u64,
    /// Milliseconds that an operation, or the end of a process, may take.
    pub patience: u64,
    /// Milliseconds for which a CPU may serve no real-time thread.
    pub stall: u64,
    /// Which operations are chosen by all attackers; without it every other attacker has a
    /// focus of its own.
    pub focus: Option<Focus>,
}

/// The operations that are chosen, each with its weight; all of them if there are none.
pub type Focus = &'static [(&'static str, u64)];

/// What some findings take, and nothing else: (operation, weight).
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
    /// The settings that the arguments name: `--name value` or `--name`.
    pub fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut profile = Self {
            seed: 1,
            seconds: 60,
            attackers: 2,
            threads: 4,
            user: 65534,
            wild: 64,
            faults: false,
            chaos: false,
            unload: false,
            victims: Vec::new(),
            cgroup: String::new(),
            slow: 1,
            patience: 120_000,
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
                "--wild" => profile.wild = number()?.max(1),
                "--slow" => profile.slow = number()?.clamp(1, 100),
                "--patience" => profile.patience = number()?,
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
        profile.patience *= profile.slow;
        profile.stall *= profile.slow;
        Ok(profile)
    }

    /// The focus of attacker `number`: every other one has none, the others take turns.
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

/// How often an operation is chosen.
pub fn weight(focus: Focus, operation: &Operation) -> u64 {
    if focus.is_empty() {
        return operation.weight;
    }
    focus
        .iter()
        .find(|(name, _)| *name == operation.name)
        .map_or(0, |(_, weight)| *weight)
}
