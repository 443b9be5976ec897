//! Session affinity and traffic policies.

use serde::Deserialize;
use service::TrafficPolicy;

use crate::objects::{
    Problems,
    field::{Field, Quoted, Text, object},
};

/// `spec.sessionAffinityConfig` as it is sent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawAffinityConfig {
    #[serde(rename = "clientIP")]
    client_ip: Field<RawClientIp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawClientIp {
    timeout_seconds: Field<i64>,
}

object!(RawAffinityConfig { 1 => client_ip });
object!(RawClientIp { 1 => timeout_seconds });

/// The default of the API server: three hours.
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;
/// The most that the API server accepts: a day.
const LONGEST_AFFINITY_SECONDS: u32 = 86_400;

/// How many seconds a client keeps its endpoint.
pub(super) fn affinity(
    field: Field<Text>,
    config: Field<RawAffinityConfig>,
    problems: &mut Problems,
) -> Option<u32> {
    const AT: &str = "spec.sessionAffinityConfig.clientIP.timeoutSeconds";
    match field.read("spec.sessionAffinity", problems).as_deref() {
        None | Some("None") => return None,
        Some("ClientIP") => {}
        Some(other) => {
            problems.add("spec.sessionAffinity", format_args!("{} is not None or ClientIP", Quoted(other)));
            return None;
        }
    }
    let seconds = config
        .read("spec.sessionAffinityConfig", problems)
        .and_then(|config| config.client_ip.read("spec.sessionAffinityConfig.clientIP", problems))
        .and_then(|client_ip| client_ip.timeout_seconds.read(AT, problems));
    let Some(seconds) = seconds else { return Some(DEFAULT_AFFINITY_SECONDS) };

    let clamped = seconds.clamp(1, LONGEST_AFFINITY_SECONDS.into());
    if clamped != seconds {
        problems.add(
            AT,
            format_args!("{seconds} is not between 1 and {LONGEST_AFFINITY_SECONDS}; {clamped} is used"),
        );
    }
    Some(u32::try_from(clamped).unwrap_or(LONGEST_AFFINITY_SECONDS))
}

/// A traffic policy; Cluster where none is given.
pub(super) fn traffic(field: Field<Text>, at: &'static str, problems: &mut Problems) -> TrafficPolicy {
    match field.read(at, problems).as_deref() {
        None | Some("Cluster") => TrafficPolicy::Cluster,
        Some("Local") => TrafficPolicy::Local,
        Some(other) => {
            problems.add(at, format_args!("{} is not Cluster or Local; taken as Cluster", Quoted(other)));
            TrafficPolicy::Cluster
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::with_spec;
    use super::*;

    #[test]
    fn client_affinity_without_a_timeout_lasts_three_hours() {
        assert_eq!(with_spec(json!({"sessionAffinity": "ClientIP"})).session_affinity, Some(10_800));
        assert_eq!(with_spec(json!({"sessionAffinity": "None"})).session_affinity, None);
    }

    #[test]
    fn an_affinity_timeout_out_of_range_is_clamped_and_reported() {
        for (asked, given) in [(0, 1), (-5, 1), (86_401, 86_400), (i64::MAX, 86_400)] {
            let service = with_spec(json!({
                "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": asked}},
            }));
            assert_eq!(service.session_affinity, Some(given));
            assert_eq!(service.problems.len(), 1);
        }
    }

    #[test]
    fn the_two_traffic_policies_are_read_apart() {
        let policies = |spec| {
            let service = with_spec(spec);
            (service.internal_traffic_policy, service.external_traffic_policy)
        };
        let (cluster, local) = (TrafficPolicy::Cluster, TrafficPolicy::Local);
        assert_eq!(policies(json!({})), (cluster, cluster));
        assert_eq!(policies(json!({"internalTrafficPolicy": "Local"})), (local, cluster));
        assert_eq!(policies(json!({"externalTrafficPolicy": "Local"})), (cluster, local));
    }

    #[test]
    fn an_unknown_external_policy_is_taken_as_cluster() {
        let service = with_spec(json!({"externalTrafficPolicy": "Nearby"}));
        assert_eq!(service.external_traffic_policy, TrafficPolicy::Cluster);
        assert_eq!(
            service.problems,
            ["spec.externalTrafficPolicy: \"Nearby\" is not Cluster or Local; taken as Cluster"]
        );
    }
}
