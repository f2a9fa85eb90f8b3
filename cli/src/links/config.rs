// SPDX-License-Identifier: GPL-2.0

//! The configuration: which network devices get a link, and the names of the links.
//!
//! It is `links.toml` in the directory of the configuration, and then the files `links.d/*.toml` in
//! the order of their names. The first entry that matches a network device counts.

use std::{
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
};

use glob::Pattern;
use serde::Deserialize;
use toml::Spanned;

use super::candidate::Candidate;
use crate::{device, tool::Failure};

/// Part of a link's name for which the name of the network device is substituted.
const NETDEV: &str = "{netdev}";
/// Name of a link for which the configuration has none.
const DEFAULT_NAME: &str = "rrxe_{netdev}";
/// Most bytes of a link's name: IB_DEVICE_NAME_MAX of the kernel without the terminating zero.
const LONGEST_NAME: usize = 63;

/// The entries of all files of the configuration.
#[derive(Debug, Default)]
pub(super) struct Config {
    entries: Vec<Entry>,
}

/// A link for each network device that has all properties of the entry.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    netdev: Option<Glob>,
    mac: Option<Mac>,
    driver: Option<String>,
    #[serde(default)]
    name: Template,
}

/// The content of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    link: Vec<Spanned<Entry>>,
}

/// A pattern of names of network devices.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Glob(Pattern);

impl TryFrom<String> for Glob {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match Pattern::new(&text) {
            Ok(pattern) if !text.is_empty() => Ok(Self(pattern)),
            _ => Err(format!(
                "'{text}' is no pattern of names: *, ? and [a-z] are allowed in it"
            )),
        }
    }
}

/// A MAC address in lower case.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Mac(String);

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_byte =
            |part: &str| part.len() == 2 && part.bytes().all(|each| each.is_ascii_hexdigit());
        if text.split(':').count() == 6 && text.split(':').all(is_byte) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        Err(format!(
            "'{text}' is no MAC address: an example of one is 52:54:00:12:34:56"
        ))
    }
}

/// The name of a link, or a part of it and [`NETDEV`].
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Template(String);

impl Default for Template {
    fn default() -> Self {
        Self(DEFAULT_NAME.to_owned())
    }
}

impl TryFrom<String> for Template {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let example = text.replace(NETDEV, "eth0");
        if is_name(&example) {
            return Ok(Self(text));
        }
        Err(format!(
            "'{text}' is no name of a link: a name has 1 to {LONGEST_NAME} letters, digits, '.', '_' \
             and '-', the first of which is a letter or a digit, and {NETDEV} stands for the name of \
             the network device"
        ))
    }
}

impl Template {
    /// Returns the name of a link on a network device.
    fn name_for(&self, netdev: &str) -> Result<String, Failure> {
        let name = self.0.replace(NETDEV, netdev);
        if is_name(&name) {
            return Ok(name);
        }
        Err(Failure(format!(
            "'{name}' is no name of a link: an entry with another name is necessary for {netdev}."
        )))
    }
}

/// Returns whether a text is a name that links may have. The kernel allows more names.
fn is_name(text: &str) -> bool {
    text.len() <= LONGEST_NAME
        && text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|each| each.is_ascii_alphanumeric() || "._-".contains(each))
}

/// The link that a network device is to have.
#[derive(Debug, PartialEq)]
pub(super) struct Wanted {
    /// Name of the link.
    pub(super) name: String,
    /// Whether an entry of the configuration matches the network device.
    pub(super) configured: bool,
}

impl Config {
    /// Reads all files below a directory. Absent files have no entries.
    ///
    /// # Errors
    ///
    /// If a file cannot be read, or is wrong. The message names the file and the line.
    pub(super) fn read(directory: &Path) -> Result<Self, Failure> {
        let mut config = Self::default();
        for path in files(directory) {
            let text = match fs::read_to_string(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                text => text.map_err(|error| Failure(format!("{}: {error}.", path.display())))?,
            };
            config.entries.extend(parse(&path, &text)?);
        }
        Ok(config)
    }

    /// Returns the link that a network device is to have: that of the first matching entry, or one
    /// with the default name.
    ///
    /// # Errors
    ///
    /// If links cannot have that name.
    pub(super) fn wanted(&self, netdev: &Candidate) -> Result<Wanted, Failure> {
        let entry = self.entries.iter().find(|each| each.matches(netdev));
        let default = Template::default();
        let template = entry.map_or(&default, |entry| &entry.name);
        Ok(Wanted {
            name: template.name_for(&netdev.name)?,
            configured: entry.is_some(),
        })
    }

    /// Returns whether an entry matches a network device.
    pub(super) fn matches(&self, netdev: &Candidate) -> bool {
        self.entries.iter().any(|each| each.matches(netdev))
    }
}

impl Entry {
    fn matches(&self, netdev: &Candidate) -> bool {
        let has_name = |glob: &Glob| glob.0.matches(&netdev.name);
        let has_mac = |mac: &Mac| netdev.mac.as_ref() == Some(&mac.0);
        let has_driver = |driver: &String| netdev.driver.as_ref() == Some(driver);
        self.netdev.as_ref().is_none_or(has_name)
            && self.mac.as_ref().is_none_or(has_mac)
            && self.driver.as_ref().is_none_or(has_driver)
    }

    /// Returns whether the entry names no property, and would match each network device.
    fn is_empty(&self) -> bool {
        self.netdev.is_none() && self.mac.is_none() && self.driver.is_none()
    }
}

/// Returns the files of the configuration, in the order in which they count.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut paths = vec![directory.join("links.toml")];
    let is_toml = |path: &PathBuf| path.extension().is_some_and(|end| end == "toml");
    paths.extend(
        device::entries(&directory.join("links.d"))
            .into_iter()
            .filter(is_toml),
    );
    paths
}

/// Parses a file.
fn parse(path: &Path, text: &str) -> Result<Vec<Entry>, Failure> {
    let failure = |span: Range<usize>, message: &str| {
        let line = 1 + text
            .bytes()
            .take(span.start)
            .filter(|each| *each == b'\n')
            .count();
        Failure(format!("{}:{line}: {message}.", path.display()))
    };
    let file: File = toml::from_str(text)
        .map_err(|error| failure(error.span().unwrap_or_default(), error.message().trim()))?;
    if let Some(entry) = file.link.iter().find(|each| each.get_ref().is_empty()) {
        return Err(failure(
            entry.span(),
            "the entry matches no network device: set netdev, mac or driver",
        ));
    }
    Ok(file.link.into_iter().map(Spanned::into_inner).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Result<Config, Failure> {
        let entries = parse(Path::new("/etc/rrxe/links.toml"), text)?;
        Ok(Config { entries })
    }

    fn candidate(name: &str) -> Candidate {
        Candidate {
            index: 5,
            name: name.to_owned(),
            mac: Some("52:54:00:00:00:0a".to_owned()),
            driver: Some("virtio_net".to_owned()),
        }
    }

    fn name_for(text: &str, netdev: &str) -> Option<String> {
        let wanted = entries(text).unwrap().wanted(&candidate(netdev)).unwrap();
        wanted.configured.then_some(wanted.name)
    }

    #[test]
    fn an_entry_matches_by_all_properties_that_it_names() {
        for (entry, matches) in [
            ("netdev = 'eth0'", true),
            ("netdev = 'eth*'", true),
            ("netdev = 'eth'", false),
            ("mac = '52:54:00:00:00:0A'", true),
            ("mac = '52:54:00:00:00:0b'", false),
            ("driver = 'virtio_net'", true),
            ("driver = 'virtio'", false),
            ("netdev = 'eth?'\ndriver = 'virtio_net'", true),
            ("netdev = 'en*'\ndriver = 'virtio_net'", false),
        ] {
            let text = format!("[[link]]\n{entry}\n");
            assert_eq!(name_for(&text, "eth0").is_some(), matches, "{entry}");
        }
    }

    #[test]
    fn the_first_matching_entry_names_the_link() {
        let text = "[[link]]\nnetdev = 'eth0'\nname = 'storage'\n\
                    [[link]]\nnetdev = 'eth*'\nname = 'roce-{netdev}'\n[[link]]\nnetdev = 'en*'\n";
        for (netdev, name) in [
            ("eth0", Some("storage")),
            ("eth1", Some("roce-eth1")),
            ("eno1", Some("rrxe_eno1")),
            ("lan0", None),
        ] {
            assert_eq!(name_for(text, netdev).as_deref(), name, "{netdev}");
        }
    }

    #[test]
    fn a_network_device_without_an_entry_has_the_default_name() {
        let wanted = entries("").unwrap().wanted(&candidate("eth0")).unwrap();
        let default = Wanted {
            name: "rrxe_eth0".to_owned(),
            configured: false,
        };
        assert_eq!(wanted, default);
    }

    #[test]
    fn a_name_of_a_network_device_that_links_cannot_have_is_refused() {
        let failure = entries("").unwrap().wanted(&candidate("a%b")).unwrap_err();
        assert!(
            failure.0.contains("'rrxe_a%b' is no name of a link"),
            "{failure}"
        );
    }

    #[test]
    fn each_error_is_one_sentence_with_file_and_line() {
        for (text, line, sentence) in [
            (
                "[[link]]\nnetdev = 'eth0'\nnmae = 'x'\n",
                3,
                "unknown field `nmae`",
            ),
            ("[[links]]\nnetdev = 'eth0'\n", 1, "unknown field `links`"),
            (
                "[[link]]\n\nnetdev = eth0\n",
                3,
                "string values must be quoted",
            ),
            (
                "[[link]]\nnetdev = 'eth0'\nnetdev = 'eth1'\n",
                3,
                "duplicate key",
            ),
            ("[[link]]\nnetdev = 7\n", 2, "expected a string"),
            (
                "[[link]]\nnetdev = '[a'\n",
                2,
                "'[a' is no pattern of names",
            ),
            ("[[link]]\nnetdev = ''\n", 2, "'' is no pattern of names"),
            ("[[link]]\nmac = '52:54:00:12:34'\n", 2, "is no MAC address"),
            (
                "[[link]]\nmac = '52:54:00:12:34:5g'\n",
                2,
                "is no MAC address",
            ),
            (
                "[[link]]\nnetdev = 'a'\nname = 'a/b'\n",
                3,
                "'a/b' is no name of a link",
            ),
            (
                "[[link]]\nnetdev = 'a'\nname = ''\n",
                3,
                "'' is no name of a link",
            ),
            (
                "[[link]]\nnetdev = 'a'\n[[link]]\nname = 'x'\n",
                3,
                "set netdev, mac or driver",
            ),
        ] {
            let failure = entries(text).unwrap_err();
            let start = format!("/etc/rrxe/links.toml:{line}: ");
            assert!(failure.0.starts_with(&start), "{text}: {failure}");
            assert!(failure.0.contains(sentence), "{text}: {failure}");
            assert!(
                failure.0.ends_with('.') && !failure.0.contains('\n'),
                "{failure}"
            );
        }
    }

    #[test]
    fn files_count_in_the_order_of_their_names_after_the_main_file() {
        let tree = crate::testing::Tree::new(
            "config",
            &[
                ("links.toml", "[[link]]\nnetdev = 'a'\nname = 'main'\n"),
                (
                    "links.d/20.toml",
                    "[[link]]\nnetdev = '?'\nname = 'twenty'\n",
                ),
                (
                    "links.d/10.toml",
                    "[[link]]\nnetdev = '[ab]'\nname = 'ten'\n",
                ),
                ("links.d/30.toml.old", "nonsense"),
            ],
        );
        let config = Config::read(&tree.0).unwrap();
        for (netdev, name) in [("a", "main"), ("b", "ten"), ("c", "twenty")] {
            let wanted = config.wanted(&candidate(netdev)).unwrap();
            assert_eq!(wanted.name, name, "{netdev}");
        }
    }

    #[test]
    fn the_entries_of_the_example_are_right() {
        let example = include_str!("../../../packaging/links.toml");
        let is_entry = |line: &&str| line.starts_with('#') && !line.starts_with("# ");
        let lines = example.lines().filter(is_entry).map(|line| &line[1..]);
        let config = entries(&lines.collect::<Vec<_>>().join("\n")).unwrap();
        assert_eq!(config.entries.len(), 3);
        assert!(parse(Path::new("example"), example).unwrap().is_empty());
    }

    #[test]
    fn without_a_file_no_network_device_has_an_entry() {
        let config = Config::read(Path::new("/nonexistent")).unwrap();
        assert!(!config.matches(&candidate("eth0")));
    }
}
