//! The picture, drawn by Grafana's own components in a browser. The project is in `crates/lab/dashboard`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use guest::programs::{self, Program};
use guest::workspace;
use serde_json::Value;

const PROGRAMS: [Program; 4] = [
    Program { name: "node", package: "nodejs" },
    Program { name: "npm", package: "npm" },
    Program { name: "chromium", package: "chromium" },
    Program { name: "pngquant", package: "pngquant" },
];
/// The list of what is installed, with checksums.
const LOCK: &str = "package-lock.json";
const FILES: [&str; 5] = ["package.json", ".npmrc", "dashboard.tsx", "dashboard.html", LOCK];
const BUNDLER: &str = "node_modules/esbuild/bin/esbuild";
const BUNDLE: [&str; 10] = [
    "dashboard.tsx",
    "--bundle",
    "--minify",
    "--log-level=warning",
    "--outfile=dashboard.js",
    "--jsx=automatic",
    "--define:process.env.NODE_ENV=\"production\"",
    "--loader:.woff2=dataurl",
    "--loader:.woff=dataurl",
    "--loader:.ttf=empty",
];

/// What draws, ready to do so.
pub(super) struct Programs(PathBuf);

impl Programs {
    /// Installs what is missing: programs on the machine, and packages in `directory`.
    pub(super) fn ensure(directory: &Path) -> Result<Self> {
        programs::ensure(&PROGRAMS)?;
        let (ours, project) = (workspace::root().join("crates/lab/dashboard"), directory.join("project"));
        fs::create_dir_all(&project).with_context(|| project.display().to_string())?;
        let lock = |place: &Path| fs::read(place.join(LOCK)).ok();
        let installed = project.join(BUNDLER).exists() && lock(&ours) == lock(&project);
        for name in FILES {
            fs::copy(ours.join(name), project.join(name)).with_context(|| name.to_owned())?;
        }
        if !installed {
            eprintln!("xtask: installing Grafana's components (npm ci; once, 500 MB)");
            let mut install = Command::new("npm");
            programs::run(
                install.args(["ci", "--no-audit", "--no-fund", "--loglevel=error"]).current_dir(&project),
            )?;
        }
        Ok(Self(project))
    }

    /// Draws `drawn` into this file.
    pub(super) fn draw(&self, drawn: &Value, picture: &Path) -> Result<()> {
        let Self(project) = self;
        fs::write(project.join("data.js"), format!("window.drawn = {drawn};\n")).context("data.js")?;
        programs::run(Command::new("node").arg(BUNDLER).args(BUNDLE).current_dir(project))?;
        let full = project.join("dashboard.png");
        let mut browser = Command::new("chromium");
        browser
            .args(["--headless", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=10000"])
            .arg(format!("--user-data-dir={}", project.join("profile").display()))
            .arg(format!("--window-size=1400,{}", height(drawn)))
            .arg(format!("--screenshot={}", full.display()));
        if programs::is_root() {
            // It refuses to run as root with one. It sees nothing but these files.
            browser.arg("--no-sandbox");
        }
        // It complains a lot about what a machine without a desktop lacks.
        let said = browser.arg(project.join("dashboard.html")).output().context("starting chromium")?;
        ensure!(said.status.success(), "chromium: {}", String::from_utf8_lossy(&said.stderr));
        // 256 colours, which are a third of the bytes.
        let mut reduce = Command::new("pngquant");
        programs::run(reduce.args(["--force", "--strip", "--output"]).arg(picture).arg(full))
    }
}

/// As high as its lowest panel, in the pixels of Grafana's grid.
fn height(drawn: &Value) -> u64 {
    let panels = drawn.pointer("/dashboard/panels").and_then(Value::as_array).into_iter().flatten();
    let number = |panel: &Value, field| panel.pointer(field).and_then(Value::as_u64).unwrap_or_default();
    let bottoms = panels.map(|panel| number(panel, "/gridPos/y") + number(panel, "/gridPos/h"));
    bottoms.max().unwrap_or_default() * 38 + 8
}
