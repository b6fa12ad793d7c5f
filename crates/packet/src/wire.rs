//! Header views: one protocol's header over bytes, with getters and setters of its fields.
//!
//! Views are the straightforward way to look at a packet, for builders, tests, traces and other
//! slow paths. `new_checked` ensures that all bytes of the header are there, so accessors never
//! panic.

use std::ops::Range;

mod arp;
mod ethernet;
mod icmp;
mod ipv4;
mod ipv6;
mod mpls;
mod pbb;
mod sctp;
mod tcp;
mod udp;
mod vlan;

pub use arp::Arp;
pub use ethernet::{Ethernet, Snap};
pub use icmp::{Icmp, NeighbourOption, NeighbourOptions};
pub use ipv4::Ipv4;
pub use ipv6::{Ipv6, Ipv6Extension, Ipv6Fragment};
pub use mpls::Mpls;
pub use pbb::Pbb;
pub use sctp::Sctp;
pub use tcp::Tcp;
pub use udp::Udp;
pub use vlan::Vlan;

/// A header does not fit in its bytes, or its length field is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} does not fit in its bytes")]
pub struct Truncated(pub &'static str);

fn array<const N: usize>(bytes: &[u8], field: Range<usize>) -> [u8; N] {
    bytes[field].try_into().unwrap()
}

/// Defines a view: documentation, name and shortest length.
macro_rules! view {
    ($(#[$meta:meta])* $name:ident, $length:expr) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name<B>(B);

        impl<B: AsRef<[u8]>> $name<B> {
            /// Bytes of the header without options.
            pub const LEN: usize = $length;

            /// Makes a view of the bytes; an error if they are shorter than the header without
            /// options.
            pub fn new_checked(bytes: B) -> Result<Self, $crate::wire::Truncated> {
                if bytes.as_ref().len() < $length {
                    return Err($crate::wire::Truncated(stringify!($name)));
                }
                Ok($name(bytes))
            }

            fn bytes(&self) -> &[u8] {
                self.0.as_ref()
            }

            /// Returns the bytes.
            pub fn into_inner(self) -> B {
                self.0
            }
        }
    };
}
use view;

/// Defines getters and setters of whole-byte fields: `name / set_name: type at offset`.
macro_rules! accessors {
    ($view:ident { $($(#[$meta:meta])* $get:ident / $set:ident: $type:ty, $field:expr;)* }) => {
        impl<B: AsRef<[u8]>> $view<B> {
            $($(#[$meta])*
            pub fn $get(&self) -> $type {
                <$type>::from_be_bytes(self.bytes()[$field].try_into().unwrap())
            })*
        }

        impl<B: AsRef<[u8]> + AsMut<[u8]>> $view<B> {
            $(#[doc = concat!("Writes what [`", stringify!($view), "::", stringify!($get), "`] reads.")]
            pub fn $set(&mut self, value: $type) {
                self.0.as_mut()[$field].copy_from_slice(&value.to_be_bytes());
            })*
        }
    };
}
use accessors;

/// Defines getters and setters of fields that are byte strings (addresses).
macro_rules! addresses {
    ($view:ident { $($(#[$meta:meta])* $get:ident / $set:ident: $length:literal, $field:expr;)* }) => {
        impl<B: AsRef<[u8]>> $view<B> {
            $($(#[$meta])*
            pub fn $get(&self) -> [u8; $length] {
                self.bytes()[$field].try_into().unwrap()
            })*
        }

        impl<B: AsRef<[u8]> + AsMut<[u8]>> $view<B> {
            $(#[doc = concat!("Writes what [`", stringify!($view), "::", stringify!($get), "`] reads.")]
            pub fn $set(&mut self, value: [u8; $length]) {
                self.0.as_mut()[$field].copy_from_slice(&value);
            })*
        }
    };
}
use addresses;
