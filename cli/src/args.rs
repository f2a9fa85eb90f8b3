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
    /// Add the link that NETDEV is to have: that of the configuration, or rrxe_NETDEV
    ///
    /// rrxe@NETDEV.service runs this command when it starts.
    Up {
        /// Name of a network device
        netdev: String,
    },
    /// Delete the link that `rrxe up` has added for NETDEV
    ///
    /// rrxe@NETDEV.service runs this command when it stops.
    Down {
        /// Name that the network device had then
        netdev: String,
        /// Start the service again if another network device has the name now
        #[arg(long)]
        again: bool,
    },
    /// Start and stop services until the links are those of the configuration
    Apply,
    /// Print the service that udev is to start for a network device
    #[command(hide = true)]
    Udev {
        /// Present name of the network device
        device: String,
        /// Name that udev gives to it
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
    /// Show rates, QPs, retransmissions and drops of all links, in a live table
    Top {
        /// Seconds between two updates
        #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
        interval: f64,
        /// End after this number of updates
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
    /// Write the packets of the link NAME to a file for Wireshark, by tcpdump
    ///
    /// The file has the packets between QPs of this host, too.
    Capture {
        /// Name of a link of rrxe
        name: String,
        /// Name of the file (pcap), or - for the standard output
        file: String,
        /// End after this number of packets
        #[arg(long, value_name = "N")]
        count: Option<u64>,
    },
    /// Print the completion script for a shell
    Completions {
        /// Shell for which the script is
        shell: Shell,
    },
}

/// Parses the time between two updates.
fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("the interval must be between 0.1 and 3600 seconds".to_owned()),
    }
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
    fn intervals_out_of_range_are_refused() {
        for (text, accepted) in [("1", true), ("0.1", true), ("0", false), ("nan", false)] {
            assert_eq!(interval(text).is_ok(), accepted, "{text}");
        }
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
