//! Reconfigures a running shaper.

use super::spec::{PortSpec, SpecError};
use super::{ALARMED, IN_OWN, Shaper};

impl<H> Shaper<H> {
    /// Reconfigures the port. Queues whose number stays keep packets, tokens and counters; packets
    /// of removed queues move to the default queue. If the configuration is invalid, nothing
    /// changes.
    pub fn reconfigure(&mut self, spec: &PortSpec, now_ns: u64) -> Result<(), SpecError> {
        let old = std::mem::replace(self, Shaper::new(spec, now_ns)?);
        self.adopt(old, now_ns);
        Ok(())
    }

    /// Takes over from the port's former shaper, like [`Shaper::reconfigure`]. This allows a shaper
    /// to be prepared elsewhere and then put in place.
    pub fn adopt(&mut self, mut old: Shaper<H>, now_ns: u64) {
        self.root
            .inherit(&self.root_rates, old.root, &old.root_rates, now_ns);
        let tenants: std::collections::HashMap<u32, usize> = old
            .tenants
            .iter()
            .map(|tenant| tenant.number)
            .zip(0..)
            .collect();
        for tenant in &mut self.tenants {
            if let Some(&before) = tenants.get(&tenant.number) {
                let before = &old.tenants[before];
                tenant
                    .credit
                    .inherit(&tenant.rates, before.credit, &before.rates, now_ns);
            }
        }
        for (at, number) in self.queues.iter().enumerate() {
            if let Some(before) = old.numbers.find(*number) {
                let leaf = &mut self.leaves[at];
                let rates = &self.kinds[leaf.kind as usize].rates;
                let former = &old.leaves[before];
                let old_rates = &old.kinds[former.kind as usize].rates;
                leaf.credit.inherit(rates, former.credit, old_rates, now_ns);
                self.counters.inherit(at, old.counters.totals(before));
                // Watched queues stay watched, but what was recorded belongs to the former
                // configuration.
                self.watch.adopt(at, &old.watch, before);
            }
        }
        for before in 0..old.queues.len() {
            let at = self.place_of(Some(old.queues[before]));
            self.move_packets(&mut old, before, at);
        }
        for at in 0..self.leaves.len() {
            self.counters.wait(at, self.leaves[at].backlog.packets);
            self.place(at, now_ns);
        }
    }

    fn move_packets(&mut self, old: &mut Shaper<H>, before: usize, at: usize) {
        let flows = &mut old.flows[before << old.flow_bits..][..1 << old.flow_bits];
        let backlog = &mut old.leaves[before].backlog;
        let new_flows = &mut self.flows[at << self.flow_bits..][..1 << self.flow_bits];
        while backlog.packets != 0 {
            let bucket = backlog.active().trailing_zeros() as usize;
            let taken = backlog.pop(flows, &mut old.nodes, bucket, false);
            let leaf = &mut self.leaves[at].backlog;
            self.waiting += 1;
            self.waiting_bytes += u64::from(self.nodes.cost(taken.len));
            leaf.push(new_flows, &mut self.nodes, taken);
        }
    }

    /// Removes and returns all packets with their flows' hashes, flow by flow, regardless of rates;
    /// they count as neither sent nor dropped.
    pub fn empty(&mut self) -> Vec<(H, u32)> {
        let mut all = Vec::with_capacity(self.waiting());
        self.own.clear();
        self.wheel.clear(&mut self.knots);
        for at in 0..self.leaves.len() {
            let flows = &mut self.flows[at << self.flow_bits..][..1 << self.flow_bits];
            while self.leaves[at].backlog.packets != 0 {
                let backlog = &mut self.leaves[at].backlog;
                let bucket = backlog.active().trailing_zeros() as usize;
                let taken = backlog.pop(flows, &mut self.nodes, bucket, false);
                all.push((taken.handle, taken.flow));
            }
            self.counters.wait(at, 0);
            self.leaves[at].backlog.placed &= !(IN_OWN | ALARMED);
            self.place(at, 0);
        }
        (self.waiting, self.waiting_bytes) = (0, 0);
        all
    }
}
