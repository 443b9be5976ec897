//! The virtual servers that a cleanup leaves alone.

use std::path::Path;

use ipnet::IpNet;

use super::{Error, Origin, checks, file::decode};

/// Virtual servers in these ranges are somebody else's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excluded {
    /// The ranges.
    pub cidrs: Vec<IpNet>,
    /// What is odd about the file, one line each: a range may be in a field whose name is misspelt.
    pub warnings: Vec<String>,
}

impl Excluded {
    /// Reads the ranges of the file, if one is named, and adds those of the flag. Nothing else of the file
    /// counts: somebody who goes back to another mode has that mode's file.
    pub fn read(file: Option<&str>, flag: &[String]) -> Result<Self, Error> {
        const FIELD: &str = "ipvs.excludeCIDRs";
        let mut excluded = match file.map(Path::new).filter(|path| !path.as_os_str().is_empty()) {
            None => Self::default(),
            Some(path) => {
                let decode::File { configuration, warnings } = decode::decode(path, &decode::read(path)?)?;
                let cidrs = checks::cidrs(&configuration.ipvs.exclude_cidrs);
                Self { cidrs: Origin::File(path).check(FIELD, cidrs)?, warnings }
            }
        };
        excluded.cidrs.extend(Origin::Flags.check(FIELD, checks::cidrs(flag))?);
        Ok(excluded)
    }

    /// Whether an address is in one of the ranges.
    pub fn contains(&self, ip: std::net::IpAddr) -> bool {
        self.cidrs.iter().any(|range| range.contains(&ip))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::tests::HEAD;

    #[test]
    fn what_the_file_spares_and_what_the_flag_spares_is_spared() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.conf");
        let fields = "mode: iptables\nipvs: {scheduler: NO SUCH, excludeCIDRs: [10.99.0.0/16]}\n";
        fs::write(&path, format!("{HEAD}{fields}")).unwrap();
        let flag = ["fd00:99::/112".to_owned()];
        let excluded = Excluded::read(path.to_str(), &flag).unwrap();
        assert_eq!(excluded.cidrs, ["10.99.0.0/16", "fd00:99::/112"].map(|cidr| cidr.parse().unwrap()));
        assert_eq!(excluded.warnings, [""; 0]);
        for none in [None, Some("")] {
            assert_eq!(Excluded::read(none, &flag).unwrap().cidrs.len(), 1);
        }
    }
}
