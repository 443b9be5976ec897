//! The choice of a real server, by the formulas of the kernel (net/netfilter/ipvs/ip_vs_wrr.c, `ip_vs_wlc.c`, `ip_vs_sed.c`).

use ipvs::Scheduler;

/// The real servers of one virtual server on one node, in the order of the kernel's list.
#[derive(Debug)]
pub(super) struct Balancer {
    scheduler: Scheduler,
    list: Vec<Listed>,
    /// The weights by the endpoints' numbers.
    weights: Vec<Option<i64>>,
    /// Of `wrr`: the last choice (`cl`), `None` at the head; the weight that is needed now (`cw`), the greatest (`mw`) and the
    /// step (`di`).
    last: Option<usize>,
    needed: i64,
    greatest: i64,
    step: i64,
}

#[derive(Clone, Copy, Debug)]
struct Listed {
    endpoint: usize,
    weight: i64,
}

/// The connections of an endpoint that IPVS counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Connections {
    pub(super) active: u32,
    pub(super) inactive: u32,
}

impl Balancer {
    pub(super) fn new(scheduler: Scheduler) -> Self {
        let (list, weights) = (Vec::new(), Vec::new());
        Self { scheduler, list, weights, last: None, needed: 0, greatest: 0, step: 1 }
    }

    /// Writes a weight, as `ip_vs_add_dest` and `ip_vs_edit_dest` do: new ones come first in the list. Returns the weight
    /// before.
    pub(super) fn set(&mut self, endpoint: usize, weight: u32) -> Option<u32> {
        let weight = i64::from(weight);
        self.weights.resize(self.weights.len().max(endpoint + 1), None);
        let before = self.weights.get_mut(endpoint).and_then(|known| known.replace(weight));
        if before == Some(weight) {
            return u32::try_from(weight).ok();
        }
        match self.list.iter_mut().find(|it| it.endpoint == endpoint) {
            Some(listed) => listed.weight = weight,
            None => {
                self.list.insert(0, Listed { endpoint, weight });
                self.last = self.last.map(|at| at + 1);
            }
        }
        if self.scheduler == Scheduler::RR {
            // It goes on where it was, with each that has any weight.
            (self.needed, self.greatest) = (1, 1);
        } else {
            self.changed();
        }
        before.and_then(|before| u32::try_from(before).ok())
    }

    /// Whether it has no real server yet.
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The weight of an endpoint; 0 also if it has none.
    pub(super) fn weight(&self, endpoint: usize) -> i64 {
        self.weights.get(endpoint).copied().flatten().unwrap_or_default()
    }

    /// `ip_vs_wrr_dest_changed`.
    fn changed(&mut self) {
        let weights = || self.list.iter().map(|it| it.weight);
        let divisor = weights().filter(|weight| *weight > 0).fold(0, greatest_common_divisor);
        self.last = None;
        self.step = divisor.max(1);
        self.greatest = weights().max().unwrap_or_default() - (self.step - 1);
        if self.needed > self.greatest || self.needed == 0 {
            self.needed = self.greatest;
        } else if self.step > 1 {
            self.needed = self.needed / self.step * self.step + 1;
        }
    }

    /// The endpoint of a new connection; `None` if all weights are 0.
    pub(super) fn choose(&mut self, connections: impl Fn(usize) -> Connections) -> Option<usize> {
        match self.scheduler {
            Scheduler::SED => self.least(|endpoint| i64::from(connections(endpoint).active) + 1),
            Scheduler::WLC => self.least(|endpoint| {
                let Connections { active, inactive } = connections(endpoint);
                (i64::from(active) << 8) + i64::from(inactive)
            }),
            _ => self.in_turn(),
        }
    }

    /// The first of those with the least load for their weight.
    fn least(&self, load: impl Fn(usize) -> i64) -> Option<usize> {
        let mut usable = self.list.iter().filter(|it| it.weight > 0);
        let first = *usable.next()?;
        let better = |(least, its): (Listed, i64), other: &Listed| {
            let load = load(other.endpoint);
            if its * other.weight > load * least.weight { (*other, load) } else { (least, its) }
        };
        let (least, _) = usable.fold((first, load(first.endpoint)), better);
        Some(least.endpoint)
    }

    /// `ip_vs_wrr_schedule`.
    fn in_turn(&mut self) -> Option<usize> {
        if self.greatest <= 0 {
            return None;
        }
        for _ in 0..=self.greatest / self.step + 1 {
            let from = self.last.map_or(0, |at| at + 1);
            let mut rest = self.list.iter().enumerate().skip(from);
            if let Some((at, it)) = rest.find(|(_, it)| it.weight >= self.needed) {
                self.last = Some(at);
                return Some(it.endpoint);
            }
            self.last = None;
            self.needed -= self.step;
            if self.needed <= 0 {
                self.needed = self.greatest;
            }
        }
        None
    }
}

fn greatest_common_divisor(one: i64, other: i64) -> i64 {
    if other == 0 { one } else { greatest_common_divisor(other, one % other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choices(scheduler: Scheduler, weights: &[u32], count: usize) -> Vec<usize> {
        let mut balancer = Balancer::new(scheduler);
        for (endpoint, weight) in weights.iter().enumerate().rev() {
            balancer.set(endpoint, *weight);
        }
        let mut active = vec![0; weights.len()];
        let mut chosen = Vec::new();
        for _ in 0..count {
            let next = balancer.choose(|it| Connections { active: active[it], inactive: 0 }).unwrap();
            active[next] += 1;
            chosen.push(next);
        }
        chosen
    }

    #[test]
    fn wrr_gives_each_its_weight_and_one_of_weight_zero_nothing() {
        let chosen = choices(Scheduler::WRR, &[4, 2, 0, 2], 800);
        let count = |endpoint| chosen.iter().filter(|it| **it == endpoint).count();
        assert_eq!([0, 1, 2, 3].map(count), [400, 200, 0, 200]);
        assert_eq!(Balancer::new(Scheduler::WRR).choose(|_| Connections::default()), None);
    }

    #[test]
    fn sed_and_wlc_fill_the_heavier_one_first() {
        assert_eq!(choices(Scheduler::SED, &[1, 3], 4), [1, 1, 0, 1]);
        assert_eq!(choices(Scheduler::WLC, &[1, 3], 4), [0, 1, 1, 1]);
    }

    #[test]
    fn wrr_begins_again_at_the_head_of_its_list_with_each_weight_that_is_written() {
        let mut balancer = Balancer::new(Scheduler::WRR);
        for endpoint in 0..4 {
            balancer.set(endpoint, 100);
        }
        let mut next = |weight| {
            balancer.set(4, weight);
            balancer.choose(|_| Connections::default())
        };
        assert_eq!([10, 13, 16, 19].map(&mut next), [Some(4); 4], "one connection between any two");
    }
}
