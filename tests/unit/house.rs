//! The house stays small: its figures in tests/house.toml may only fall. One place names the version of Rust.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use crate::support::documents;

const FIGURES: &str = "tests/house.toml";

/// The fields of some options, whose names mean nothing else: of the kernel, of Services, of syncs.
const OPTIONS: [&str; 4] = ["strict_arp", "max_per_core", "untracked_services", "drain_timeout"];

/// Folders with code that does not ship.
const TOOLS: [&str; 7] = [
    "crates/cluster/",
    "crates/fuzz-targets/",
    "crates/guest/",
    "crates/lab/",
    "crates/testkit/",
    "crates/xtask/",
    "fuzz/",
];

/// A text file of the repository.
struct Source {
    /// Its path from the repository's root.
    path: String,
    text: String,
}

impl Source {
    fn has_extension(&self, wanted: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|extension| extension == wanted)
    }

    fn is_tool(&self) -> bool {
        TOOLS.iter().any(|folder| self.path.starts_with(folder))
    }

    /// Whether all of it is tests.
    fn is_test(&self) -> bool {
        let mut parts = self.path.split('/');
        let file = parts.next_back().unwrap();
        file.ends_with("tests.rs") || parts.any(|folder| folder == "tests" || folder.starts_with("test_"))
    }

    fn is_production(&self) -> bool {
        !self.is_test() && !self.is_tool() && !self.path.starts_with("examples/")
    }

    /// The lines outside of items under `#[cfg(test)]`.
    fn lines(&self) -> Vec<&str> {
        let mut lines = Vec::new();
        let mut rest = self.text.lines();
        while let Some(line) = rest.next() {
            if line.trim_start().starts_with("#[cfg(test)]")
                || line.trim_start().starts_with("#[cfg(all(test")
            {
                skip_item(&mut rest);
            } else {
                lines.push(line);
            }
        }
        lines
    }

    /// Those of them that are neither blank nor comments.
    fn code(&self) -> impl Iterator<Item = &str> {
        let is_code = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("//");
        self.lines().into_iter().filter(is_code)
    }

    fn lines_of_code(&self) -> usize {
        self.code().count()
    }

    /// Whether its code has this name of a field.
    fn names(&self, field: &str) -> bool {
        self.code().any(|line| {
            line.split(|letter: char| !letter.is_alphanumeric() && letter != '_').any(|word| word == field)
        })
    }

    /// The names of its tests.
    fn tests(&self) -> impl Iterator<Item = &str> {
        self.text.split("test]").skip(1).filter_map(|rest| {
            let mut lines = rest.lines().skip(1).map(str::trim_start);
            let line = lines.find(|line| !line.starts_with(['#', '/']))?;
            let (name, _) = line.split_once("fn ")?.1.split_once('(')?;
            Some(name)
        })
    }
}

/// Goes past an item: to the end of its braces, or to its semicolon.
fn skip_item<'a>(lines: &mut impl Iterator<Item = &'a str>) {
    let mut depth = 0_usize;
    let mut has_body = false;
    for line in lines {
        depth = (depth + line.matches('{').count()).saturating_sub(line.matches('}').count());
        has_body |= line.contains('{');
        if depth == 0 && (has_body || line.trim_end().ends_with(';')) {
            return;
        }
    }
}

/// Every text file below a folder.
fn read(folder: &Path, sources: &mut Vec<Source>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let is_skipped = ["target", "corpus", "artifacts"].contains(&name);
        if path.is_dir() && !is_skipped && (!name.starts_with('.') || name == ".github") {
            read(&path, sources);
        } else if path.is_file()
            && let Ok(text) = fs::read_to_string(&path)
        {
            let path = path.strip_prefix(documents::root()).unwrap().to_str().unwrap().to_owned();
            sources.push(Source { path, text });
        }
    }
}

fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    read(documents::root(), &mut sources);
    sources
}

/// The figures and the unwanted words.
fn recorded() -> (BTreeMap<String, usize>, Vec<String>) {
    let text = fs::read_to_string(documents::root().join(FIGURES)).unwrap();
    let text: String =
        text.lines().filter(|line| !line.starts_with('#')).flat_map(|line| [line, "\n"]).collect();
    let (figures, words) = text.split_once("[words]").unwrap();
    let figures = figures.lines().filter_map(|line| line.split_once(" = "));
    let figures = figures.map(|(name, figure)| (name.to_owned(), figure.parse().unwrap())).collect();
    (figures, words.split_terminator('\n').filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

/// How often each of these words is in a text, whatever stands between its letters' groups: the end of a line, the
/// mark of a comment, or the underscore of a name.
fn count_words<'a>(text: &str, words: &'a [String]) -> BTreeMap<&'a str, usize> {
    let parts = text.split(|letter: char| !letter.is_alphanumeric()).filter(|part| !part.is_empty());
    let plain = format!(" {} ", parts.collect::<Vec<_>>().join(" ").to_lowercase());
    let plain = plain.replace(" there is no ", " ").replace(" is no longer ", " ");
    let counts = words.iter().map(|word| (word.as_str(), plain.matches(&format!(" {word} ")).count()));
    counts.filter(|(_, count)| *count > 0).collect()
}

/// Measures everything. Beside each figure: where it was found, if it is a maximum or a sum of places.
fn measured(sources: &[Source], words: &[String]) -> BTreeMap<&'static str, (usize, String)> {
    let rust: Vec<&Source> = sources.iter().filter(|source| source.has_extension("rs")).collect();
    let production: Vec<&Source> = rust.iter().copied().filter(|source| source.is_production()).collect();
    let tools: Vec<&Source> =
        rust.iter().copied().filter(|source| source.is_tool() && !source.is_test()).collect();
    let lines = |sources: &[&Source]| sources.iter().map(|source| source.lines_of_code()).sum::<usize>();
    let most = |found: &mut dyn Iterator<Item = (usize, String)>| found.max().unwrap_or_default();

    let mut folders: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for source in &rust {
        *folders.entry(Path::new(&source.path).parent().unwrap().to_owned()).or_default() += 1;
    }
    // It has a program for each target, which cargo-fuzz wants.
    folders.remove(Path::new("fuzz/src/bin"));
    let mut folders = folders.into_iter().map(|(folder, count)| (count, folder.display().to_string()));
    let mut files = production.iter().map(|source| (source.lines().len(), source.path.clone()));
    let mut names = rust
        .iter()
        .flat_map(|source| source.tests().map(|name| (name.len(), format!("{} in {}", name, source.path))));

    let naming = |option: &&str| production.iter().filter(|source| source.names(option)).count();
    let mut options = OPTIONS.iter().map(|option| (naming(option), (*option).to_owned()));

    let is_prose = |source: &&Source| source.has_extension("rs") || source.has_extension("md");
    // What is said of the words, and what was said in the past.
    let exempt = ["CONTRIBUTING.md", "CHANGELOG.md"];
    let prose = sources.iter().filter(is_prose).filter(|source| !exempt.contains(&source.path.as_str()));
    let mut unwanted = 0;
    let mut places = String::new();
    for source in prose {
        let counts = count_words(&source.text, words);
        if !counts.is_empty() {
            unwanted += counts.values().sum::<usize>();
            write!(places, "\n    {}: {counts:?}", source.path).unwrap();
        }
    }
    BTreeMap::from([
        ("production-files", (production.len(), String::new())),
        ("production-lines", (lines(&production), String::new())),
        ("tools-files", (tools.len(), String::new())),
        ("tools-lines", (lines(&tools), String::new())),
        ("lines-in-a-file", most(&mut files)),
        ("files-in-a-folder", most(&mut folders)),
        ("files-that-name-an-option", most(&mut options)),
        ("characters-in-a-test-name", most(&mut names)),
        ("unwanted-words", (unwanted, places)),
    ])
}

#[test]
fn the_figures_of_the_house_only_fall() {
    let (figures, words) = recorded();
    let measured = measured(&sources(), &words);
    assert!(figures.keys().eq(measured.keys()), "{FIGURES} has other figures: {figures:?}");
    let mut risen = Vec::new();
    for (name, (now, place)) in &measured {
        let most = figures[*name];
        if *now > most {
            risen.push(format!("{name}: {now}, {FIGURES} allows {most}: {place}"));
        } else if *now < most {
            println!("{name} = {now} may be written into {FIGURES}, {} less", most - now);
        }
    }
    assert!(risen.is_empty(), "{}", risen.join("\n"));
}

#[test]
fn code_is_counted_without_comments_blank_lines_and_tests() {
    let text = "//! Comment.\n\nfn one() {\n    // Comment.\n}\n\n#[cfg(test)]\nmod tests {\n    #[test]\n    \
                fn it_works() {}\n}\nfn two() {}\n#[cfg(test)]\nmod more;\n";
    let source = Source { path: "src/x.rs".to_owned(), text: text.to_owned() };
    assert_eq!((source.lines_of_code(), source.lines().len()), (3, 7));
    assert_eq!(source.tests().collect::<Vec<_>>(), ["it_works"]);
    let words = ["is no", "told"].map(str::to_owned);
    let found = count_words("it is\n/// no word; there is no other. fn is_told()", &words);
    assert_eq!(found, BTreeMap::from([("is no", 1), ("told", 1)]));
}

#[test]
fn only_rust_toolchain_toml_names_the_version_of_rust() {
    let sources = sources();
    let pinned = sources.iter().find(|source| source.path == "rust-toolchain.toml").unwrap();
    let (_, version) = pinned.text.split_once("channel = \"").unwrap();
    let (minor, _) = version.split_once('"').unwrap().0.rsplit_once('.').unwrap();
    // A count of instructions names the compiler of the program that was counted, as CHANGELOG.md names those of the past.
    let exempt = ["rust-toolchain.toml", "CHANGELOG.md", "crates/watcher/benches/instructions.json"];
    let is_exempt = |source: &&Source| exempt.contains(&source.path.as_str()) || source.has_extension("lock");
    for source in sources.iter().filter(|source| !is_exempt(source)) {
        let is_part_of_a_number =
            |index| source.text[..index].ends_with(|it: char| it.is_ascii_digit() || it == '.');
        let mut found = source.text.match_indices(minor);
        assert!(
            found.all(|(index, _)| is_part_of_a_number(index)),
            "{} repeats Rust's version {minor}",
            source.path
        );
    }
}
