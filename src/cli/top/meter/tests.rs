use operator::top::Column;

use super::{
    super::tests::made_up::{frame, server, traffic, vip},
    *,
};

fn named<'a>(frame: &'a Frame, name: &str) -> &'a ServiceRow {
    frame.services.iter().find(|row| row.name() == name).unwrap()
}

#[test]
fn a_service_is_what_all_its_virtual_servers_are_together() {
    let frame = traffic();
    assert_eq!(frame.interval, Duration::from_secs(2));
    let web = named(&frame, "default/web");
    assert_eq!(web.virtual_servers, [vip(10, 80).into(), vip(11, 80).into()]);
    assert_eq!((web.load.active_connections, web.load.inactive_connections), (400, 3));
    assert_eq!((web.load.counters.packets_in, web.load.counters.connections), (400, 40));
    let rates = web.load.rates;
    assert_eq!((rates.packets_in_per_second, rates.packets_out_per_second), (150.0, 150.0));
    assert_eq!(
        (rates.connections_per_second, rates.bytes_in_per_second, rates.bytes_out_per_second),
        (15.0, 15_000.0, 150_000.0)
    );

    let [first, second] = &web.real_servers[..] else { panic!("{:?}", web.real_servers) };
    assert_eq!((first.name(), second.name()), ("10.244.0.1:8080".into(), "10.244.0.2:8080".into()));
    assert_eq!((first.load.active_connections, second.load.active_connections), (260, 140));
    let syn_recv = [&web.load, &first.load, &second.load].map(|load| load.syn_recv_connections);
    assert_eq!(syn_recv, [Some(30), Some(30), Some(0)]);
    assert_eq!(
        (first.load.rates.packets_in_per_second, second.load.rates.packets_in_per_second),
        (100.0, 50.0)
    );
}

#[test]
fn a_virtual_server_that_no_service_has_is_a_row_of_its_own() {
    let frame = traffic();
    let mark = named(&frame, "FWM 7");
    assert_eq!((mark.service.as_ref(), mark.real_servers[0].name()), (None, "10.244.0.9:8080".to_owned()));
    assert_eq!(mark.load.syn_recv_connections, None, "no connection shows its mark");
}

#[test]
fn a_removed_server_takes_its_counters_along_and_a_new_one_counts_from_zero() {
    let frame = frame(
        vec![server(vip(10, 80), 1_000_000, &[(1, 1_000_000)]), server(vip(11, 80), 100, &[])],
        vec![server(vip(11, 80), 120, &[]), server(vip(20, 53), 50, &[])],
    );
    let packets = |name| named(&frame, name).load.rates.packets();
    assert_eq!((packets("default/web"), packets("default/dns")), (20.0, 50.0));
}

#[test]
fn rows_are_sorted_by_what_is_asked_for_and_equal_ones_by_name() {
    let sorted = |column| {
        let mut frame = traffic();
        frame.sort(column);
        frame.services.iter().map(ServiceRow::name).collect::<Vec<_>>()
    };
    let by_load = ["FWM 7", "default/web", "default/dns"];
    for column in [Column::Active, Column::Connections, Column::Packets, Column::Bytes] {
        assert_eq!(sorted(column), by_load, "{column:?}");
    }
    assert_eq!(sorted(Column::Inactive), ["default/web", "FWM 7", "default/dns"]);
    assert_eq!(sorted(Column::SynRecv), ["default/web", "default/dns", "FWM 7"], "what is not known is last");
    assert_eq!(sorted(Column::Name), ["FWM 7", "default/dns", "default/web"]);
    let mut frame = traffic();
    frame.sort(Column::Name);
    let web = named(&frame, "default/web");
    assert_eq!(web.real_servers[0].name(), "10.244.0.1:8080");
}
