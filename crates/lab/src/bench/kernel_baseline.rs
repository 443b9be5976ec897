//! What the kernel itself needs, with no program in between.

use anyhow::Result;
use testkit::{
    kernel_baseline::{Size, read, write},
    lab::Lab,
};

use super::{case::Binding, figures::Figures};

pub(super) fn measure(size: Size, binding: Binding) -> Result<Figures> {
    let lab = Lab::new(0, testkit::kernel_baseline::TARGET_PORT)?;
    let (written, reading) = lab.node.inside(move || {
        let written = write(size, binding.into())?;
        anyhow::Ok((written, read(binding.into())?))
    })??;
    Ok(Figures::KernelBaseline {
        write: written.as_secs_f64(),
        read_ipvs_by_netlink: reading.ipvs_by_netlink.as_secs_f64(),
        read_ipvs_as_text: reading.ipvs_as_text.as_secs_f64(),
        read_rest: reading.rest.as_secs_f64(),
    })
}
