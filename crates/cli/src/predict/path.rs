//! `sluice predict path`: the delay over several queues and links in a row.

use super::queue::{arrivals, sizes};
use super::units::{bits, rate, share, show, show_span, size, time};
use crate::output::outln;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use forecast::calculus::{Envelope, Service};
use forecast::choose::{Question, forecast};
use forecast::path::{Part, add};
use forecast::queue::{Doubt, Load, Server};
use forecast::{Span, Z95};
use std::collections::BTreeMap;

/// A way through queues and links.
#[derive(Args)]
#[allow(rustdoc::broken_intra_doc_links)] // brackets enclose what may be left out
pub struct PathOptions {
    /// A part of the path; repeat in order: queue:rate=100M,offered=90M (more keys: error=1%,
    /// sizes=64:7;1514:1, arrivals=scv:4, burst=12112, limit=100, bound=2ms, name=X),
    /// queue:wait=1ms[,low=0.8ms,high=1.3ms] (measured) or link:[rate=1G][,delay=50us][,name=X]
    #[arg(long = "hop", value_name = "HOP", required = true)]
    hops: Vec<String>,
    /// Size of the packets whose delay is predicted, in bytes
    #[arg(long, value_parser = size, default_value = "1500")]
    size: f64,
    /// Burst of the flow, in bits; with --flow-rate, the longest delay is printed too
    #[arg(long, value_parser = bits, requires = "flow_rate")]
    flow_burst: Option<f64>,
    /// Rate of the flow, in bit/s; with --flow-burst, the longest delay is printed too
    #[arg(long, value_parser = rate, requires = "flow_burst")]
    flow_rate: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The key-value pairs of a hop; each is used once.
struct Words(BTreeMap<String, String>);

impl Words {
    fn parse(text: &str) -> Result<Words> {
        let mut words = BTreeMap::new();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair
                .split_once('=')
                .with_context(|| format!("\"{pair}\": must be KEY=VALUE"))?;
            ensure!(
                words.insert(key.to_owned(), value.to_owned()).is_none(),
                "{key} is there twice"
            );
        }
        Ok(Words(words))
    }

    fn take<T>(
        &mut self,
        key: &str,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>> {
        let value = self.0.remove(key);
        let read =
            value.map(|value| read(&value).map_err(|error| anyhow::anyhow!("{key}: {error}")));
        read.transpose()
    }

    fn finish(self) -> Result<()> {
        match self.0.first_key_value() {
            None => Ok(()),
            Some((key, _)) => bail!("{key} is not known here"),
        }
    }
}

/// Returns a queue. Only if nothing else comes to it than the flow does it serve the flow as a
/// whole, which a bound requires.
fn queue(name: String, words: &mut Words, packet: f64, flow: Option<f64>) -> Result<Part> {
    if let Some(value) = words.take("wait", time)? {
        let low = words.take("low", time)?.unwrap_or(value);
        let high = words.take("high", time)?.unwrap_or(value);
        ensure!(
            low <= value && value <= high,
            "wait: not between low and high"
        );
        return Ok(Part {
            name,
            delay: Span { value, low, high },
            cannot_tell: None,
            service: None,
        });
    }
    let rate_of = words.take("rate", rate)?.context("rate is missing")?;
    let offered = words
        .take("offered", rate)?
        .context("offered is missing: what comes, in bit/s")?;
    let error = words.take("error", share)?.unwrap_or(0.0);
    let server = Server {
        burst: words.take("burst", bits)?.unwrap_or(0.0),
        limit: words.take("limit", |text| {
            text.parse::<u32>()
                .map(f64::from)
                .map_err(|_| format!("\"{text}\": must be a number of packets"))
        })?,
        bound: words.take("bound", time)?,
        ..Server::new(rate_of)
    };
    let text = |text: &str| Ok(text.replace(';', ","));
    let arrivals = arrivals(
        &words
            .take("arrivals", text)?
            .unwrap_or_else(|| "poisson".into()),
    )?;
    let mut load = Load::new(offered, packet, arrivals);
    if let Some(text) = words.take("sizes", text)? {
        load.sizes = sizes(&text)?;
        load.packets = offered / load.size();
    }
    load.doubt = Doubt {
        rate: error / Z95,
        unevenness: 0.0,
    };
    let answer = forecast(&Question {
        server: &server,
        load: &load,
        waited: None,
        horizon: f64::INFINITY,
        resolution: 0.0,
    })?;
    Ok(Part {
        name,
        delay: answer.wait,
        cannot_tell: answer.cannot_tell,
        service: flow.is_none_or(|flow| offered <= flow).then_some(Service {
            rate: rate_of,
            latency: forecast::place::SLACK,
        }),
    })
}

fn part(number: usize, text: &str, packet: f64, flow: Option<f64>) -> Result<Part> {
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    let mut words = Words::parse(rest)?;
    let name = words
        .take("name", |text| Ok(text.to_owned()))?
        .unwrap_or_else(|| format!("{kind} {number}"));
    let part = match kind {
        "queue" => queue(name, &mut words, packet, flow)?,
        "link" => {
            let rate = words.take("rate", rate)?.unwrap_or(f64::INFINITY);
            Part::link(
                &name,
                rate,
                words.take("delay", time)?.unwrap_or(0.0),
                packet,
            )?
        }
        _ => bail!("must be queue:... or link:..."),
    };
    words.finish()?;
    Ok(part)
}

/// Adds up the parts and prints the result.
pub fn run(options: &PathOptions) -> Result<()> {
    let parts: Result<Vec<Part>> = options
        .hops
        .iter()
        .zip(1..)
        .map(|(hop, number)| {
            part(number, hop, options.size, options.flow_rate)
                .with_context(|| format!("--hop {hop}"))
        })
        .collect();
    let envelope = match (options.flow_rate, options.flow_burst) {
        (Some(rate), Some(burst)) => Some(Envelope {
            rate,
            burst: burst.max(options.size),
        }),
        _ => None,
    };
    let way = add(parts?, envelope)?;
    if options.json {
        outln!("{}", serde_json::to_string(&way)?);
        return Ok(());
    }
    for part in &way.parts {
        let doubt = part
            .cannot_tell
            .as_ref()
            .map_or(String::new(), |why| format!("  cannot tell: {why}"));
        outln!("{:<20} {}{doubt}", part.name, show_span(&part.delay));
    }
    outln!("{:<20} {}", "end to end, mean", show_span(&way.delay));
    outln!(
        "{:<20} {} to {}",
        "if all err together",
        show(way.together.low),
        show(way.together.high)
    );
    match (envelope, way.bound) {
        (Some(_), Some(bound)) => outln!(
            "no packet that keeps to the burst takes longer than {}",
            show(bound)
        ),
        (Some(_), None) => outln!(
            "no bound: of a queue only its measured wait is given, or more is offered to it than the flow"
        ),
        _ => {}
    }
    if !way.cannot_tell.is_empty() {
        outln!("cannot tell: {}", way.cannot_tell.join(", "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_others_use_gives_no_bound() {
        let hop = "queue:rate=100M,offered=80M";
        let envelope = Envelope {
            rate: 1e6,
            burst: 12_000.0,
        };
        let bound = |flow| {
            let part = part(1, hop, 12_000.0, Some(flow)).unwrap();
            add(vec![part], Some(envelope)).unwrap().bound
        };
        assert_eq!(bound(1e6), None);
        assert!(bound(80e6).is_some());
    }
}
