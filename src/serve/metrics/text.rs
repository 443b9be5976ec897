//! Prometheus' text format 0.0.4, and metrics that are written in it.
//!
//! It is the text that kube-proxy writes, whatever a client accepts: it does not switch OpenMetrics on
//! (`legacyregistry.Handler` in k8s.io/component-base/metrics).

use std::{
    collections::BTreeSet,
    fmt::{self, Debug, Display, Write as _},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use ipvs::Family;

/// The content type of the format.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// A page of metrics. Writing to it cannot fail.
#[derive(Debug, Default)]
pub(crate) struct Page(String);

impl Page {
    /// An empty page, with room for so many bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(String::with_capacity(bytes))
    }

    /// Begins a metric, whose samples follow.
    pub(crate) fn head(&mut self, name: &str, kind: Kind, help: &str) {
        _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Writes a sample with labels as [`labels`] makes them.
    pub(crate) fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        _ = if labels.is_empty() {
            writeln!(self.0, "{name} {value}")
        } else {
            writeln!(self.0, "{name}{{{labels}}} {value}")
        };
    }

    /// Writes a metric that has one sample.
    pub(crate) fn single(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.sample(name, "", value);
    }
}

impl From<Page> for String {
    fn from(page: Page) -> Self {
        page.0
    }
}

/// The labels of a sample, as they are written.
pub(crate) fn labels<const N: usize>(labels: [(&str, &str); N]) -> String {
    labels.map(|(name, value)| format!("{name}=\"{}\"", Escaped(value))).join(",")
}

/// The label of a family.
pub(crate) fn family_label(family: Family) -> String {
    labels([("ip_family", &family.to_string())])
}

/// The value of a label.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|letter| match letter {
            '\\' => f.write_str(r"\\"),
            '"' => f.write_str("\\\""),
            '\n' => f.write_str(r"\n"),
            letter => f.write_char(letter),
        })
    }
}

/// A number that need not be whole, with a point in any case.
pub(crate) struct Real(pub(crate) f64);

impl Display for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number) = self;
        match number.abs() {
            0.0 => f.write_str("0.0"),
            1e-6..1e21 if number.fract() == 0.0 => write!(f, "{number}.0"),
            1e-6..1e21 => write!(f, "{number}"),
            _ => write!(f, "{number:e}"),
        }
    }
}

/// A metric that threads change while others write pages. Clones share it.
pub(crate) trait Metric: Send + Sync + 'static {
    const KIND: Kind;

    /// Writes its samples with these labels.
    fn write(&self, page: &mut Page, name: &str, labels: &str);
}

/// A counter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Total(Arc<AtomicU64>);

impl Total {
    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count.try_into().unwrap_or(u64::MAX), Relaxed);
    }
}

impl Metric for Total {
    const KIND: Kind = Kind::Counter;

    fn write(&self, page: &mut Page, name: &str, labels: &str) {
        page.sample(name, labels, self.0.load(Relaxed));
    }
}

/// How many there are now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count(Arc<AtomicU64>);

impl Count {
    pub(crate) fn set(&self, count: usize) {
        self.0.store(count.try_into().unwrap_or(u64::MAX), Relaxed);
    }

    pub(crate) fn add(&self, count: usize) {
        self.0.fetch_add(count.try_into().unwrap_or(u64::MAX), Relaxed);
    }
}

impl Metric for Count {
    const KIND: Kind = Kind::Gauge;

    fn write(&self, page: &mut Page, name: &str, labels: &str) {
        page.sample(name, labels, self.0.load(Relaxed));
    }
}

/// The time since 1970, as metrics have it.
pub(crate) fn since_1970(moment: SystemTime) -> Duration {
    moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

/// Seconds: a duration, or a time since 1970.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seconds(Arc<AtomicU64>);

impl Seconds {
    pub(crate) fn set(&self, seconds: Duration) {
        self.0.store(seconds.as_secs_f64().to_bits(), Relaxed);
    }

    pub(crate) fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Relaxed))
    }
}

impl Metric for Seconds {
    const KIND: Kind = Kind::Gauge;

    fn write(&self, page: &mut Page, name: &str, labels: &str) {
        page.sample(name, labels, Real(self.get()));
    }
}

/// A number that never changes.
impl Metric for u64 {
    const KIND: Kind = Kind::Gauge;

    fn write(&self, page: &mut Page, name: &str, labels: &str) {
        page.sample(name, labels, self);
    }
}

/// Durations, by how long they are.
#[derive(Clone, Debug)]
pub(crate) struct Histogram(Arc<Mutex<Observed>>);

#[derive(Debug)]
struct Observed {
    /// The upper bounds of the buckets, in seconds, and how many durations lie between each and the one before.
    buckets: Vec<(f64, u64)>,
    count: u64,
    sum: f64,
}

impl Histogram {
    /// An empty histogram with buckets up to these bounds in seconds, the smallest first.
    pub(crate) fn new(bounds: impl IntoIterator<Item = f64>) -> Self {
        let buckets = bounds.into_iter().map(|bound| (bound, 0)).collect();
        Self(Arc::new(Mutex::new(Observed { buckets, count: 0, sum: 0.0 })))
    }

    /// An empty histogram with kube-proxy's buckets for durations of work: 1 ms, 2 ms … 16 s.
    pub(crate) fn of_work() -> Self {
        Self::new((0..15).map(|power| f64::from(1 << power) / 1000.0))
    }

    pub(crate) fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        // No holder of the lock can panic.
        let mut observed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        observed.count += 1;
        observed.sum += seconds;
        if let Some((_, count)) = observed.buckets.iter_mut().find(|(bound, _)| seconds <= *bound) {
            *count += 1;
        }
    }
}

impl Metric for Histogram {
    const KIND: Kind = Kind::Histogram;

    fn write(&self, page: &mut Page, name: &str, labels: &str) {
        let Observed { buckets, count, sum } = &*self.0.lock().unwrap_or_else(PoisonError::into_inner);
        page.sample(&format!("{name}_sum"), labels, Real(*sum));
        page.sample(&format!("{name}_count"), labels, count);
        let name = format!("{name}_bucket");
        let comma = if labels.is_empty() { "" } else { "," };
        let mut below = 0;
        for (bound, count) in buckets {
            below += count;
            page.sample(&name, &format!("le=\"{bound}\"{comma}{labels}"), below);
        }
        page.sample(&name, &format!("le=\"+Inf\"{comma}{labels}"), count);
    }
}

type WriteMetric = Box<dyn Fn(&mut Page) + Send + Sync>;

/// The metrics of a page.
#[derive(Default)]
pub(crate) struct Registry {
    registered: Vec<WriteMetric>,
    read: Vec<WriteMetric>,
}

impl Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

impl Registry {
    /// Adds and returns a metric without labels.
    pub(crate) fn register<M: Metric + Clone + Default>(
        &mut self,
        name: impl Into<String>,
        help: impl Into<String>,
    ) -> M {
        let metric = M::default();
        self.register_labelled(name, help, [(String::new(), metric.clone())]);
        metric
    }

    /// Adds and returns a metric for each key, which gives it its labels.
    pub(crate) fn register_each<K, M: Metric + Clone>(
        &mut self,
        name: &str,
        help: &str,
        metric: impl Fn() -> M,
        keys: impl IntoIterator<Item = K>,
        labels: impl Fn(&K) -> String,
    ) -> Vec<(K, M)> {
        let metrics: Vec<_> = keys.into_iter().map(|key| (key, metric())).collect();
        self.register_labelled(name, help, metrics.iter().map(|(key, metric)| (labels(key), metric.clone())));
        metrics
    }

    /// Adds and returns a metric of each family, with the label `ip_family`.
    pub(crate) fn register_by_family<M: Metric + Clone>(
        &mut self,
        name: &str,
        help: &str,
        metric: impl Fn() -> M,
        families: &BTreeSet<Family>,
    ) -> ByFamily<M> {
        self.register_each(name, help, metric, families.iter().copied(), |family| family_label(*family))
    }

    /// Adds a metric for each of a fixed list of labels: all are shown, in this order. Without any the metric is left
    /// out.
    pub(crate) fn register_labelled<M: Metric>(
        &mut self,
        name: impl Into<String>,
        help: impl Into<String>,
        labelled: impl IntoIterator<Item = (String, M)>,
    ) {
        let (name, help) = (name.into(), help.into());
        let labelled: Vec<_> = labelled.into_iter().collect();
        if labelled.is_empty() {
            return;
        }
        self.registered.push(Box::new(move |page| {
            page.head(&name, M::KIND, &help);
            for (labels, metric) in &labelled {
                metric.write(page, &name, labels);
            }
        }));
    }

    /// Adds what is read for each page. It comes after all that is registered.
    pub(crate) fn read_for_each_page(&mut self, write: impl Fn(&mut Page) + Send + Sync + 'static) {
        self.read.push(Box::new(write));
    }

    /// The page.
    pub(crate) fn text(&self) -> String {
        let mut page = Page::default();
        for write in self.registered.iter().chain(&self.read) {
            write(&mut page);
        }
        page.into()
    }
}

/// The metric of each served family.
pub(crate) type ByFamily<M> = Vec<(Family, M)>;

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn metrics_are_written_as_version_0_0_4_of_the_format_has_them() {
        let mut registry = Registry::default();
        let took = Histogram::new([0.5, 1.0, 60.0]);
        registry.read_for_each_page(|page| page.single("age_seconds", Kind::Gauge, "How old", Real(7.0)));
        let events: Total = registry.register("events_total", "What happened");
        let seen: Count = registry.register("now_total", "What there is");
        registry.register_labelled::<u64>("none", "Without a sample", []);
        let labels = labels([("version", "1.0"), ("family", "\"x\"")]);
        registry.register_labelled("took_seconds", "How long", [(labels, took.clone())]);
        events.add(3);
        seen.set(2);
        took.observe(Duration::from_millis(1500));
        let expected = r#"# HELP events_total What happened
# TYPE events_total counter
events_total 3
# HELP now_total What there is
# TYPE now_total gauge
now_total 2
# HELP took_seconds How long
# TYPE took_seconds histogram
took_seconds_sum{version="1.0",family="\"x\""} 1.5
took_seconds_count{version="1.0",family="\"x\""} 1
took_seconds_bucket{le="0.5",version="1.0",family="\"x\""} 0
took_seconds_bucket{le="1",version="1.0",family="\"x\""} 0
took_seconds_bucket{le="60",version="1.0",family="\"x\""} 1
took_seconds_bucket{le="+Inf",version="1.0",family="\"x\""} 1
# HELP age_seconds How old
# TYPE age_seconds gauge
age_seconds 7.0
"#;
        assert_eq!(registry.text(), expected);
    }

    #[test]
    fn a_number_that_need_not_be_whole_has_a_point_or_an_exponent() {
        let numbers = [0.0, 1.0, -2.5, 1e-6, 1.5e-7, 1.844_674_407_370_955_2e19, 1e21];
        let expected = ["0.0", "1.0", "-2.5", "0.000001", "1.5e-7", "18446744073709552000.0", "1e21"];
        assert_eq!(numbers.map(|number| Real(number).to_string()), expected);
    }

    proptest! {
        #[test]
        fn a_number_is_read_as_it_was_written(number in any::<f64>().prop_filter("NaN", |it| !it.is_nan())) {
            let read: f64 = Real(number).to_string().parse().unwrap();
            prop_assert_eq!(read.partial_cmp(&number), Some(Ordering::Equal));
        }
    }
}
