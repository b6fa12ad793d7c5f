//! Parses groups as `ovs-ofctl add-groups` takes them and `dump-groups` prints them.

use super::values::{bounded, of_field};
use super::{Error, PortNames, Result, actions, field, pairs, port};
use crate::model::group::{
    ANY, BUCKET_ALL, Bucket, GroupCommand, GroupKind, GroupMod, Selection, SelectionMethod,
};
use crate::model::port::ANY as NO_PORT;
use packet::{Field, Value};

/// The words that begin a bucket.
const BUCKET: [&str; 2] = ["bucket=", "buckets="];

/// Parses a group to add:
/// `group_id=1,type=select,bucket=weight:2,actions=output:1,bucket=actions=output:2`.
pub fn group(text: &str, names: PortNames<'_>) -> Result<GroupMod> {
    let (head, buckets) = split(text);
    let (mut kind, mut number) = (None, None);
    let (mut method, mut parameter, mut fields) = (None, None, Vec::new());
    for pair in pairs(head) {
        match pair.key {
            "group_id" => number = Some(bounded(pair.value, 32, pair.key)? as u32),
            "type" => kind = Some(kind_of(pair.value)?),
            "selection_method" => method = Some(method_of(pair.value)?),
            "selection_method_param" => {
                parameter = Some(bounded(pair.value, 64, pair.key)? as u64);
            }
            "fields" => fields = fields_of(pair.value, names)?,
            key => return Err(Error::new(format!("unknown keyword {key}"))),
        }
    }
    let number = number.ok_or_else(|| Error::new("must specify a group_id"))?;
    let kind = kind.ok_or_else(|| Error::new("must specify a type"))?;
    let selection = match method {
        Some(method) => Some(Selection {
            method,
            parameter: parameter.unwrap_or(0),
            fields,
        }),
        None if parameter.is_some() || !fields.is_empty() => {
            return Err(Error::new("must specify a selection_method"));
        }
        None => None,
    };
    if selection.is_some() && kind != GroupKind::Select {
        return Err(Error::new("selection_method is for select groups"));
    }
    let mut read = Vec::new();
    for text in buckets {
        read.push(bucket(text, kind, names)?);
    }
    number_them(&mut read);
    Ok(GroupMod {
        command: GroupCommand::Add,
        kind,
        group: number,
        command_bucket: BUCKET_ALL,
        buckets: read,
        selection,
    })
}

/// Splits a group into the part in front of the first bucket, and its buckets.
fn split(text: &str) -> (&str, Vec<&str>) {
    let mut starts = Vec::new();
    for word in BUCKET {
        let found = text.match_indices(word).filter(|(at, _)| {
            let before = text[..*at].chars().next_back();
            before.is_none_or(|letter| letter == ',' || letter.is_ascii_whitespace())
        });
        starts.extend(found.map(|(at, word)| (at, at + word.len())));
    }
    starts.sort_unstable();
    let ends = starts.iter().skip(1).map(|(at, _)| *at);
    let ends: Vec<usize> = ends.chain([text.len()]).collect();
    let head = starts.first().map_or(text, |(at, _)| &text[..*at]);
    let buckets = starts
        .iter()
        .zip(ends)
        .map(|((_, start), end)| text[*start..end].trim_end_matches([',', ' ', '\t']));
    (head, buckets.collect())
}

fn kind_of(name: &str) -> Result<GroupKind> {
    match name {
        "all" => Ok(GroupKind::All),
        "select" => Ok(GroupKind::Select),
        "indirect" => Ok(GroupKind::Indirect),
        "ff" | "fast_failover" => Ok(GroupKind::FastFailover),
        _ => Err(Error::new(format!("invalid group type {name}"))),
    }
}

fn method_of(name: &str) -> Result<SelectionMethod> {
    [SelectionMethod::Hash, SelectionMethod::DpHash]
        .into_iter()
        .find(|method| method.name() == name)
        .ok_or_else(|| Error::new(format!("invalid selection_method {name}")))
}

/// Parses the fields to hash, whole or with a mask.
fn fields_of(text: &str, names: PortNames<'_>) -> Result<Vec<(Field, Value)>> {
    let mut fields: Vec<(Field, Value)> = Vec::new();
    for pair in pairs(text) {
        let field =
            field(pair.key).ok_or_else(|| Error::new(format!("unknown field {}", pair.key)))?;
        let def = field.def();
        let mask = match pair.value {
            "" => def.place(),
            value => {
                let read = of_field(field, value, names)?;
                Value::from_u128(read.value >> def.wire_shift << def.shift, def.bytes)
            }
        };
        if fields.iter().any(|(other, _)| *other == field) {
            return Err(Error::new(format!("field {} set multiple times", pair.key)));
        }
        fields.push((field, mask));
    }
    Ok(fields)
}

fn bucket(text: &str, kind: GroupKind, names: PortNames<'_>) -> Result<Bucket> {
    let weight = u16::from(kind == GroupKind::Select);
    let mut bucket = Bucket {
        id: BUCKET_ALL,
        weight,
        watch_port: NO_PORT,
        watch_group: ANY,
        actions: Vec::new(),
    };
    // Properties of the bucket may precede its actions, with or without `actions=` in between.
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c == ',' || c.is_ascii_whitespace());
        let behind = ["actions=", "actions:", "action=", "action:"]
            .iter()
            .find_map(|word| rest.strip_prefix(word));
        if let Some(behind) = behind {
            rest = behind;
            continue;
        }
        let Some(pair) = pairs(rest).next() else {
            break;
        };
        match pair.key {
            "bucket_id" => bucket.id = bounded(pair.value, 32, pair.key)? as u32,
            "weight" => bucket.weight = bounded(pair.value, 16, pair.key)? as u16,
            "watch_group" => bucket.watch_group = bounded(pair.value, 32, pair.key)? as u32,
            "watch_port" => {
                bucket.watch_port = port(pair.value, names)
                    .ok_or_else(|| Error::new(format!("{}: invalid watch_port", pair.value)))?;
            }
            _ => break,
        }
        rest = &rest[super::word_end(rest)..];
    }
    bucket.actions = actions(rest, names)?;
    Ok(bucket)
}

/// Gives buckets without an id the lowest free ones.
fn number_them(buckets: &mut [Bucket]) {
    let mut taken: std::collections::BTreeSet<u32> = buckets.iter().map(|b| b.id).collect();
    let mut next = 0;
    for bucket in buckets.iter_mut().filter(|b| b.id == BUCKET_ALL) {
        while !taken.insert(next) {
            next += 1;
        }
        bucket.id = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::action::Action;
    use crate::text::parse::no_names;

    #[test]
    fn groups_of_every_type() {
        let read = group(
            "group_id=7,type=select,selection_method=hash,selection_method_param=3,fields(ip_src,tcp_dst=0xff00),bucket=bucket_id:4,weight:5,actions=output:1,bucket=output:2,resubmit(,3)",
            &no_names,
        )
        .unwrap();
        assert_eq!((read.group, read.kind), (7, GroupKind::Select));
        let selection = read.selection.unwrap();
        assert_eq!(
            (selection.method, selection.parameter),
            (SelectionMethod::Hash, 3)
        );
        assert_eq!(&*selection.fields[0].1, [255; 4]);
        assert_eq!(&*selection.fields[1].1, [255, 0]);
        let [first, second] = &read.buckets[..] else {
            panic!("{:?}", read.buckets);
        };
        assert_eq!((first.id, first.weight, first.actions.len()), (4, 5, 1));
        assert_eq!((second.id, second.weight, second.actions.len()), (0, 1, 2));
        let failover = group(
            " group_id=1 type=ff, bucket=watch_port:3,watch_group:9,actions=drop , bucket=actions=3",
            &no_names,
        );
        let failover = failover.unwrap();
        assert_eq!(failover.buckets[0].watch_port, 3);
        assert_eq!(failover.buckets[0].watch_group, 9);
        assert!(failover.buckets[0].actions.is_empty());
        assert!(matches!(
            failover.buckets[1].actions[..],
            [Action::Output { .. }]
        ));
        assert!(
            group("group_id=2,type=all", &no_names)
                .unwrap()
                .buckets
                .is_empty()
        );
    }

    #[test]
    fn errors_of_groups_name_the_word() {
        let error = |text: &str| group(text, &no_names).unwrap_err().to_string();
        assert_eq!(error("type=all"), "must specify a group_id");
        assert_eq!(error("group_id=1"), "must specify a type");
        assert_eq!(error("group_id=1,type=some"), "invalid group type some");
        assert_eq!(
            error("group_id=1,type=all,color=red"),
            "unknown keyword color"
        );
        assert_eq!(
            error("group_id=1,type=all,selection_method=hash"),
            "selection_method is for select groups"
        );
        assert_eq!(
            error("group_id=1,type=select,fields(ip_src)"),
            "must specify a selection_method"
        );
        assert_eq!(
            error("group_id=1,type=select,selection_method=dice"),
            "invalid selection_method dice"
        );
        assert!(error("group_id=4294967296,type=all").contains("too large"));
        assert!(error("group_id=1,type=all,bucket=watch_port:x").contains("watch_port"));
        assert!(!error("group_id=1,type=all,bucket=nonsense:2").is_empty());
        // Parsing ends, whatever counts as white space.
        let spaced = "group_id=1,type=all,bucket=\x0cweight:1,\r\x0b actions=output:1";
        assert!(group(spaced, &no_names).is_ok() || !error(spaced).is_empty());
    }
}
