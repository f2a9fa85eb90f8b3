// SPDX-License-Identifier: GPL-2.0

//! Files for tests.

use std::{env, fs, path::PathBuf, process};

/// A directory that is removed at the end of a test.
pub(crate) struct Tree(pub(crate) PathBuf);

impl Tree {
    /// Makes a directory with files, whose paths are relative to it.
    pub(crate) fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root = env::temp_dir().join(format!("rrxe-{name}-{}", process::id()));
        fs::create_dir_all(&root).unwrap();
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(root)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
