//! `--vmodule`: a verbosity of its own for some source files of kube-proxy.

use std::str::FromStr;

use crate::config::file::v1alpha1::VModule;

/// Patterns of file names with their verbosities, as the flag says them: `PATTERN=N,...`.
#[derive(Clone, Debug, Default)]
pub(crate) struct VModules(pub(in crate::config) Vec<VModule>);

impl FromStr for VModules {
    type Err = String;

    fn from_str(list: &str) -> Result<Self, Self::Err> {
        let modules = list.split(',').filter(|module| !module.is_empty());
        let module = |text: &str| {
            let (pattern, verbosity) = text.split_once('=')?;
            Some(VModule { file_pattern: pattern.to_owned(), verbosity: verbosity.parse().ok()? })
        };
        modules
            .map(|text| module(text).ok_or_else(|| format!("{text:?} is no PATTERN=N")))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}
