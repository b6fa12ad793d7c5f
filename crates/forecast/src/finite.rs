//! Queues with a limit: packets that find the queue full are dropped.
//!
//! The limit counts waiting packets. One more is being paid for, and packets that the bucket let
//! pass also count as in the system until they are paid for.

use crate::Error;
use crate::model::{Model, Outcome};
use crate::queue::{Arrivals, Load, Server};

/// Most packets for which a distribution is computed.
const MOST: f64 = 4096.0;

/// Returns how many packets fit into the system.
fn places(model: Model, server: &Server, load: &Load) -> Result<usize, Error> {
    let limit = server.limit.filter(|_| server.bound.is_none());
    let limit = limit.ok_or_else(|| {
        Error::new(format!(
            "{} is for a queue with a limit and no bound",
            model.name()
        ))
    })?;
    let places = limit + 1.0 + server.burst / load.size();
    if places > MOST {
        return Err(Error::new(format!(
            "{}: {places:.0} packets are more than {MOST}",
            model.name()
        )));
    }
    Ok(places.round() as usize)
}

/// Returns the mean wait of packets that find n others with probability `found[n]`, where the one
/// being paid for has `residual` bits left on average (half its size, or more for uneven sizes).
fn beyond(server: &Server, load: &Load, found: &[f64], residual: f64) -> f64 {
    let size = load.size();
    let over = |least: f64| {
        // Assumes that what is left of the first is uniform up to twice its mean.
        let most = least + 2.0 * residual;
        if most <= server.burst {
            0.0
        } else if least >= server.burst {
            least + residual - server.burst
        } else {
            (most - server.burst).powi(2) / (2.0 * (most - least))
        }
    };
    let total: f64 = found.iter().sum();
    let bits: f64 = found
        .iter()
        .enumerate()
        .skip(1)
        .map(|(packets, share)| share * over((packets - 1) as f64 * size))
        .sum();
    bits / total / server.rate
}

/// M/M/1/K.
pub fn exponential(server: &Server, load: &Load) -> Result<Outcome, Error> {
    let places = places(Model::Mm1k, server, load)?;
    let rho = load.utilization(server);
    let mut shares = vec![1.0_f64];
    for at in 0..places {
        let next = shares[at] * rho;
        shares.push(next);
        if next > 1e200 {
            shares.iter_mut().for_each(|share| *share /= next);
        }
    }
    let total: f64 = shares.iter().sum();
    let loss = shares[places] / total;
    let wait = beyond(server, load, &shares[..places], load.size());
    Ok(Outcome { wait, loss })
}

/// M/G/1/K, by the Markov chain embedded at departures.
pub fn general(server: &Server, load: &Load) -> Result<Outcome, Error> {
    if load.arrivals != Arrivals::Poisson {
        return Err(Error::new("m/g/1/k is for Poisson arrivals"));
    }
    let places = places(Model::Mg1k, server, load)?;
    let rho = load.utilization(server);
    let during = arrivals_during_service(server, load)?;
    let more_than: Vec<f64> = during
        .iter()
        .scan(1.0, |left, share| {
            *left -= share;
            Some(f64::max(*left, 0.0))
        })
        .collect();
    let more = |count: usize| more_than.get(count).copied().unwrap_or(0.0);
    // For each level, as many transitions go up beyond it as come down to it.
    let mut left = vec![1.0_f64];
    for at in 0..places - 1 {
        let above: f64 = (1..=at).map(|from| left[from] * more(at + 1 - from)).sum();
        let next = (left[0] * more(at) + above) / during[0];
        left.push(next);
        if next > 1e200 {
            left.iter_mut().for_each(|share| *share /= next);
        }
    }
    let total: f64 = left.iter().sum();
    left.iter_mut().for_each(|share| *share /= total);
    let scale = 1.0 / (left[0] + rho);
    let loss = (1.0 - scale).max(0.0);
    let wait = if server.burst == 0.0 {
        let inside: f64 = left
            .iter()
            .enumerate()
            .map(|(at, share)| at as f64 * share * scale)
            .sum();
        let all = inside + places as f64 * loss;
        // Little's law.
        (all / (load.packets * (1.0 - loss)) - load.size() / server.rate).max(0.0)
    } else {
        let residual = load.size() * (1.0 + load.size_scv()) / 2.0;
        beyond(server, load, &left, residual)
    };
    Ok(Outcome { wait, loss })
}

/// Returns the probability of each number of arrivals during one service.
fn arrivals_during_service(server: &Server, load: &Load) -> Result<Vec<f64>, Error> {
    if load.exponential_sizes {
        return Err(Error::new("m/g/1/k is for sizes that are known"));
    }
    let weights: f64 = load.sizes.iter().map(|atom| atom.1).sum();
    let largest = load.sizes.iter().map(|atom| atom.0).fold(0.0, f64::max);
    let most = load.packets * largest / server.rate;
    if most > 100.0 {
        return Err(Error::new(
            "m/g/1/k is for loads below 100 packets in a packet's time",
        ));
    }
    let count = (most + 10.0 * most.sqrt() + 20.0) as usize;
    let mut during = vec![0.0; count];
    for &(size, weight) in &load.sizes {
        let mean = load.packets * size / server.rate;
        let mut share = (-mean).exp() * weight / weights;
        for (at, sum) in during.iter_mut().enumerate() {
            *sum += share;
            share *= mean / (at + 1) as f64;
        }
    }
    Ok(during)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_many_places_they_are_the_endless_ones() {
        let server = Server {
            limit: Some(2000.0),
            ..Server::new(1e6)
        };
        let endless = Server::new(1e6);
        for rho in [0.2, 0.7, 0.9] {
            let mut load = Load::new(rho * 1e6, 1000.0, Arrivals::Poisson);
            load.sizes = vec![(500.0, 0.5), (1500.0, 0.5)];
            type Finite = fn(&Server, &Load) -> Result<Outcome, Error>;
            let pairs: [(Finite, Model); 2] = [(general, Model::Mg1), (exponential, Model::Mm1)];
            for (finite, model) in pairs {
                let got = finite(&server, &load).unwrap();
                let wanted = model.evaluate(&endless, &load).unwrap();
                assert!(
                    (got.wait / wanted.wait - 1.0).abs() < 1e-3,
                    "{got:?} {wanted:?}"
                );
                assert!(got.loss < 1e-9);
            }
        }
    }

    #[test]
    fn known_values() {
        // M/M/1/2 (one may wait) at rho 1: all three states are equally likely, a third of the
        // packets is lost, and half of the others wait one service time.
        let server = Server {
            limit: Some(1.0),
            ..Server::new(1e6)
        };
        let load = Load::new(1e6, 1000.0, Arrivals::Poisson);
        let got = exponential(&server, &load).unwrap();
        assert!((got.loss - 1.0 / 3.0).abs() < 1e-9 && (got.wait - 0.5e-3).abs() < 1e-9);
        // M/D/1/2 at rho 1: loss 1 - 1 / (p0 + 1) with p0 = e^-1.
        let got = general(&server, &load).unwrap();
        let empty = (-1.0_f64).exp();
        assert!(
            (got.loss - (1.0 - 1.0 / (empty + 1.0))).abs() < 1e-9,
            "{got:?}"
        );
    }

    #[test]
    fn overload_stays_in_numbers() {
        let server = Server {
            limit: Some(4000.0),
            ..Server::new(1e6)
        };
        let load = Load::new(5e6, 1000.0, Arrivals::Poisson);
        for got in [
            exponential(&server, &load).unwrap(),
            general(&server, &load).unwrap(),
        ] {
            assert!((got.loss - 0.8).abs() < 1e-3, "{got:?}");
            assert!((got.wait / 4.0 - 1.0).abs() < 0.01, "{got:?}");
        }
    }
}
