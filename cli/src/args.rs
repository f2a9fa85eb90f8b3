// SPDX-License-Identifier: GPL-2.0

//! The command line.

use clap::{Parser, Subcommand};
use clap_complete::Shell;

/// Adds, shows and checks RDMA links of the rrxe driver.
#[derive(Parser)]
#[command(name = "rrxe", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// A subcommand.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Add the link NAME on the network device NETDEV
    Add {
        /// Name of the new link, for example rrxe0
        name: String,
        /// Name of an Ethernet or raw IP device, for example eth0
        netdev: String,
    },
    /// Delete the link NAME
    Del {
        /// Name of a link of rrxe
        name: String,
    },
    /// Show all links: netdev, state, path MTU, GIDs, and counters that hint at trouble
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Name each fault of this host, or of the path to a peer, with its remedy
    ///
    /// The exit status is 0 if there is no fault, 1 if there is one, and 2 if the command fails.
    Doctor {
        /// Host name or IP address of a peer, which is checked as far as this host can
        peer: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Seconds to wait for the peer's response to a connection request
        #[arg(long, value_name = "SECONDS", default_value_t = 10)]
        wait: u64,
    },
    /// Print the completion script for a shell
    Completions {
        /// Shell for which the script is
        shell: Shell,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_of_the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_man_page_names_all_subcommands_and_options() {
        let page = include_str!("../rrxe.8").replace('\\', "");
        assert!(page.contains(concat!("rrxe ", env!("CARGO_PKG_VERSION"))));
        for command in Arguments::command().get_subcommands() {
            let name = command.get_name();
            assert!(page.contains(&format!("rrxe {name}")), "{name}");
            for option in command.get_arguments().filter_map(|each| each.get_long()) {
                assert!(page.contains(&format!("--{option}")), "{name} --{option}");
            }
        }
    }
}
