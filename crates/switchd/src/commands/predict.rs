//! `sluice/predict`: what the rules of bridges will cost.

use super::{Commands, bridges};
use crate::switch::predict::predict;

pub(super) fn register(commands: &Commands) {
    commands.later(
        "sluice/predict",
        "[--anyway] [bridge [traffic]]",
        (0, 3),
        |switch, arguments, reply| {
            let anyway = arguments.first().is_some_and(|word| word == "--anyway");
            let arguments = &arguments[usize::from(anyway)..];
            if arguments.len() > 2 {
                return reply.error("needs a bridge and a description of traffic".to_owned());
            }
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
                            match predict(switch.clone(), bridge, traffic.clone(), anyway).await {
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
