pub(crate) mod canned;

use super::*;

#[test]
fn the_plugin_is_known_by_the_name_of_its_file() {
    for (program, expected) in [
        ("kubectl-ipvs", true),
        ("/usr/local/bin/kubectl-ipvs", true),
        ("/usr/local/bin/kube-ipvs", false),
        ("/opt/kubectl-ipvs/kube-proxy", false),
        ("", false),
    ] {
        assert_eq!(is_called(OsStr::new(program)), expected, "{program}");
    }
}
