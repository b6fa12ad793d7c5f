//! Which instruction set is used to read bursts and, where lookups have vector code (decision
//! trees' leaves, tries), to look them up.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

/// Environment variable that names the variant to use, for tests and diagnosis.
pub const ASKED_BY: &str = "SLUICE_VECTOR";

/// An implementation for one instruction set. All variants return the same results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Variant {
    /// For every processor.
    Portable = 1,
    /// AVX2.
    Avx2 = 2,
    /// AVX-512 with BW and VBMI, and BMI2.
    Avx512 = 3,
}

/// The variant in use; 0 until the first burst or lookup of one.
static USED: AtomicU8 = AtomicU8::new(0);

impl Variant {
    /// All variants, the fastest last.
    pub const ALL: [Variant; 3] = [Variant::Portable, Variant::Avx2, Variant::Avx512];

    /// Returns the value of [`ASKED_BY`] that selects it.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Portable => "portable",
            Variant::Avx2 => "avx2",
            Variant::Avx512 => "avx512",
        }
    }

    /// Returns the variant of this name.
    pub fn of_name(name: &str) -> Option<Variant> {
        Variant::ALL.into_iter().find(|one| one.name() == name)
    }

    /// Returns whether the processor has it.
    #[inline]
    pub fn is_there(self) -> bool {
        match self {
            Variant::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Variant::Avx2 => super::avx2::is_there(),
            #[cfg(target_arch = "x86_64")]
            Variant::Avx512 => super::avx512::is_there(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Returns this variant if the processor has it, else the portable one.
    pub(super) fn or_portable(self) -> Variant {
        if self.is_there() {
            self
        } else {
            Variant::Portable
        }
    }

    /// Returns the variant in use: the one that [`ASKED_BY`] names, if the processor has it, else
    /// the fastest that it has.
    #[inline(always)]
    pub fn used() -> Variant {
        match USED.load(Ordering::Relaxed) {
            1 => Variant::Portable,
            2 => Variant::Avx2,
            3 => Variant::Avx512,
            _ => Variant::choose(),
        }
    }

    #[cold]
    fn choose() -> Variant {
        let asked = std::env::var(ASKED_BY).ok();
        let chosen = Variant::for_wish(asked.as_deref());
        USED.store(chosen as u8, Ordering::Relaxed);
        chosen
    }

    /// Returns the variant of this name if it exists and the processor has it, else the fastest
    /// that it has.
    fn for_wish(name: Option<&str>) -> Variant {
        let wished = name.and_then(Variant::of_name);
        let fastest = || Variant::ALL.into_iter().rfind(|one| one.is_there());
        wished
            .filter(|one| one.is_there())
            .or_else(fastest)
            .unwrap_or(Variant::Portable)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Variant::Portable => "portable code",
            Variant::Avx2 => "AVX2",
            Variant::Avx512 => "AVX-512",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_granted_where_the_processor_can() {
        let fastest = Variant::for_wish(None);
        assert!(fastest.is_there());
        assert_eq!(Variant::for_wish(Some("portable")), Variant::Portable);
        assert_eq!(Variant::for_wish(Some("abacus")), fastest);
        for one in Variant::ALL {
            assert_eq!(Variant::of_name(one.name()), Some(one));
            let granted = Variant::for_wish(Some(one.name()));
            assert_eq!(granted, if one.is_there() { one } else { fastest });
        }
    }
}
