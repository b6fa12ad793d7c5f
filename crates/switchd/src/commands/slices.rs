//! Long replies, built in slices so that other tasks can run in between.

use serde_json::Value;
use std::time::{Duration, Instant};

/// How long a reply is built before other tasks run.
const SLICE: Duration = Duration::from_micros(500);

/// Timer that cuts work into slices.
pub(super) struct Pace {
    begun: Instant,
}

impl Pace {
    pub fn new() -> Pace {
        Pace {
            begun: Instant::now(),
        }
    }

    /// Yields to other tasks if the slice has used up its time.
    pub async fn step(&mut self) {
        if self.begun.elapsed() >= SLICE {
            tokio::task::yield_now().await;
            self.begun = Instant::now();
        }
    }
}

/// Returns a JSON list of up to `most` items. Each item is made and written by itself; `None` is
/// skipped.
pub(super) async fn list(items: impl Iterator<Item = Option<Value>>, most: usize) -> String {
    let mut pace = Pace::new();
    let mut text = String::from("[");
    let mut written = 0;
    for item in items {
        if written == most {
            break;
        }
        if let Some(item) = item {
            if written > 0 {
                text.push(',');
            }
            text += &item.to_string();
            written += 1;
        }
        pace.step().await;
    }
    text.push(']');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::cell::Cell;
    use std::rc::Rc;

    fn run<T>(what: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime.unwrap(), what)
    }

    #[test]
    fn a_list_is_json_and_bounded() {
        let items =
            |count: usize| (0..count).map(|number| (number % 3 != 1).then(|| json!(number)));
        assert_eq!(run(list(items(0), 9)), "[]");
        assert_eq!(run(list(items(6), 9)), "[0,2,3,5]");
        assert_eq!(run(list(items(6), 3)), "[0,2,3]");
        let text = run(list(items(1000), usize::MAX));
        let read: Vec<usize> = serde_json::from_str(&text).unwrap();
        assert_eq!(read.len(), 667);
    }

    #[test]
    fn others_have_their_turn_while_it_is_written() {
        run(async {
            let others = Rc::new(Cell::new(0));
            let count = others.clone();
            let other = crate::turns::spawn("other", async move {
                loop {
                    count.set(count.get() + 1);
                    tokio::task::yield_now().await;
                }
            });
            let slow = (0..20).map(|number| {
                std::thread::sleep(SLICE);
                Some(json!(number))
            });
            list(slow, usize::MAX).await;
            other.abort();
            assert!(others.get() >= 20, "{} turns", others.get());
        });
    }
}
