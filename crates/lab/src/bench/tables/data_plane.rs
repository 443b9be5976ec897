//! What packets cost, each variant beside IPVS by hand.

use testkit::kube_proxy::Mode;

use super::Report;
use crate::{
    bench::{
        case::{Binding, Program},
        data_plane::{
            Traffic, Variant,
            figures::{Cost, DataPlane, Estimation, Row},
        },
        figures::Figures,
    },
    statistics::median,
    table::{NONE, Table},
};

/// What kube-ipvs may cost more than IPVS by hand, on open connections and for new ones.
const OPEN: f64 = 0.03;
const NEW: f64 = 0.08;

/// Of one number of Services.
type Measured<'a> = (u32, &'a DataPlane);

pub(super) fn tables(report: &Report) -> String {
    let measured = report.worked().filter_map(|(case, figures)| match figures {
        Figures::DataPlane(figures) => Some((case.size.services, figures)),
        _ => None,
    });
    let measured: Vec<Measured<'_>> = measured.collect();
    let each = measured.iter().map(|(services, figures)| rows(*services, figures));
    let text = [goals(&measured), medians(&measured), growth(&measured), estimation(&measured)];
    text.into_iter().chain(each).collect()
}

/// How many rows meet each goal, and how far the worst is off.
fn goals(measured: &[Measured<'_>]) -> String {
    let mut table = Table::new("Goals", "goal | Services | VIPs as | rows that meet it | median | worst");
    for (services, figures) in measured {
        for binding in [Binding::Address, Binding::Route] {
            let ours = |row: &Row| Some(row.cost(Variant::Program(Program::KubeIpvs(binding)))?.to_by_hand);
            let by_hand = |row: &Row| Some(ours(row)? - 1.0);
            let beside = |row: &Row, modes: &[Mode]| {
                let cost =
                    |mode: &Mode| Some(row.cost(Variant::Program(Program::KubeProxy(*mode)))?.to_by_hand);
                Some(ours(row)? / modes.iter().filter_map(cost).min_by(f64::total_cmp)? - 1.0)
            };
            let is_new = |row: &Row| row.traffic == Traffic::Connections;
            let mut goal = |goal: &str, limit: f64, value: &dyn Fn(&Row) -> Option<f64>| {
                let values: Vec<f64> = figures.rows.iter().filter_map(value).collect();
                let met = values.iter().filter(|value| **value <= limit).count();
                let worst = percent(values.iter().copied().max_by(f64::total_cmp));
                let (all, median) = (values.len(), percent(median(values)));
                table.row(&format!("{goal} | {services} | {binding} | {met} of {all} | {median} | {worst}"));
            };
            goal("open: at most 3 % more than IPVS by hand", OPEN, &|row| {
                by_hand(row).filter(|_| !is_new(row))
            });
            goal("new: at most 8 % more", NEW, &|row| by_hand(row).filter(|_| is_new(row)));
            goal("ahead of kube-proxy iptables", 0.0, &|row| beside(row, &[Mode::Iptables]));
            goal("not behind the best mode of kube-proxy", 0.0, &|row| beside(row, &Mode::ALL));
        }
    }
    table.to_string()
}

/// Each kind of traffic, the median of all ways and both families.
fn medians(measured: &[Measured<'_>]) -> String {
    let mut table = Table::new(
        "Median of all ways: how much more than IPVS by hand",
        &format!("what | Services | IPVS by hand | {}", of_others(short)),
    );
    for traffic in Traffic::ALL {
        for (services, figures) in measured {
            let of = |variant, value: &dyn Fn(Cost) -> f64| {
                let rows = figures.rows.iter().filter(|row| row.traffic == traffic);
                median(rows.filter_map(|row| row.cost(variant)).map(value).collect())
            };
            let more = of_others(|variant| percent(of(variant, &|cost| cost.to_by_hand - 1.0)));
            let by_hand = microseconds(of(Variant::ByHand, &|cost| cost.seconds));
            table.row(&format!("{traffic} | {services} | {by_hand} | {more}"));
        }
    }
    table.to_string()
}

/// The largest number of Services beside the smallest. The machine may have been busier in one boot than in the other,
/// which what went straight to the pod shows.
fn growth(measured: &[Measured<'_>]) -> String {
    let (Some((fewest, few)), Some((most, many))) = (measured.first(), measured.last()) else {
        return String::new();
    };
    if fewest == most {
        return String::new();
    }
    let mut table = Table::new(
        "How much more with the most Services than with the fewest, beside straight to the pod: median of all ways",
        &format!("what | {} | {}", short(Variant::ByHand), of_others(short)),
    );
    for traffic in Traffic::ALL {
        let more = |variant| {
            let grown = |(few, many): (&Row, &Row), variant| {
                Some(many.cost(variant)?.seconds / few.cost(variant)?.seconds)
            };
            let rows = few.rows.iter().zip(&many.rows).filter(|(row, _)| row.traffic == traffic);
            let more =
                rows.filter_map(|rows| Some(grown(rows, variant)? / grown(rows, Variant::Straight)? - 1.0));
            percent(median(more.collect()))
        };
        table.row(&format!("{traffic} | {} | {}", more(Variant::ByHand), of_others(more)));
    }
    table.to_string()
}

fn estimation(measured: &[Measured<'_>]) -> String {
    let mut table = Table::new(
        "Of a processor while nothing happens, IPVS by hand",
        "Services | without | with `run_estimation`",
    );
    for (services, figures) in measured {
        let Some(Estimation { without, with }) = figures.estimation else { continue };
        table.row(&format!("{services} | {:.2}% | {:.2}%", without * 100.0, with * 100.0));
    }
    table.to_string()
}

fn rows(services: u32, figures: &DataPlane) -> String {
    let mut table = Table::new(
        &format!("Each way with {services} Services: how much more than IPVS by hand"),
        &format!("what | way | IPVS by hand | {}", of_others(short)),
    );
    for row in &figures.rows {
        let Row { traffic, way, family, .. } = row;
        let more = of_others(|variant| percent(row.cost(variant).map(|cost| cost.to_by_hand - 1.0)));
        let by_hand = microseconds(row.cost(Variant::ByHand).map(|cost| cost.seconds));
        table.row(&format!("{traffic} | {way}, {family} | {by_hand} | {more}"));
    }
    let missing = figures.missing.iter().map(|missing| {
        format!("\n- {}: {}\n", missing.variant, missing.reason.lines().next().unwrap_or_default())
    });
    table.to_string() + &missing.collect::<String>()
}

/// The cells of all variants but IPVS by hand.
fn of_others(cell: impl Fn(Variant) -> String) -> String {
    let others = Variant::ALL.into_iter().filter(|variant| *variant != Variant::ByHand);
    others.map(cell).collect::<Vec<_>>().join(" | ")
}

fn short(variant: Variant) -> String {
    match variant {
        Variant::ByHandWithoutConntrack => "without conntrack".to_owned(),
        Variant::Untracked => "kube-ipvs, pods untracked".to_owned(),
        Variant::Program(Program::KubeIpvs(binding)) => format!("kube-ipvs, {binding}"),
        other => other.to_string(),
    }
}

fn percent(more: Option<f64>) -> String {
    more.map_or(NONE.to_owned(), |more| format!("{:+.1}%", more * 100.0))
}

fn microseconds(seconds: Option<f64>) -> String {
    seconds.map_or(NONE.to_owned(), |seconds| format!("{:.1} µs", seconds * 1e6))
}

#[cfg(test)]
mod tests {
    use ipvs::Family;

    use super::*;
    use crate::bench::data_plane::Way;

    fn row(traffic: Traffic, ours: f64, iptables: f64) -> Row {
        let cost = |variant, to_by_hand| Cost { variant, seconds: 1e-4 * to_by_hand, to_by_hand };
        let ours = cost(Variant::Program(Program::KubeIpvs(Binding::Address)), ours);
        let iptables = cost(Variant::Program(Program::KubeProxy(Mode::Iptables)), iptables);
        let costs = vec![cost(Variant::ByHand, 1.0), ours, iptables];
        Row { traffic, way: Way::PodToClusterIp, family: Family::V4, costs }
    }

    #[test]
    fn a_goal_that_is_missed_in_one_row_says_by_how_much() {
        let rows = vec![row(Traffic::Requests, 1.02, 1.1), row(Traffic::Datagrams, 1.05, 1.01)];
        let text = goals(&[(7, &DataPlane { rows, missing: Vec::new(), estimation: None })]);
        let line = |begin: &str| text.lines().find(|line| line.contains(begin)).unwrap();
        assert_eq!(
            line("| open"),
            "| open: at most 3 % more than IPVS by hand | 7 | addresses | 1 of 2 | +3.5% | +5.0% |"
        );
        assert!(line("ahead of").contains("| 1 of 2 |"), "{text}");
    }
}
