//! `sluice/predict`: what the rules of bridges will cost.

use super::{Commands, bridges};
use crate::switch::predict::predict;

pub(super) fn register(commands: &Commands) {
    commands.later(
        "sluice/predict",
        "[bridge [traffic]]",
        (0, 2),
        |switch, arguments, reply| {
            let chosen = match arguments.first() {
                Some(name) => super::bridge(&switch, name).map(|bridge| vec![bridge]),
                None => Ok(bridges(&switch)),
            };
            let traffic = arguments.get(1).map(|text| text.to_string());
            crate::turns::spawn("sluice/predict", async move {
                let mut text = String::new();
                match chosen {
                    Err(error) => return reply.error(error),
                    Ok(chosen) => {
                        for bridge in chosen {
                            match predict(switch.clone(), bridge, traffic.clone(), None).await {
                                Ok(told) => text.push_str(&told),
                                Err(error) => return reply.error(error),
                            }
                        }
                    }
                }
                reply.ok(text);
            });
        },
    );
}
