//! Steps that push and pop MPLS labels and PBB headers, and handle labels' TTLs.

use crate::actions::{Op, PacketInReason, ToController};
use crate::exec::interpreter::{Burst, Next, Walk};
use crate::host::{DropReason, Host};
use packet::Frame;
use packet::edit::{self, MplsTtl};

impl<F: Frame> Walk<F> {
    /// Runs one of those steps; other steps do nothing.
    #[cold]
    pub(crate) fn run_encapsulation<H: Host<F>>(
        &mut self,
        burst: &Burst<'_, '_>,
        host: &mut H,
        op: &Op,
    ) -> Option<Next> {
        self.flush(burst, host);
        if let Op::PopMpls(eth_type) = op {
            return self.pop_mpls(burst, *eth_type);
        }
        let frame = self.frame.as_mut()?;
        let (layers, key) = (&mut self.layers, &mut self.key);
        let done = match op {
            Op::PushMpls(eth_type) => edit::push_mpls(frame, layers, key, *eth_type),
            Op::PushPbb => edit::push_pbb(frame, layers, key),
            Op::PopPbb => {
                edit::pop_pbb(frame, layers, key);
                true
            }
            Op::CopyTtlOut => {
                edit::copy_ttl_out(frame, layers, key);
                true
            }
            Op::CopyTtlIn => {
                edit::copy_ttl_in(frame, layers, key);
                true
            }
            Op::DecMplsTtl => {
                match edit::dec_mpls_ttl(frame, layers, key) {
                    MplsTtl::Decremented => {}
                    MplsTtl::Expired(_) => self.mpls_ttl_expired(burst, host),
                    // Ends the list, as Open vSwitch does.
                    MplsTtl::Absent => self.at.next = self.at.steps.get().len(),
                }
                true
            }
            _ => true,
        };
        match done {
            true => None,
            false => self.fail(host, DropReason::ActionFailed),
        }
    }

    fn pop_mpls(&mut self, burst: &Burst<'_, '_>, eth_type: u16) -> Option<Next> {
        let frame = self.frame.as_mut()?;
        let before = frame.len();
        edit::pop_mpls(frame, &mut self.layers, &mut self.key, eth_type);
        let popped = frame.len() != before;
        if popped && !matches!(eth_type, 0x8847 | 0x8848) {
            self.count_anew(burst);
        }
        None
    }

    /// Sends a packet-in, and ends this list; its caller continues.
    fn mpls_ttl_expired<H: Host<F>>(&mut self, burst: &Burst<'_, '_>, host: &mut H) {
        let to = ToController::whole(PacketInReason::InvalidTtl);
        self.send_to_controller(burst, host, &to);
        self.at.next = self.at.steps.get().len();
    }
}
