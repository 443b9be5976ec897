# Every recipe is a cargo command; `just` only saves typing.

set positional-arguments

# List the recipes.
default:
    @just --list

# Show the main job: a Service, two pods, IPVS between them.
demo *args:
    cargo xtask demo "$@"

# Every test: unit, kernel, API server, beside kube-proxy, bench, faults. `just test --tier unit` for one tier.
test *args:
    cargo xtask test "$@"

# Measure kube-ipvs beside the kernel's own limit and kube-proxy: target/bench/report.json.
bench *args:
    cargo xtask bench "$@"

# Measure what many nodes cost the API server.
scale *args:
    cargo xtask scale "$@"

# Fuzz every decoder: `just fuzz --seconds 60 ipvs`.
fuzz *args:
    cargo xtask fuzz "$@"

# Inject faults on a real kernel with a real API server: `just chaos --seed 7 ipvsadm`.
chaos *args:
    cargo xtask chaos "$@"

# Run an hour of churn under load; fails if anything is lost or grows: `just soak --minutes 5`.
soak *args:
    cargo xtask soak "$@"

# Run a command as root in the test kernel: `just vm ipvsadm -Ln`.
vm *args:
    cargo xtask vm "$@"

# The container image for amd64 and arm64, and its SBOMs, in target/image.
image *args:
    cargo xtask image "$@"

# Packages for Debian, Fedora and their kin, in target/package.
package *args:
    cargo xtask package "$@"

# The manual pages, in target/man.
man:
    cargo xtask man

# The documents as a site, in target/book/html.
book:
    cargo xtask book

# The pictures of the documents, in docs/pictures.
pictures *args:
    cargo xtask pictures "$@"

# What is published of a version, in target/release-VERSION.
release *args:
    cargo xtask release "$@"

# Format and lints, as the unit tier checks them.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --all-features -- --deny warnings
    cargo clippy --package kube-ipvs --no-default-features -- --deny warnings
