//! Prints the table as `ipvsadm -Ln` does. Needs CAP_NET_ADMIN.
//!
//! `cargo run --example list`

use std::error::Error;

use ipvs::{Ipvs, KernelIpvs, text::Listing};

fn main() -> Result<(), Box<dyn Error>> {
    let mut kernel = KernelIpvs::open()?;
    let mut servers = Vec::new();
    for server in kernel.virtual_servers()? {
        let real_servers = kernel.real_servers(server.config.id)?;
        servers.push((server, real_servers));
    }
    print!("{}", Listing::new(kernel.info()?, &servers));
    Ok(())
}
