//! The constants of the policy. The paper gives none, so these are ours: each documents its purpose
//! and the reason for its value.

use crate::cores::Load;

/// One millisecond in nanoseconds.
const MS: u64 = 1_000_000;

/// A move needs at least this many samples of evidence; otherwise a single outlier decides.
pub const SAMPLES_PER_HOLD: u64 = 4;

/// Most samples in a hold time, all of which are stored for each core.
pub const SAMPLES_PER_HOLD_MAX: u64 = 1_000;

/// Why [`Settings`] are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// No core could be fit, or a core without time left would be.
    #[error("high: {0} is not above 0% and at most 100%")]
    High(Load),
    /// Flows would move without gain, or never.
    #[error("margin: {margin} is not above 0% and below high ({high})")]
    Margin {
        /// The margin.
        margin: Load,
        /// The threshold.
        high: Load,
    },
    /// New flows would all go to one core between two samples, or a single one would fill a core.
    #[error("expected: {expected} is not above 0% and at most high ({high})")]
    Expected {
        /// The load expected of a new flow.
        expected: Load,
        /// The threshold.
        high: Load,
    },
    /// Shorter periods measure noise; longer ones leave a virtual machine's core too late.
    #[error("sample_period: {0} ns is not between 1 ms and 10 s")]
    SamplePeriod(u64),
    /// Moves must be rarer than samples; the longest hold time bounds the memory for them.
    #[error(
        "hold: {hold} ns is not between {SAMPLES_PER_HOLD} and {SAMPLES_PER_HOLD_MAX} sample \
         periods ({minimum} to {maximum} ns)"
    )]
    Hold {
        /// The hold time, ns.
        hold: u64,
        /// The shortest that is accepted, ns.
        minimum: u64,
        /// The longest, ns.
        maximum: u64,
    },
    /// A choice must not age out while the balancer still waits to judge it.
    #[error("choice_age: {choice_age} ns is shorter than hold ({hold} ns)")]
    ChoiceAge {
        /// The age, ns.
        choice_age: u64,
        /// The hold time, ns.
        hold: u64,
    },
    /// Rankings would never be used.
    #[error("ranking_samples: 0 samples; rankings would never be used")]
    RankingSamples,
    /// Priority flows would have no core.
    #[error("held_cores: 0 cores; priority flows would have none")]
    HeldCores,
}

/// The constants of the policy. [`Settings::validate`] accepts the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A core with this load or more is highly loaded: it gets no flows, and its flows may move.
    ///
    /// Default 80%. The wait in a queue grows with 1 / (1 - load): five service times at 80%, ten
    /// at 90%. The remaining 20% absorb the growth of flows until the next sample.
    pub high: Load,
    /// Time between two samples of all cores, ns.
    ///
    /// Default 20 ms. A virtual machine that starts shares its core for at most this long, and
    /// reading the counters of 64 cores 50 times per second costs next to nothing. With periods of
    /// a few milliseconds, a sample would show single bursts instead of load.
    pub sample_period_ns: u64,
    /// Number of sample periods after which a published ranking is too old to be used; packets then
    /// stay on their core.
    ///
    /// Default 3: one late sample is a scheduling delay; three mean that the sampler has died.
    pub ranking_samples: u32,
    /// How long evidence for moving a live flow must have lasted, ns; also the shortest time
    /// between two moves of a flow.
    ///
    /// Default 200 ms, ten samples. It is also Linux's shortest TCP retransmission timeout, so the
    /// silence of a sender that recovers from a loss is not mistaken for a change of load.
    pub hold_ns: u64,
    /// By how much the load of a live flow's core must exceed the load of the new core, including
    /// the flow, for the flow to move.
    ///
    /// Default 10%: a move empties caches and parks packets, and two samples of steady Poisson
    /// traffic differ by a few percent.
    pub margin: Load,
    /// Whether flows leave a highly loaded core until it is no more loaded than others, instead of
    /// until it is below `high` by the margin.
    ///
    /// Default: false. With true, loads settle in fewer steps if it is unknown by how much a core
    /// is overloaded, because measurements only say that it is busy.
    pub level: bool,
    /// Time without a packet after which the core chosen for an entry or flow is forgotten, ns.
    ///
    /// Default 1 s. The next packet may then use another core without overtaking: a full queue of
    /// 4,096 packets drains in 41 ms at 10 us each.
    pub choice_age_ns: u64,
    /// Load expected of a new flow of an entry while none of its flows has been measured.
    ///
    /// Default 1%, which spreads new flows and lets 80 of them go to an idle core between two
    /// samples. Once flows of the entry have been measured, their load replaces it.
    pub expected: Load,
    /// Most cores that priority flows may hold at once; further ones share those.
    ///
    /// Default: no limit, as in the paper. If tenants set the priority bit themselves, a limit
    /// keeps one of them from taking every core.
    pub held_cores: u16,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            high: Load::percent(80),
            sample_period_ns: 20 * MS,
            ranking_samples: 3,
            hold_ns: 200 * MS,
            margin: Load::percent(10),
            level: false,
            choice_age_ns: 1_000 * MS,
            expected: Load::percent(1),
            held_cores: u16::MAX,
        }
    }
}

impl Settings {
    /// Returns the settings if they are valid and consistent.
    ///
    /// # Errors
    ///
    /// Names the first invalid field, with its value and its limits.
    pub fn validate(self) -> Result<Settings, SettingsError> {
        let Settings { high, margin, .. } = self;
        let (expected, hold) = (self.expected, self.hold_ns);
        let samples = |count| self.sample_period_ns.saturating_mul(count);
        let (minimum, maximum) = (samples(SAMPLES_PER_HOLD), samples(SAMPLES_PER_HOLD_MAX));
        if high == Load::ZERO || high > Load::FULL {
            Err(SettingsError::High(high))
        } else if margin == Load::ZERO || margin >= high {
            Err(SettingsError::Margin { margin, high })
        } else if expected == Load::ZERO || expected > high {
            Err(SettingsError::Expected { expected, high })
        } else if !(MS..=10_000 * MS).contains(&self.sample_period_ns) {
            Err(SettingsError::SamplePeriod(self.sample_period_ns))
        } else if !(minimum..=maximum).contains(&hold) {
            Err(SettingsError::Hold {
                hold,
                minimum,
                maximum,
            })
        } else if self.choice_age_ns < hold {
            let choice_age = self.choice_age_ns;
            Err(SettingsError::ChoiceAge { choice_age, hold })
        } else if self.ranking_samples == 0 {
            Err(SettingsError::RankingSamples)
        } else if self.held_cores == 0 {
            Err(SettingsError::HeldCores)
        } else {
            Ok(self)
        }
    }

    /// Returns the number of samples that any hold time contains, wherever it begins: two more than
    /// fit, because the first and the last may lie half outside.
    pub(crate) fn window(&self) -> usize {
        let samples = self.hold_ns.div_ceil(self.sample_period_ns.max(1)) + 2;
        usize::try_from(samples).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        assert_eq!(Settings::default().validate(), Ok(Settings::default()));
        assert_eq!(Settings::default().window(), 12);
    }

    #[test]
    fn errors_name_the_field_and_its_limits() {
        let good = Settings::default();
        let message = |settings: Settings| settings.validate().unwrap_err().to_string();
        let bad = |change: &dyn Fn(&mut Settings)| {
            let mut settings = good;
            change(&mut settings);
            message(settings)
        };
        assert_eq!(
            bad(&|s| s.high = Load::percent(101)),
            "high: 101.0% is not above 0% and at most 100%"
        );
        assert_eq!(
            bad(&|s| s.margin = s.high),
            "margin: 80.0% is not above 0% and below high (80.0%)"
        );
        assert_eq!(
            bad(&|s| s.expected = Load::ZERO),
            "expected: 0.0% is not above 0% and at most high (80.0%)"
        );
        assert_eq!(
            bad(&|s| s.sample_period_ns = 0),
            "sample_period: 0 ns is not between 1 ms and 10 s"
        );
        assert_eq!(
            bad(&|s| s.hold_ns = 79 * MS),
            "hold: 79000000 ns is not between 4 and 1000 sample periods \
             (80000000 to 20000000000 ns)"
        );
        assert_eq!(
            bad(&|s| s.choice_age_ns = MS),
            "choice_age: 1000000 ns is shorter than hold (200000000 ns)"
        );
        assert!(bad(&|s| s.ranking_samples = 0).starts_with("ranking_samples"));
        assert!(bad(&|s| s.held_cores = 0).starts_with("held_cores"));
    }
}
