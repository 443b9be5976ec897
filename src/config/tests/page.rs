//! The tables of docs/flags.md, which are written from the options and the flags.

use testkit::documented::{assert_generated, table};

use super::*;

/// Flags of ours that are taken without effect have a help that begins so.
const IGNORED: &str = "Ignored: ";

/// What a flag does, its values, and whether it counts beside a file.
fn effect(flag: &clap::Arg) -> (String, bool) {
    let help = flag.get_help().map(ToString::to_string).unwrap_or_default();
    let (help, counts) = help.strip_suffix(" *").map_or((&*help, false), |help| (help, true));
    let values: Vec<_> = flag.get_possible_values();
    let values: Vec<_> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
    let values = match &values[..] {
        [] => String::new(),
        _ if values.iter().any(|value| value == "`true`") => String::new(),
        values => format!(": {}", values.join(", ")),
    };
    (format!("{}{values}", help.replace('*', "\\*")), counts || flag.get_id() == "config")
}

/// The first cell of a row: the flag, marked if it counts beside a file, and the field.
fn name(flag: Option<&clap::Arg>, field: &str) -> String {
    let flag = flag.map(|flag| {
        let mark = if effect(flag).1 { " \\*" } else { "" };
        match flag.get_short() {
            Some(short) => format!("`-{short}`{mark}"),
            None => format!("`--{}`{mark}", flag.get_long().unwrap()),
        }
    });
    let field = (!field.is_empty()).then(|| format!("`{field}`"));
    flag.into_iter().chain(field).collect::<Vec<_>>().join("<br>")
}

fn quoted(default: &str) -> String {
    if default.is_empty() { "–".to_owned() } else { format!("`{default}`") }
}

#[test]
fn the_tables_of_the_page_of_flags_are_written_from_the_program() {
    let command = Flags::command();
    let flag = |name: &str| command.get_arguments().find(|flag| flag.get_id() == name);
    let [of_flags, of_file] =
        [KubeProxyConfiguration::of_no_flags(), KubeProxyConfiguration::of_empty_file()];
    let row = |option: &Opt| {
        let flag = option.flag.as_ref().and_then(|it| flag(it.name));
        let [default, in_file] = [&of_flags, &of_file].map(|it| quoted(&option.text(&it.tree())));
        let in_file = if in_file == default { String::new() } else { format!("; in a file {in_file}") };
        let effect = option.ignored.map_or_else(|| effect(flag.unwrap()).0, str::to_owned);
        [name(flag, option.field), format!("{default}{in_file}"), effect]
    };
    let (with_effect, ignored): (Vec<_>, Vec<_>) = OPTIONS.iter().partition(|it| it.ignored.is_none());
    let is_option = |flag: &clap::Arg| {
        OPTIONS.iter().any(|it| it.flag.as_ref().is_some_and(|it| flag.get_id() == it.name))
    };
    let own = command.get_arguments().filter(|flag| !is_option(flag)).map(|flag| {
        let defaults: Vec<_> = flag.get_default_values().iter().map(|it| it.to_string_lossy()).collect();
        [name(Some(flag), ""), quoted(&defaults.join(",")), effect(flag).0]
    });
    let (own_ignored, own): (Vec<_>, Vec<_>) = own.partition(|[_, _, effect]| effect.starts_with(IGNORED));
    // By the reason, of which there are few.
    let ignored = ignored.into_iter().map(row).chain(own_ignored);
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for [name, _, why] in ignored {
        let why = why.trim_start_matches(IGNORED).to_owned();
        match reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, names)) => names.push(name),
            None => reasons.push((why, vec![name])),
        }
    }
    let ignored = reasons.into_iter().map(|(why, names)| [why, names.join(", ")]);
    assert_generated(
        "docs/flags.md",
        &[
            ("options", table(["flag, field", "default", "effect"], with_effect.into_iter().map(row))),
            ("flags", table(["flag", "default", "effect"], own)),
            ("ignored", table(["why", "flags and fields"], ignored)),
        ],
    );
}
