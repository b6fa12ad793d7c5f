//! Checks of actions that push and pop MPLS labels and PBB headers or write the Ethertype or IP
//! protocol. They change what later actions of the list must fit.

use super::Situation;
use openflow::error::Error;
use packet::Field;
use packet::fields::Prerequisite;
use packet::key::at;

/// Smaller values are lengths (802.3), not Ethertypes.
const ETHERTYPE_MIN: u64 = 0x600;
const MPLS: [u16; 2] = [0x8847, 0x8848];
const PBB: u16 = 0x88e7;

impl Situation<'_> {
    /// Records that the packet now has this Ethertype, zero if unknown. Its IP protocol becomes
    /// unknown.
    fn becomes(&mut self, ethertype: u16) {
        let matching = self.matching.to_mut();
        matching.set_bytes(at::ETH_TYPE, &ethertype.to_be_bytes(), &[0xff; 2]);
        matching.set_bytes(at::IP_PROTO, &[0], &[0xff]);
    }

    pub(super) fn push_mpls(&mut self, ethertype: u16) -> Result<(), Error> {
        if !MPLS.contains(&ethertype) {
            return Err(Error::BadActionArgument);
        }
        self.becomes(ethertype);
        Ok(())
    }

    pub(super) fn pop_mpls(&mut self, ethertype: u16) -> Result<(), Error> {
        self.wants(Prerequisite::Mpls)?;
        self.becomes(ethertype);
        Ok(())
    }

    pub(super) fn push_pbb(&mut self, ethertype: u16) -> Result<(), Error> {
        if ethertype != PBB {
            return Err(Error::BadActionArgument);
        }
        // The tags so far lie behind the new header, in the customer's frame.
        self.write_tag(at::VLAN_TCI, 0);
        self.write_tag(at::VLAN_TCI2, 0);
        self.becomes(PBB);
        Ok(())
    }

    pub(super) fn pop_pbb(&mut self) -> Result<(), Error> {
        self.wants(Prerequisite::Pbb)?;
        self.becomes(0);
        Ok(())
    }

    /// Records that a field has been written; `number` is zero if the value is not known.
    pub(super) fn write_shape(&mut self, field: Field, number: u64) -> Result<(), Error> {
        match field {
            Field::EthType if (1..ETHERTYPE_MIN).contains(&number) => {
                return Err(Error::BadSetArgument);
            }
            Field::EthType => self.becomes(number as u16),
            Field::IpProto => {
                let matching = self.matching.to_mut();
                matching.set_bytes(at::IP_PROTO, &[number as u8], &[0xff]);
            }
            _ => {}
        }
        Ok(())
    }
}
