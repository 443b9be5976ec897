//! Schedulers and the names of their flags.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::ServiceFlags;

/// The longest name the kernel takes: `IP_VS_SCHEDNAME_MAXLEN` less the NUL.
const LONGEST: usize = 15;

/// A scheduler's flags in the kernel's order.
const FLAGS: [ServiceFlags; 3] =
    [ServiceFlags::SCHEDULER_1, ServiceFlags::SCHEDULER_2, ServiceFlags::SCHEDULER_3];

/// Their names for any scheduler.
const FLAG_NUMBERS: [&str; 3] = ["flag-1", "flag-2", "flag-3"];

/// The name of a scheduler: how a virtual server picks the real server of a new connection.
///
/// Any name is accepted that the kernel could know; the kernel loads the module `ip_vs_NAME` when it
/// is first used and answers ENOENT when there is none. The name is stored in place.
///
/// ```
/// use ipvs::Scheduler;
///
/// assert_eq!("wlc".parse(), Ok(Scheduler::WLC));
/// assert!("Round Robin".parse::<Scheduler>().is_err());
/// assert_eq!("of-later-kernel".parse::<Scheduler>().map(|name| name.to_string()).as_deref(), Ok("of-later-kernel"));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Scheduler {
    length: u8,
    name: [u8; LONGEST],
}

impl Scheduler {
    /// Round robin.
    pub const RR: Self = Self::known("rr");
    /// Weighted round robin.
    pub const WRR: Self = Self::known("wrr");
    /// Least connections.
    pub const LC: Self = Self::known("lc");
    /// Weighted least connections.
    pub const WLC: Self = Self::known("wlc");
    /// Locality-based least connections.
    pub const LBLC: Self = Self::known("lblc");
    /// Locality-based least connections with replication.
    pub const LBLCR: Self = Self::known("lblcr");
    /// Source hashing.
    pub const SH: Self = Self::known("sh");
    /// Destination hashing.
    pub const DH: Self = Self::known("dh");
    /// Shortest expected delay.
    pub const SED: Self = Self::known("sed");
    /// Never queue.
    pub const NQ: Self = Self::known("nq");
    /// Weighted fail-over.
    pub const FO: Self = Self::known("fo");
    /// Weighted overflow.
    pub const OVF: Self = Self::known("ovf");
    /// Maglev hashing.
    pub const MH: Self = Self::known("mh");
    /// Power of two choices.
    pub const TWOS: Self = Self::known("twos");

    /// Every scheduler of the mainline kernel: net/netfilter/ipvs/Kconfig.
    pub const ALL: [Self; 14] = [
        Self::RR,
        Self::WRR,
        Self::LC,
        Self::WLC,
        Self::LBLC,
        Self::LBLCR,
        Self::SH,
        Self::DH,
        Self::SED,
        Self::NQ,
        Self::FO,
        Self::OVF,
        Self::MH,
        Self::TWOS,
    ];

    /// The name as the kernel spells it.
    pub fn as_str(&self) -> &str {
        let name = self.name.get(..usize::from(self.length)).unwrap_or_default();
        std::str::from_utf8(name).unwrap_or_default()
    }

    /// Whether it hashes addresses into a table that it fills with the real servers in the order of the
    /// kernel's list: two nodes choose alike only if they have them in one order
    /// (net/netfilter/ipvs/ip_vs_sh.c, ip_vs_dh.c and ip_vs_mh.c).
    pub fn is_hashing(&self) -> bool {
        [Self::SH, Self::DH, Self::MH].contains(self)
    }

    /// The names of the scheduler flags among these, as ipvsadm prints them for this scheduler.
    pub fn flag_names(&self, flags: ServiceFlags) -> impl Iterator<Item = &'static str> {
        let names = FLAGS.into_iter().zip(self.names_of_flags());
        names.filter(move |(flag, name)| flags.contains(*flag) && !name.is_empty()).map(|(_, name)| name)
    }

    /// The flag of this name, as ipvsadm takes it: by number, or by this scheduler's own name for it.
    ///
    /// ```
    /// use ipvs::{Scheduler, ServiceFlags};
    ///
    /// assert_eq!(Scheduler::SH.flag("sh-port"), Some(ServiceFlags::SCHEDULER_2));
    /// assert_eq!(Scheduler::WRR.flag("flag-2"), Some(ServiceFlags::SCHEDULER_2));
    /// ```
    pub fn flag(&self, name: &str) -> Option<ServiceFlags> {
        let by_number = FLAGS.into_iter().zip(FLAG_NUMBERS);
        let mut named = FLAGS.into_iter().zip(self.names_of_flags()).chain(by_number);
        named.find(|(_, known)| *known == name && !name.is_empty()).map(|(flag, _)| flag)
    }

    /// Neither `sh` nor `mh` has a name for the third.
    fn names_of_flags(&self) -> [&'static str; 3] {
        match *self {
            Self::SH => ["sh-fallback", "sh-port", ""],
            Self::MH => ["mh-fallback", "mh-port", ""],
            _ => FLAG_NUMBERS,
        }
    }

    const fn known(name: &str) -> Self {
        let (from, mut to, mut length) = (name.as_bytes(), [0; LONGEST], 0u8);
        let mut rest: &[u8] = from;
        let mut space: &mut [u8] = &mut to;
        while let ([byte, after @ ..], [slot, left @ ..]) = (rest, space) {
            *slot = *byte;
            length += 1;
            rest = after;
            space = left;
        }
        Self { length, name: to }
    }
}

/// A text that cannot be the name of a scheduler.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be an IPVS scheduler: a name has 1 to 15 lower-case letters, digits, - or _")]
#[non_exhaustive]
pub struct InvalidScheduler(pub String);

impl FromStr for Scheduler {
    type Err = InvalidScheduler;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        if name.is_empty() || name.len() > LONGEST || !name.bytes().all(allowed) {
            return Err(InvalidScheduler(name.to_owned()));
        }
        Ok(Self::known(name))
    }
}

impl TryFrom<String> for Scheduler {
    type Error = InvalidScheduler;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
    }
}

impl From<Scheduler> for String {
    fn from(scheduler: Scheduler) -> Self {
        scheduler.as_str().to_owned()
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_scheduler_is_spelled_as_the_kernel_spells_it() {
        for scheduler in Scheduler::ALL {
            assert_eq!(scheduler.as_str().parse(), Ok(scheduler));
        }
        assert_eq!(Scheduler::LBLCR.as_str(), "lblcr");
    }

    #[test]
    fn a_name_the_kernel_could_not_hold_is_refused() {
        for name in ["", "sixteen-letters!", "sixteencharacter", "r r", "RR", "r\0r"] {
            assert_eq!(name.parse::<Scheduler>(), Err(InvalidScheduler(name.to_owned())));
        }
    }

    #[test]
    fn a_flag_has_a_number_and_for_sh_and_mh_a_name() {
        let (first, second) = (ServiceFlags::SCHEDULER_1, ServiceFlags::SCHEDULER_2);
        assert_eq!(Scheduler::SH.flag("sh-fallback"), Some(first));
        assert_eq!(Scheduler::MH.flag("mh-port"), Some(second));
        assert_eq!(Scheduler::MH.flag("flag-2"), Some(second));
        for name in ["sh-port", "mh_port", "flag-0", ""] {
            assert_eq!(Scheduler::MH.flag(name), None, "{name:?}");
        }
        let names = |scheduler: Scheduler, flags| scheduler.flag_names(flags).collect::<Vec<_>>().join(",");
        assert_eq!(names(Scheduler::MH, ServiceFlags::all()), "mh-fallback,mh-port");
        assert_eq!(names(Scheduler::WRR, first | ServiceFlags::PERSISTENT), "flag-1");
    }

    #[test]
    fn a_scheduler_of_a_later_kernel_is_taken_by_name() {
        assert_eq!("fifteen-letters".parse::<Scheduler>().unwrap().to_string(), "fifteen-letters");
    }
}
