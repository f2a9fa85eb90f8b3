// SPDX-License-Identifier: GPL-2.0

//! Records of the links that `rrxe up` added: one file for each network device, which `rrxe down`
//! removes.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rustix::fs::{flock, FlockOperation};
use serde::{Deserialize, Serialize};

use crate::{device, manage, tool::Failure};

/// A link that `rrxe up` added.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Record {
    /// Name of the network device when the link was added. The device may have another name now.
    pub(super) netdev: String,
    /// Index of the network device.
    pub(super) netdev_index: u32,
    /// Name of the link.
    pub(super) name: String,
    /// Index of the RDMA device. The kernel does not give the index of a deleted link to the next
    /// link, so a record never means a link that somebody else added later.
    pub(super) index: u32,
    /// Whether an entry of the configuration matched the network device.
    pub(super) configured: bool,
}

/// The directory of the records. No other process of this program has it open.
pub(super) struct Records {
    directory: PathBuf,
    _lock: File,
}

impl Records {
    /// Makes the directory if it is absent, and waits until no other process has it open.
    ///
    /// # Errors
    ///
    /// If the user is not root, or the directory cannot be made.
    pub(super) fn open(directory: &Path) -> Result<Self, Failure> {
        let lock = fs::create_dir_all(directory)
            .and_then(|()| File::open(directory))
            .and_then(|file| Ok(flock(&file, FlockOperation::LockExclusive).map(|()| file)?))
            .map_err(|error| failure(directory, &error))?;
        Ok(Self {
            directory: directory.to_owned(),
            _lock: lock,
        })
    }

    /// Returns all records.
    ///
    /// # Errors
    ///
    /// If a record cannot be read.
    pub(super) fn all(&self) -> Result<Vec<Record>, Failure> {
        let is_record = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
        let paths = device::entries(&self.directory)
            .into_iter()
            .filter(is_record);
        let read = |path: PathBuf| {
            let text = fs::read_to_string(&path).map_err(|error| failure(&path, &error))?;
            serde_json::from_str(&text).map_err(|error| failure(&path, &error.into()))
        };
        paths.map(read).collect()
    }

    /// Writes the record of a link, in place of an earlier record of its network device.
    ///
    /// # Errors
    ///
    /// If the directory cannot be written to.
    pub(super) fn write(&self, record: &Record) -> Result<(), Failure> {
        let path = self.path(&record.netdev);
        let new = path.with_extension("new");
        serde_json::to_vec(record)
            .map_err(io::Error::from)
            .and_then(|text| fs::write(&new, text))
            .and_then(|()| fs::rename(&new, &path))
            .map_err(|error| failure(&path, &error))
    }

    /// Removes the record of a network device.
    ///
    /// # Errors
    ///
    /// If the record cannot be removed.
    pub(super) fn remove(&self, netdev: &str) -> Result<(), Failure> {
        let path = self.path(netdev);
        fs::remove_file(&path).map_err(|error| failure(&path, &error))
    }

    fn path(&self, netdev: &str) -> PathBuf {
        self.directory.join(format!("{netdev}.json"))
    }
}

fn failure(path: &Path, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Failure(manage::needs_root()),
        _ => Failure(format!("{}: {error}.", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn record(netdev: &str, index: u32) -> Record {
        Record {
            netdev: netdev.to_owned(),
            netdev_index: 5,
            name: "rrxe0".to_owned(),
            index,
            configured: true,
        }
    }

    #[test]
    fn a_record_is_kept_until_it_is_removed() {
        let tree = Tree::new("records", &[]);
        let records = Records::open(&tree.0).unwrap();
        // The names differ only after a dot, as those of a device and its VLAN do.
        for each in [record("eth0", 1), record("eth0", 2), record("eth0.5", 3)] {
            records.write(&each).unwrap();
        }
        assert_eq!(
            records.all().unwrap(),
            [record("eth0.5", 3), record("eth0", 2)]
        );
        records.remove("eth0").unwrap();
        assert_eq!(records.all().unwrap(), [record("eth0.5", 3)]);
    }

    #[test]
    fn a_second_process_waits() {
        let tree = Tree::new("locked", &[]);
        let _records = Records::open(&tree.0).unwrap();
        let second = File::open(&tree.0).unwrap();
        assert!(flock(&second, FlockOperation::NonBlockingLockExclusive).is_err());
    }

    #[test]
    fn a_damaged_record_is_named() {
        let tree = Tree::new("damaged", &[("eth0.json", "{")]);
        let failure = Records::open(&tree.0).unwrap().all().unwrap_err();
        assert!(failure.0.contains("eth0.json: EOF"), "{failure}");
    }
}
