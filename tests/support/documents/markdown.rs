//! As much of Markdown as the documents use.

/// A fenced block.
#[derive(Debug)]
pub(crate) struct Block<'a> {
    /// The word after the fence.
    pub(crate) language: &'a str,
    /// The comments on the lines before it, without their marks.
    pub(crate) comments: Vec<&'a str>,
    /// The number of its first line in the document, from 1.
    pub(crate) line: usize,
    /// Its lines, without the indentation of the fence.
    pub(crate) lines: Vec<&'a str>,
}

impl<'a> Block<'a> {
    /// The fenced blocks of a text.
    pub(crate) fn all(text: &'a str) -> Vec<Self> {
        let mut blocks = Vec::new();
        let mut comments = Vec::new();
        let mut lines = text.lines().enumerate();
        while let Some((number, line)) = lines.next() {
            let indentation = line.len() - line.trim_start().len();
            if let Some(language) = line.trim_start().strip_prefix("```") {
                let inside = lines.by_ref().take_while(|(_, line)| line.trim() != "```");
                let lines = inside.map(|(_, line)| line.get(indentation..).unwrap_or_default()).collect();
                blocks.push(Self {
                    language,
                    comments: std::mem::take(&mut comments),
                    line: number + 2,
                    lines,
                });
            } else if line.trim_start().starts_with("<!--") {
                let from = text.lines().take(number).map(|line| line.len() + 1).sum();
                let (inside, _) = text[from..].split_once("-->").unwrap();
                comments.push(inside.trim_start().trim_start_matches("<!--").trim());
                lines.by_ref().take(inside.matches('\n').count()).for_each(drop);
            } else if !line.trim().is_empty() {
                comments.clear();
            }
        }
        blocks
    }
}

/// The text outside of fenced blocks, line by line.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// What stands between backticks; a span may go on in the next line.
pub(crate) fn spans(text: &str) -> Vec<String> {
    let joined = prose(text).map(str::trim).collect::<Vec<_>>().join("\n");
    let paragraphs = joined.split("\n\n").flat_map(|paragraph| paragraph.split("\n|"));
    let spans = paragraphs.flat_map(|paragraph| paragraph.split('`').skip(1).step_by(2));
    spans.map(|span| span.replace('\n', " ")).collect()
}

/// Where its links lead.
pub(crate) fn links(text: &str) -> Vec<&str> {
    let after = prose(text).flat_map(|line| line.split("](").skip(1));
    after.filter_map(|rest| rest.split_once(')')).map(|(link, _)| link).collect()
}

/// What a link can name in it: its headings, as GitHub makes anchors of them.
pub(crate) fn slugs(text: &str) -> Vec<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    let mut slugs: Vec<String> = Vec::new();
    for heading in headings {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'));
        let slug: String = kept.map(|it| if it == ' ' { '-' } else { it }).collect();
        let before = slugs.iter().filter(|other| **other == slug).count();
        slugs.push(if before == 0 { slug } else { format!("{slug}-{before}") });
    }
    slugs
}
