//! Prints a prediction, as text for people or as JSON for programs.

use ::predict::kinds::Kinds;
use ::predict::traffic::Traffic;
use ::predict::{Prediction, report};
use serde_json::json;
use std::fmt::Write;

/// What is printed besides the prediction.
pub(super) struct Shown<'a> {
    pub file: &'a str,
    pub traffic: &'a Traffic,
    pub cpu: usize,
    pub notes: &'a [String],
    pub kinds: &'a Kinds,
    /// Whether to print figures although the machine's speed has changed.
    pub anyway: bool,
}

impl Shown<'_> {
    fn bytes(&self) -> f64 {
        let arrivals = &self.traffic.arrivals;
        let bytes: usize = arrivals.iter().map(|arrival| arrival.bytes.len()).sum();
        bytes as f64 / arrivals.len().max(1) as f64
    }

    /// Returns one JSON object.
    pub(super) fn json(&self, prediction: &Prediction) -> String {
        json!({
            "flows": self.file,
            "cpu": self.cpu,
            "packets": self.traffic.arrivals.len(),
            "bytes_per_packet": self.bytes(),
            "ports": self.kinds.describe(),
            "notes": self.notes,
            "reliable": prediction.machine.stood_still(),
            "advice": report::advice(prediction),
            "prediction": prediction,
        })
        .to_string()
    }

    /// Returns the result, advice and tables, followed by the conditions under which it holds.
    pub(super) fn text(&self, prediction: &Prediction) -> String {
        let mut text = report::text(prediction, self.anyway);
        let _ = writeln!(
            text,
            "{}: {} packets of {:.0} bytes, processor {} counting at {:.2} GHz, ports: {}",
            self.file,
            prediction.trace.packets,
            self.bytes(),
            self.cpu,
            prediction.hz as f64 / 1e9,
            self.kinds.describe()
        );
        for note in self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }
}
