//! What packets cost, each variant beside IPVS by hand.

use super::{
    Report, cases,
    table::{NONE, Table},
};
use crate::bench::{
    case::{Binding, Mode, Program, Subject},
    data_plane::{
        Traffic, Variant,
        figures::{Cost, DataPlane, Row, median},
    },
    figures::Figures,
};

const OURS: [Variant; 2] = [
    Variant::Program(Program::KubeIpvs(Binding::Address)),
    Variant::Program(Program::KubeIpvs(Binding::Route)),
];
const IPTABLES: Variant = Variant::Program(Program::KubeProxy(Mode::Iptables));
const KUBE_PROXY: [Variant; 3] = [
    Variant::Program(Program::KubeProxy(Mode::Ipvs)),
    Variant::Program(Program::KubeProxy(Mode::Nftables)),
    IPTABLES,
];
/// What kube-ipvs may cost more than IPVS by hand, on open connections and for new ones.
const OPEN: f64 = 0.03;
const NEW: f64 = 0.08;

pub(super) fn tables(report: &Report) -> String {
    let measured: Vec<(u32, DataPlane)> = cases(report)
        .filter(|case| matches!(case.subject, Subject::DataPlane(_)))
        .filter_map(|case| match report.figures(case)? {
            Figures::DataPlane(figures) => Some((case.size.services, figures)),
            _ => None,
        })
        .collect();
    let mut text = goals(&measured) + &medians(&measured) + &growth(&measured) + &estimation(&measured);
    for (services, figures) in &measured {
        text += &rows(*services, figures);
    }
    text
}

/// How many rows meet each goal, and how far the worst is off.
fn goals(measured: &[(u32, DataPlane)]) -> String {
    let columns = ["goal", "Services", "VIPs as", "rows that meet it", "median", "worst"];
    let mut table = Table::new("Goals", &columns);
    let open = |row: &Row| row.traffic != Traffic::Connections;
    for (services, figures) in measured {
        for (ours, binding) in OURS.into_iter().zip(["addresses", "routes"]) {
            let by_hand = |row: &Row| Some(row.cost(ours)?.to_by_hand - 1.0);
            let beside = |row: &Row, others: &[Variant]| {
                let cost = |variant: &Variant| Some(row.cost(*variant)?.to_by_hand);
                let least = others.iter().filter_map(cost).min_by(f64::total_cmp)?;
                Some(row.cost(ours)?.to_by_hand / least - 1.0)
            };
            let all = || figures.rows.iter();
            for (goal, limit, values) in [
                (
                    "open: at most 3 % more than IPVS by hand",
                    OPEN,
                    all().filter(|row| open(row)).filter_map(by_hand).collect(),
                ),
                ("new: at most 8 % more", NEW, all().filter(|row| !open(row)).filter_map(by_hand).collect()),
                (
                    "ahead of kube-proxy iptables",
                    0.0,
                    all().filter_map(|row| beside(row, &[IPTABLES])).collect(),
                ),
                (
                    "not behind the best mode of kube-proxy",
                    0.0,
                    all().filter_map(|row| beside(row, &KUBE_PROXY)).collect::<Vec<f64>>(),
                ),
            ] {
                let met = values.iter().filter(|value| **value <= limit).count();
                let worst = values.iter().copied().max_by(f64::total_cmp);
                table.row([
                    goal.to_owned(),
                    services.to_string(),
                    binding.to_owned(),
                    format!("{met} of {}", values.len()),
                    percent(median(values)),
                    percent(worst),
                ]);
            }
        }
    }
    table.text
}

/// Each kind of traffic, the median of all ways and both families.
fn medians(measured: &[(u32, DataPlane)]) -> String {
    let columns = heading(["what", "Services", "IPVS by hand"]);
    let mut table = Table::new("Median of all ways: how much more than IPVS by hand", &columns);
    for traffic in Traffic::ALL {
        for (services, figures) in measured {
            let of = |variant, value: &dyn Fn(Cost) -> f64| {
                let rows = figures.rows.iter().filter(|row| row.traffic == traffic);
                median(rows.filter_map(|row| row.cost(variant)).map(value).collect())
            };
            let more = |variant| percent(of(variant, &|cost| cost.to_by_hand - 1.0));
            let by_hand = microseconds(of(Variant::ByHand, &|cost| cost.seconds));
            table.row(
                [traffic.to_string(), services.to_string(), by_hand].into_iter().chain(others().map(more)),
            );
        }
    }
    table.text
}

/// The largest number of Services beside the smallest. The machine may have been busier in one boot than in the other,
/// which what went straight to the pod shows.
fn growth(measured: &[(u32, DataPlane)]) -> String {
    let columns: Vec<&str> =
        ["what", short(Variant::ByHand)].into_iter().chain(others().map(short)).collect();
    let mut table = Table::new(
        "How much more with the most Services than with the fewest, beside straight to the pod: median of all ways",
        &columns,
    );
    let (Some((fewest, few)), Some((most, many))) = (measured.first(), measured.last()) else {
        return String::new();
    };
    if fewest == most {
        return String::new();
    }
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
        let variants = std::iter::once(Variant::ByHand).chain(others());
        table.row(std::iter::once(traffic.to_string()).chain(variants.map(more)));
    }
    table.text
}

fn estimation(measured: &[(u32, DataPlane)]) -> String {
    let columns = ["Services", "without", "with `run_estimation`"];
    let mut table = Table::new("Of a processor while nothing happens, IPVS by hand", &columns);
    for (services, figures) in measured {
        let Some(estimation) = figures.estimation else { continue };
        let share = |share: f64| format!("{:.2}%", share * 100.0);
        table.row([services.to_string(), share(estimation.without), share(estimation.with)]);
    }
    table.text
}

fn rows(services: u32, figures: &DataPlane) -> String {
    let columns = heading(["what", "way", "IPVS by hand"]);
    let title = format!("Each way with {services} Services: how much more than IPVS by hand");
    let mut table = Table::new(&title, &columns);
    for row in &figures.rows {
        let family = if row.is_v6 { "IPv6" } else { "IPv4" };
        let more = |variant| percent(row.cost(variant).map(|cost| cost.to_by_hand - 1.0));
        let by_hand = microseconds(row.cost(Variant::ByHand).map(|cost| cost.seconds));
        let cells = [row.traffic.to_string(), format!("{}, {family}", row.way), by_hand];
        table.row(cells.into_iter().chain(others().map(more)));
    }
    let missing = figures.missing.iter().map(|missing| {
        format!("\n- {}: {}\n", missing.variant, missing.reason.lines().next().unwrap_or_default())
    });
    table.text + &missing.collect::<String>()
}

/// All but IPVS by hand.
fn others() -> impl Iterator<Item = Variant> {
    Variant::ALL.into_iter().filter(|variant| *variant != Variant::ByHand)
}

fn heading(first: [&'static str; 3]) -> Vec<&'static str> {
    first.into_iter().chain(others().map(short)).collect()
}

fn short(variant: Variant) -> &'static str {
    match variant {
        Variant::Straight => "straight to the pod",
        Variant::ByHandWithoutConntrack => "without conntrack",
        Variant::ByHand => "IPVS by hand",
        Variant::Program(Program::KubeIpvs(Binding::Address)) => "kube-ipvs, addresses",
        Variant::Program(Program::KubeIpvs(Binding::Route)) => "kube-ipvs, routes",
        Variant::Program(Program::KubeProxy(Mode::Ipvs)) => "kube-proxy ipvs",
        Variant::Program(Program::KubeProxy(Mode::Nftables)) => "kube-proxy nftables",
        Variant::Program(Program::KubeProxy(Mode::Iptables)) => "kube-proxy iptables",
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
    use testkit::kernel_baseline::Size;

    use super::*;
    use crate::bench::{
        case::Case,
        data_plane::{Effort, Way},
        figures::Measured,
        report::Machine,
    };

    fn row(traffic: Traffic, ours: f64, iptables: f64) -> Row {
        let cost = |variant, to_by_hand| Cost { variant, seconds: 1e-4 * to_by_hand, to_by_hand };
        let costs = vec![cost(Variant::ByHand, 1.0), cost(OURS[0], ours), cost(IPTABLES, iptables)];
        Row { traffic, way: Way::PodToClusterIp, is_v6: false, costs }
    }

    #[test]
    fn a_goal_that_is_missed_in_one_row_says_by_how_much() {
        let rows = vec![row(Traffic::Requests, 1.02, 1.1), row(Traffic::Datagrams, 1.05, 1.01)];
        let text = goals(&[(7, DataPlane { rows, missing: Vec::new(), estimation: None })]);
        let line = |begin: &str| text.lines().find(|line| line.contains(begin)).unwrap();
        assert_eq!(
            line("| open"),
            "| open: at most 3 % more than IPVS by hand | 7 | addresses | 1 of 2 | +3.5% | +5.0% |"
        );
        assert!(line("ahead of").contains("| 1 of 2 |"), "{text}");
    }

    #[test]
    fn there_is_a_table_for_each_number_of_services() {
        let case =
            Case { subject: Subject::DataPlane(Effort::Whole), size: Size { services: 1_000, endpoints: 1 } };
        let figures = DataPlane {
            rows: vec![row(Traffic::Connections, 1.04, 1.2)],
            missing: Vec::new(),
            estimation: None,
        };
        let measured = vec![Measured { case, outcome: Ok(Figures::DataPlane(figures)) }];
        let machine = Machine { processor: String::new(), processors: 1, guest: "none", loads: Vec::new() };
        let report = Report { machine, measured };
        let text = tables(&report);
        assert!(text.contains("### Each way with 1000 Services"), "{text}");
        assert!(
            text.contains("| new connection | pod → ClusterIP, IPv4 | 100.0 µs | – | – | +4.0% |"),
            "{text}"
        );
    }
}
