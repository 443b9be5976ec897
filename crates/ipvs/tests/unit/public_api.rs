//! The public API, compared with `public-api.txt`, so that no change of it is an accident.
//!
//! It is read from the source. What rustdoc knows is more exact, but its JSON is for nightly toolchains, and
//! needs a reader that fits each of them. Here a change of the compiler changes nothing.
//!
//! ```text
//! UPDATE_PUBLIC_API=1 cargo test -p linux-ipvs --test unit
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
};

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::{
    Attribute, Expr, Fields, ImplItem, Item, ItemImpl, Signature, Token, TraitItem, Type, UseTree,
    Visibility, braced,
    parse::{ParseStream, Parser as _},
};

const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/public-api.txt");
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src");

#[test]
fn public_api_is_the_recorded_one() {
    let api = public_api();
    if env::var_os("UPDATE_PUBLIC_API").is_some() {
        fs::write(RECORD, &api).unwrap();
    }
    let recorded = fs::read_to_string(RECORD).unwrap();
    let [now, then]: [BTreeSet<&str>; 2] = [api.lines().collect(), recorded.lines().collect()];
    let added = now.difference(&then).map(|line| format!("+ {line}"));
    let removed = then.difference(&now).map(|line| format!("- {line}"));
    let changes: Vec<_> = removed.chain(added).collect();
    assert!(
        changes.is_empty(),
        "the public API has changed:\n{}\nIs it meant, and does the version fit? Then UPDATE_PUBLIC_API=1",
        changes.join("\n")
    );
}

/// One line for each public item, field, variant, method and implementation, sorted.
fn public_api() -> String {
    let items = all_items(Path::new(SOURCE));
    let exported = exported(Path::new(SOURCE), "lib.rs", "ipvs");
    let mut lines = BTreeSet::new();
    for item in &items {
        match item {
            Item::Impl(item) => lines.extend(implementation(item, &exported)),
            item => lines.extend(
                name(item).and_then(|it| exported.get(&it)).iter().flat_map(|to| declaration(item, to)),
            ),
        }
    }
    lines.iter().flat_map(|line| [line.trim_end(), "\n"]).collect()
}

/// Every item of the crate outside of tests.
fn all_items(directory: &Path) -> Vec<Item> {
    let mut items = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            items.extend(all_items(&path));
        } else if path.file_name().is_some_and(|name| name != "tests.rs") {
            items.extend(parsed(&path));
        }
    }
    items
}

fn parsed(path: &Path) -> Vec<Item> {
    syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap().items
}

/// The public path of each name that a module and its public modules export.
fn exported(directory: &Path, file: &str, path: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for item in parsed(&directory.join(file)) {
        match item {
            Item::Use(item) if is_public(&item.vis) && !is_hidden(&item.attrs) => {
                names.extend(leaves(&item.tree).into_iter().map(|it| (it.clone(), format!("{path}::{it}"))));
            }
            Item::Mod(item) if is_public(&item.vis) && !is_hidden(&item.attrs) => {
                let (inner, path) = (item.ident.to_string(), format!("{path}::{}", item.ident));
                names.extend(exported(&directory.join(&inner), &format!("../{inner}.rs"), &path));
            }
            item => names.extend(name(&item).map(|it| (it.clone(), format!("{path}::{it}")))),
        }
    }
    names
}

fn leaves(tree: &UseTree) -> Vec<String> {
    match tree {
        UseTree::Path(path) => leaves(&path.tree),
        UseTree::Name(name) => vec![name.ident.to_string()],
        UseTree::Group(group) => group.items.iter().flat_map(leaves).collect(),
        other => panic!("{} is not exported by name", other.to_token_stream()),
    }
}

/// The name of a public item.
fn name(item: &Item) -> Option<String> {
    let (vis, ident) = match item {
        Item::Const(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Fn(item) => (&item.vis, &item.sig.ident),
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Macro(item) => return macro_name(&item.mac.tokens.to_string()),
        _ => return None,
    };
    is_public(vis).then(|| ident.to_string())
}

/// `bitflags! { pub struct NAME: … }`
fn macro_name(tokens: &str) -> Option<String> {
    let (_, rest) = tokens.split_once("pub struct ")?;
    rest.split_whitespace().next().map(str::to_owned)
}

fn declaration(item: &Item, path: &str) -> Vec<String> {
    let mut lines = Vec::new();
    match item {
        Item::Const(item) => lines.push(format!("{path}: const {}", text(&item.ty))),
        Item::Fn(item) => lines.push(format!("{path}: {}", signature(&item.sig))),
        Item::Struct(item) => {
            lines.push(format!("{path}: struct{} {}", text(&item.generics), attributes(&item.attrs)));
            lines.extend(fields(&item.fields, path, true));
        }
        Item::Enum(item) => {
            lines.push(format!("{path}: enum {}", attributes(&item.attrs)));
            for variant in &item.variants {
                let path = format!("{path}::{}", variant.ident);
                lines.push(format!("{path}: variant {}", attributes(&variant.attrs)));
                lines.extend(fields(&variant.fields, &path, false));
            }
        }
        Item::Trait(item) => {
            lines.push(format!("{path}: trait {}", text(&item.supertraits)));
            lines.extend(item.items.iter().map(|item| match item {
                TraitItem::Fn(method) => format!("{path}::{}: {}", method.sig.ident, signature(&method.sig)),
                other => format!("{path}: {}", text(other)),
            }));
        }
        Item::Macro(item) => lines.extend(flags(item.mac.tokens.clone(), path)),
        other => panic!("{} is not known here", text(other)),
    }
    lines
}

fn fields(fields: &Fields, path: &str, by_visibility: bool) -> Vec<String> {
    let public = fields.iter().enumerate().filter(|(_, field)| !by_visibility || is_public(&field.vis));
    let line = |(number, field): (usize, &syn::Field)| {
        let name = field.ident.as_ref().map_or(number.to_string(), ToString::to_string);
        format!("{path}.{name}: {} {}", text(&field.ty), attributes(&field.attrs))
    };
    public.map(line).collect()
}

/// The macro of the crate bitflags, whose constants have no types.
fn flags(tokens: TokenStream, path: &str) -> Vec<String> {
    let parse = |input: ParseStream<'_>| {
        let attrs = input.call(Attribute::parse_outer)?;
        input.parse::<Visibility>()?;
        input.parse::<Token![struct]>()?;
        input.parse::<Ident>()?;
        input.parse::<Token![:]>()?;
        let bits: Type = input.parse()?;
        let mut lines = vec![format!("{path}: bitflags {} {}", text(&bits), attributes(&attrs))];
        let constants;
        braced!(constants in input);
        while !constants.is_empty() {
            constants.call(Attribute::parse_outer)?;
            constants.parse::<Token![const]>()?;
            let name: Ident = constants.parse()?;
            constants.parse::<Token![=]>()?;
            let value: Expr = constants.parse()?;
            constants.parse::<Token![;]>()?;
            lines.push(format!("{path}::{name} = {}", text(&value)));
        }
        Ok(lines)
    };
    parse.parse2(tokens).unwrap()
}

/// An implementation for, or of something about, a public type.
fn implementation(item: &ItemImpl, exported: &BTreeMap<String, String>) -> Vec<String> {
    let Type::Path(subject) = &*item.self_ty else { return Vec::new() };
    let subject = subject.path.segments.last().unwrap().ident.to_string();
    let path = exported.get(&subject);
    let Some((implemented, _)) = &item.trait_ else {
        let Some(path) = path else { return Vec::new() };
        let methods = item.items.iter().filter_map(|item| match item {
            ImplItem::Fn(method) if is_public(&method.vis) => {
                Some((&method.sig.ident, signature(&method.sig)))
            }
            ImplItem::Const(constant) if is_public(&constant.vis) => {
                Some((&constant.ident, format!("const {}", text(&constant.ty))))
            }
            _ => None,
        });
        return methods.map(|(name, kind)| format!("{path}::{name}: {kind}")).collect();
    };
    let implemented = text(implemented);
    let about = exported.keys().any(|name| implemented.contains(&format!("<{name}>")));
    match path {
        Some(path) => vec![format!("{path} is {implemented}")],
        None if about => vec![format!("{subject} is {implemented}")],
        None => Vec::new(),
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| text(&attribute.meta) == "doc(hidden)")
}

/// The attributes that a user can notice.
fn attributes(attributes: &[Attribute]) -> String {
    let noticed = ["cfg", "derive", "non_exhaustive", "serde"];
    let noticed = attributes.iter().filter(|it| noticed.iter().any(|name| it.path().is_ident(name)));
    noticed.map(text).collect::<Vec<_>>().join(" ")
}

/// What a function takes and returns.
fn signature(signature: &Signature) -> String {
    text(signature)
        .replacen(&format!(" {}", signature.ident), "", 1)
        .replace("fn (", "fn(")
        .replace("(mut self", "(self")
}

/// Tokens on one line, with nearly the blanks that rustfmt leaves.
fn text(tokens: &impl ToTokens) -> String {
    let blanks = [
        ("# [", "#["),
        (" :: ", "::"),
        (":: ", "::"),
        (" :", ":"),
        (" ;", ";"),
        (" ,", ","),
        (",)", ")"),
        ("& ", "&"),
        (" <", "<"),
        ("< ", "<"),
        (" >", ">"),
        ("( ", "("),
        (" )", ")"),
        ("+ ? ", "+ ?"),
        ("FnMut (", "FnMut("),
        ("derive (", "derive("),
        ("serde (", "serde("),
        ("cfg (", "cfg("),
        ("doc (", "doc("),
    ];
    let tokens = tokens.to_token_stream().to_string();
    blanks.iter().fold(tokens, |text, (from, to)| text.replace(from, to))
}
