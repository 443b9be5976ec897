//! Which clients may reach a load balancer's address (`spec.loadBalancerSourceRanges`).

use netfilter::AllowedSource;

use crate::{AddressKind, Service, frontend::Frontend, this_node::ThisNode};

impl Frontend<'_> {
    /// The clients that may reach it, sorted, without overlaps; `None`: everybody.
    pub(crate) fn allowed_sources(
        &self,
        service: &Service,
        _node: &ThisNode,
    ) -> Option<Box<[AllowedSource]>> {
        let _ranges = service.load_balancer_source_ranges.as_ref()?;
        (self.kind == AddressKind::LoadBalancer).then(Box::default)
    }
}
