# Every recipe is a cargo command; `just` only saves typing.

set positional-arguments

# List the recipes.
default:
    @just --list

# Run the demo: a Service, two pods, IPVS between them.
demo *args:
    cargo xtask demo "$@"

# Run every test: unit, kernel, API server, beside kube-proxy, bench, faults. `just test --tier unit` for one tier.
test *args:
    cargo xtask test "$@"

# Compare kube-ipvs with the kernel's own limit and kube-proxy: target/bench/report.json.
bench *args:
    cargo xtask bench "$@"

# Simulate what many nodes do to one Service: `just scale --nodes 1000`.
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

# Build the container image for amd64 and arm64, and its SBOMs, in target/image.
image *args:
    cargo xtask image "$@"

# Build packages for Debian, Fedora and their derivatives, in target/package.
package *args:
    cargo xtask package "$@"

# Build the manual pages, in target/man.
man:
    cargo xtask man

# Build a site from the documents, in target/book/html.
book:
    cargo xtask book

# Draw the documents' pictures, in docs/pictures.
pictures *args:
    cargo xtask pictures "$@"

# Build a release, in target/release-VERSION.
release *args:
    cargo xtask release "$@"

# Check formatting and lints, as the unit tier does.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --all-features -- --deny warnings
    cargo clippy --package kube-ipvs --no-default-features -- --deny warnings
