//! What a document says a command prints, beside what it prints.
//!
//! `…` in a line stands for anything, as a line of its own for any lines. How many spaces there are does not count, nor in
//! which order the lines come: the kernel lists virtual servers and elements in an order of its own.

/// Why they differ, or nothing.
pub(crate) fn difference(expected: &[String], printed: &str) -> Option<String> {
    let mut printed: Vec<String> = printed.lines().map(squeezed).filter(|line| !line.is_empty()).collect();
    let (mut elided, mut exact, mut patterns) = (false, Vec::new(), Vec::new());
    for line in expected.iter().map(|line| squeezed(line)).filter(|line| !line.is_empty()) {
        match line.as_str() {
            "…" => elided = true,
            _ if line.contains('…') => patterns.push(line),
            _ => exact.push(line),
        }
    }
    // What matches one line only goes first, so that a pattern does not take it away.
    patterns.sort_by_key(|pattern| std::cmp::Reverse(pattern.len()));
    for line in exact.iter().chain(&patterns) {
        match printed.iter().position(|candidate| matches(line, candidate)) {
            Some(at) => drop(printed.swap_remove(at)),
            None => return Some(format!("no line is {line:?}")),
        }
    }
    let unexpected = printed.first().filter(|_| !elided);
    unexpected.map(|line| format!("nothing is said of {line:?}"))
}

fn squeezed(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether the line is the pattern, with anything for each `…`.
fn matches(pattern: &str, line: &str) -> bool {
    let mut parts = pattern.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}
