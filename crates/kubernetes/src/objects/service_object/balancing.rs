//! The annotations of a Service that say how its connections are balanced.

mod slow_start;
mod weights;

use std::{fmt::Display, num::NonZero, str::FromStr};

use ipvs::{Scheduler, ServiceFlags};
use service::{Balancing, ForwardingMethod};

use self::{slow_start::slow_start, weights::by_name};
use crate::objects::{
    Problems,
    field::Quoted,
    metadata::{Annotation, Metadata},
};

/// How a Service asks to be balanced; `None` if it asks for nothing that can be used. An annotation that
/// cannot be used counts as absent.
pub(super) fn balancing(metadata: &mut Metadata<'_>, problems: &mut Problems) -> Option<Box<Balancing>> {
    // kube-router's annotations count where none of ours can be used.
    let schedulers = ["kube-ipvs.io/scheduler", "kube-router.io/service.scheduler"];
    let flags = ["kube-ipvs.io/scheduler-flags", "kube-router.io/service.schedflags"];
    let forwarding_methods = ["kube-ipvs.io/forwarding-method", "kube-router.io/service.dsr"];

    let by_node = metadata.annotation("kube-ipvs.io/weights-by-node", problems);
    let by_zone = metadata.annotation("kube-ipvs.io/weights-by-zone", problems);
    let by_distance = metadata.annotation("kube-ipvs.io/weights-by-distance", problems);
    let eject = metadata.annotation("kube-ipvs.io/eject", problems);
    let udp_answers = metadata.annotation("kube-ipvs.io/udp-answers", problems);
    let slow_start = metadata.annotation("kube-ipvs.io/slow-start", problems);
    let conntrack = metadata.annotation("kube-ipvs.io/conntrack", problems);
    let most = metadata.annotation("kube-ipvs.io/max-connections", problems);
    let below = metadata.annotation("kube-ipvs.io/resume-below", problems);
    let scheduler = first_usable(schedulers, metadata, problems, self::scheduler);
    let max_connections = most.and_then(|it| connections(&it, problems));
    let balancing = Balancing {
        scheduler,
        scheduler_flags: first_usable(flags, metadata, problems, |it, problems| {
            scheduler_flags(it, scheduler, problems)
        }),
        node_weights: by_node.map(|it| by_name(&it, problems)).unwrap_or_default(),
        zone_weights: by_zone.map(|it| by_name(&it, problems)).unwrap_or_default(),
        distance_weights: by_distance.and_then(|it| parsed(&it, problems)),
        ejection: eject.and_then(|it| parsed(&it, problems)),
        answers_datagrams: udp_answers
            .and_then(|it| either(&it, [("true", true), ("false", false)], problems))
            .unwrap_or_default(),
        slow_start: slow_start.and_then(|it| self::slow_start(&it, problems)),
        max_connections,
        resume_below: below.and_then(|it| resume_below(&it, max_connections, problems)),
        forwarding_method: first_usable(forwarding_methods, metadata, problems, forwarding_method),
        conntrack: conntrack.and_then(|it| either(&it, [("on", true), ("off", false)], problems)),
    };
    (balancing != Balancing::default()).then(|| balancing.into())
}

/// The value of the first annotation that can be used; the second is read only if the first cannot.
fn first_usable<T>(
    keys: [&'static str; 2],
    metadata: &mut Metadata<'_>,
    problems: &mut Problems,
    usable: impl Fn(&Annotation<'_>, &mut Problems) -> Option<T>,
) -> Option<T> {
    keys.into_iter().find_map(|key| usable(&metadata.annotation(key, problems)?, problems))
}

/// A scheduler of the mainline kernel. Only these are accepted, so that a typing error is reported
/// before a kernel is asked.
fn scheduler(Annotation { at, text }: &Annotation<'_>, problems: &mut Problems) -> Option<Scheduler> {
    let found = Scheduler::ALL.into_iter().find(|known| known.as_str() == text.trim());
    if found.is_none() {
        let known: Vec<_> = Scheduler::ALL.iter().map(Scheduler::as_str).collect();
        problems.add(
            at,
            format_args!("{} is not a scheduler; the schedulers are {}", Quoted(text), known.join(", ")),
        );
    }
    found
}

/// The flags of a scheduler; all of them or none, since some of the flags alone would balance differently.
fn scheduler_flags(
    Annotation { at, text }: &Annotation<'_>,
    of: Option<Scheduler>,
    problems: &mut Problems,
) -> Option<ServiceFlags> {
    let of = problems.require(of, at, "ignored without an annotation for the scheduler")?;
    let mut flags = ServiceFlags::empty();
    for name in elements(text) {
        let unknown = format_args!("{} is not a flag of the scheduler {of}", Quoted(name));
        flags |= problems.require(of.flag(name), at, unknown)?;
    }
    Some(flags)
}

/// The largest limit. The kernel compares multiples of both limits in 32 bits (`ip_vs_unbind_dest` in
/// net/netfilter/ipvs/ip_vs_conn.c).
const MOST_CONNECTIONS: u32 = 1_000_000_000;

fn connections(Annotation { at, text }: &Annotation<'_>, problems: &mut Problems) -> Option<NonZero<u32>> {
    let number = text.trim().parse().ok().filter(|number: &NonZero<u32>| number.get() <= MOST_CONNECTIONS);
    let otherwise = format_args!("{} is not a number between 1 and {MOST_CONNECTIONS}", Quoted(text));
    problems.require(number, at, otherwise)
}

fn resume_below(
    annotation: &Annotation<'_>,
    max_connections: Option<NonZero<u32>>,
    problems: &mut Problems,
) -> Option<NonZero<u32>> {
    let below = connections(annotation, problems)?;
    let mut unusable = |why: &dyn Display| problems.add(annotation.at, why);
    match max_connections {
        None => unusable(&"ignored without kube-ipvs.io/max-connections"),
        Some(most) if below > most => unusable(&format_args!("{below} is more than max-connections, {most}")),
        Some(_) => return Some(below),
    }
    None
}

fn forwarding_method(annotation: &Annotation<'_>, problems: &mut Problems) -> Option<ForwardingMethod> {
    let words = [("masq", ForwardingMethod::Masquerade), ("tunnel", ForwardingMethod::Tunnel)];
    either(annotation, words, problems)
}

/// The value of the one of two words that an annotation consists of.
fn either<T>(
    Annotation { at, text }: &Annotation<'_>,
    words: [(&str, T); 2],
    problems: &mut Problems,
) -> Option<T> {
    let [(one, _), (other, _)] = words;
    let found = words.into_iter().find(|(word, _)| *word == text.trim());
    let neither = format_args!("{} is neither {one} nor {other}", Quoted(text));
    problems.require(found, at, neither).map(|(_, value)| value)
}

/// The value that an annotation means as a whole.
fn parsed<T: FromStr<Err: Display>>(
    Annotation { at, text }: &Annotation<'_>,
    problems: &mut Problems,
) -> Option<T> {
    let found = text.parse::<T>();
    found.inspect_err(|error| problems.add(at, format_args!("invalid value {}: {error}", Quoted(text)))).ok()
}

/// The elements between commas, without blanks around them.
fn elements(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};
    use service::{ByDistance, Ejection, Service, Weights};

    use super::super::tests::decoded;
    use super::*;
    use crate::objects::Decoded;

    pub(super) fn with(annotations: &Value) -> Service {
        let metadata = json!({"name": "web", "namespace": "shop", "annotations": annotations});
        let Decoded::Object(service) = decoded(json!({ "metadata": metadata })) else {
            panic!("not decoded")
        };
        service
    }

    pub(super) fn asked(annotations: &Value) -> Balancing {
        let service = with(annotations);
        assert_eq!(service.problems, [""; 0]);
        service.balancing.map(|it| *it).unwrap_or_default()
    }

    /// The problems of annotations of which nothing is used.
    pub(super) fn problems(annotations: &Value) -> Vec<String> {
        let service = with(annotations);
        assert_eq!(service.balancing, None);
        service.problems
    }

    pub(super) fn weights_of(weights: &[(&str, u16)]) -> Weights {
        weights.iter().map(|(name, weight)| ((*name).into(), *weight)).collect()
    }

    #[test]
    fn what_the_annotations_ask_for_is_read() {
        let balancing = asked(&json!({
            "kube-ipvs.io/scheduler": "sh",
            "kube-ipvs.io/scheduler-flags": "sh-fallback, flag-2",
            "kube-ipvs.io/weights-by-node": "n2=5,n1=65535",
            "kube-ipvs.io/weights-by-zone": " a=3 , b = 1,",
            "kube-ipvs.io/weights-by-distance": "node=100,zone=10,other=1",
            "kube-ipvs.io/eject": "silent,refusing",
            "kube-ipvs.io/conntrack": "off",
            "kube-ipvs.io/udp-answers": "true",
            "kube-ipvs.io/slow-start": "30s",
            "kube-ipvs.io/max-connections": "100",
            "kube-ipvs.io/resume-below": "80",
            "kube-ipvs.io/forwarding-method": "tunnel",
            "example.com/another": 7,
        }));
        assert_eq!(
            balancing,
            Balancing {
                scheduler: Some(Scheduler::SH),
                scheduler_flags: Some(ServiceFlags::SCHEDULER_1 | ServiceFlags::SCHEDULER_2),
                node_weights: weights_of(&[("n1", 65_535), ("n2", 5)]),
                zone_weights: weights_of(&[("a", 3), ("b", 1)]),
                distance_weights: Some("node=100,zone=10,other=1".parse().unwrap()),
                ejection: Some(Ejection::SILENT | Ejection::REFUSING),
                answers_datagrams: true,
                slow_start: Some(Duration::from_secs(30)),
                max_connections: NonZero::new(100),
                resume_below: NonZero::new(80),
                forwarding_method: Some(ForwardingMethod::Tunnel),
                conntrack: Some(false),
            }
        );
    }

    #[test]
    fn without_annotations_nothing_is_kept() {
        assert_eq!(with(&json!({"example.com/another": "x"})).balancing, None);
    }

    #[test]
    fn factors_by_distance_are_used_all_or_not_at_all() {
        let by_distance =
            |text: &str| asked(&json!({"kube-ipvs.io/weights-by-distance": text})).distance_weights;
        assert_eq!(by_distance("node=9,zone=3,other=1"), "node=9,zone=3,other=1".parse().ok());
        assert_eq!(by_distance("off"), Some(ByDistance::Off), "also where the flag says otherwise");
        for text in ["node=9,zone=3", "node=9,zone=3,other=0", "node=1001,zone=3,other=1", "on", ""] {
            assert_eq!(
                problems(&json!({"kube-ipvs.io/weights-by-distance": text})),
                [format!(
                    "metadata.annotations[kube-ipvs.io/weights-by-distance]: invalid value {text:?}: expected off or \
                     node=N,zone=N,other=N with numbers between 1 and 1000"
                )]
            );
        }
    }

    #[test]
    fn the_failing_endpoints_that_are_ejected_are_named() {
        let ejection = |text: &str| asked(&json!({"kube-ipvs.io/eject": text})).ejection;
        assert_eq!(ejection("silent"), Some(Ejection::SILENT));
        assert_eq!(ejection("refusing"), Some(Ejection::REFUSING));
        assert_eq!(ejection("silent, refusing"), Some(Ejection::all()));
        assert_eq!(ejection("off"), Some(Ejection::empty()), "also where the flag says otherwise");
        for text in ["dead", "silent,dead", "true", ""] {
            assert_eq!(
                problems(&json!({"kube-ipvs.io/eject": text})),
                [format!(
                    "metadata.annotations[kube-ipvs.io/eject]: invalid value {text:?}: expected off, silent, refusing or \
                     silent,refusing"
                )]
            );
        }
    }

    #[test]
    fn whether_every_datagram_is_answered_is_true_or_false() {
        assert!(asked(&json!({"kube-ipvs.io/udp-answers": "true"})).answers_datagrams);
        assert!(!asked(&json!({"kube-ipvs.io/udp-answers": "false"})).answers_datagrams);
        for text in ["yes", "True", "1", ""] {
            assert_eq!(
                problems(&json!({"kube-ipvs.io/udp-answers": text})),
                [format!(
                    "metadata.annotations[kube-ipvs.io/udp-answers]: {text:?} is neither true nor false"
                )]
            );
        }
    }

    #[test]
    fn conntrack_is_on_or_off() {
        let conntrack = |text: &str| asked(&json!({"kube-ipvs.io/conntrack": text})).conntrack;
        assert_eq!((conntrack("on"), conntrack(" off ")), (Some(true), Some(false)));
        assert_eq!(
            problems(&json!({"kube-ipvs.io/conntrack": "false"})),
            ["metadata.annotations[kube-ipvs.io/conntrack]: \"false\" is neither on nor off"]
        );
    }

    #[test]
    fn kube_routers_names_count_where_ours_are_not_there() {
        let theirs = json!({
            "kube-router.io/service.scheduler": "mh",
            "kube-router.io/service.schedflags": "flag-1,flag-2",
        });
        let balancing = asked(&theirs);
        assert_eq!(balancing.scheduler, Some(Scheduler::MH));
        assert_eq!(balancing.scheduler_flags, Some(ServiceFlags::SCHEDULER_1 | ServiceFlags::SCHEDULER_2));

        let mut both = theirs;
        both["kube-ipvs.io/scheduler"] = "lc".into();
        both["kube-ipvs.io/scheduler-flags"] = "".into();
        let balancing = asked(&both);
        assert_eq!(balancing.scheduler, Some(Scheduler::LC));
        assert_eq!(balancing.scheduler_flags, Some(ServiceFlags::empty()));
    }

    #[test]
    fn kube_routers_annotation_for_direct_return_means_a_tunnel() {
        let method = |annotations| asked(annotations).forwarding_method;
        let theirs = json!({"kube-router.io/service.dsr": "tunnel"});
        assert_eq!(method(&theirs), Some(ForwardingMethod::Tunnel));
        let both = json!({"kube-router.io/service.dsr": "tunnel", "kube-ipvs.io/forwarding-method": "masq"});
        assert_eq!(method(&both), Some(ForwardingMethod::Masquerade));
        assert_eq!(
            problems(&json!({"kube-ipvs.io/forwarding-method": "direct"})),
            ["metadata.annotations[kube-ipvs.io/forwarding-method]: \"direct\" is neither masq nor tunnel"]
        );
    }

    #[test]
    fn kube_routers_names_count_where_ours_cannot_be_used() {
        let service = with(&json!({
            "kube-ipvs.io/scheduler": "fastest",
            "kube-ipvs.io/scheduler-flags": "sh-port",
            "kube-router.io/service.scheduler": "mh",
            "kube-router.io/service.schedflags": "flag-1",
        }));
        let balancing = service.balancing.unwrap();
        assert_eq!(balancing.scheduler, Some(Scheduler::MH));
        assert_eq!(balancing.scheduler_flags, Some(ServiceFlags::SCHEDULER_1));
        assert_eq!(service.problems.len(), 2, "{:?}", service.problems);
    }

    #[test]
    fn an_annotation_of_nothing_but_faults_is_reported_in_a_few_lines() {
        let service = with(&json!({"kube-ipvs.io/weights-by-node": "x\u{1b},".repeat(80_000)}));
        assert_eq!(service.problems.len(), 17);
        assert!(service.problems.iter().map(String::len).sum::<usize>() < 2000, "{:?}", service.problems);
        let long = format!("{0}=1,{0}=2", "x".repeat(100_000));
        let service = with(&json!({"kube-ipvs.io/weights-by-node": long, "kube-ipvs.io/scheduler": long}));
        assert!(service.problems.iter().all(|it| it.len() < 300), "{:?}", service.problems);
    }

    #[test]
    fn an_unknown_scheduler_is_not_used_and_named() {
        let all = "rr, wrr, lc, wlc, lblc, lblcr, sh, dh, sed, nq, fo, ovf, mh, twos";
        assert_eq!(
            problems(&json!({"kube-ipvs.io/scheduler": "fastest"})),
            [format!(
                "metadata.annotations[kube-ipvs.io/scheduler]: \"fastest\" is not a scheduler; the schedulers are {all}"
            )]
        );
        assert_eq!(
            problems(&json!({"kube-ipvs.io/scheduler": 7})),
            ["metadata.annotations[kube-ipvs.io/scheduler]: 7 is not a string"]
        );
    }

    #[test]
    fn a_flag_that_is_not_the_schedulers_is_not_used() {
        let service =
            with(&json!({"kube-ipvs.io/scheduler": "mh", "kube-ipvs.io/scheduler-flags": "mh-port,sh-port"}));
        let at = "metadata.annotations[kube-ipvs.io/scheduler-flags]";
        assert_eq!(service.problems, [format!("{at}: \"sh-port\" is not a flag of the scheduler mh")]);
        assert_eq!(service.balancing.unwrap().scheduler_flags, None, "neither is the other");
        assert_eq!(
            problems(&json!({"kube-ipvs.io/scheduler-flags": "flag-1"})),
            [format!("{at}: ignored without an annotation for the scheduler")]
        );
    }

    #[test]
    fn a_limit_that_the_kernel_would_not_keep_is_not_used() {
        let at = "metadata.annotations[kube-ipvs.io/max-connections]";
        for number in ["0", "-1", "1000000001", "many", ""] {
            assert_eq!(
                problems(&json!({"kube-ipvs.io/max-connections": number})),
                [format!("{at}: {number:?} is not a number between 1 and 1000000000")]
            );
        }
        let at = "metadata.annotations[kube-ipvs.io/resume-below]";
        assert_eq!(
            problems(&json!({"kube-ipvs.io/resume-below": "5"})),
            [format!("{at}: ignored without kube-ipvs.io/max-connections")]
        );
        let service = with(&json!({"kube-ipvs.io/max-connections": "5", "kube-ipvs.io/resume-below": "6"}));
        assert_eq!(service.problems, [format!("{at}: 6 is more than max-connections, 5")]);
        assert_eq!(service.balancing.unwrap().resume_below, None);
    }
}
