//! Conjunctive matches against brute force: the definition read out over a list of rules with
//! epochs, and the cross product of the clauses as plain rules. `SLUICE_CASES` sets the number of
//! cases, `SLUICE_SEED` the first seed.

use packet::key::at;
use packet::{FlowKey, Match};
use program::Program;
use program::actions::{Clause, Op, OpList};
use program::epoch::Epoch;
use program::rule::RuleSpec;
use program::table::{Bridge, BridgeWriter, RuleRef};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Words that keys differ in, three bits each.
const WORDS: [usize; 2] = [6, 9];
const CONJ_WORD: usize = at::CONJ_ID / 8;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 33) % n
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

#[derive(Clone, Debug)]
struct Plain {
    matching: Match,
    priority: u32,
    cookie: u64,
    clauses: Vec<Clause>,
}

struct Linked {
    rule: RuleRef,
    plain: Plain,
    added: Epoch,
    removed: Epoch,
}

struct Table {
    program: Arc<Program>,
    bridge: Arc<Bridge>,
    writer: BridgeWriter,
    rules: Vec<Linked>,
}

impl Table {
    fn new() -> Table {
        let program = Arc::new(Program::new());
        let bridge = Bridge::new(Arc::clone(&program));
        Table {
            writer: BridgeWriter::new(Arc::clone(&bridge)),
            program,
            bridge,
            rules: Vec::new(),
        }
    }

    fn insert(&mut self, plain: Plain) {
        let op = if plain.clauses.is_empty() {
            Op::Output(1)
        } else {
            Op::Conjunction(plain.clauses.clone().into())
        };
        let spec = RuleSpec {
            matching: plain.matching.clone(),
            priority: plain.priority,
            ops: Arc::new(OpList::new(vec![op])),
            counter: self.program.counters.allocate().unwrap(),
            cookie: plain.cookie,
        };
        let added = self.program.domain.next();
        let rule = self.writer.insert(0, spec);
        self.rules.push(Linked {
            rule,
            plain,
            added,
            removed: Epoch::MAX,
        });
    }

    fn remove(&mut self, wanted: impl Fn(&Plain) -> bool) {
        let epoch = self.program.domain.next();
        for linked in &mut self.rules {
            if linked.removed == Epoch::MAX && wanted(&linked.plain) {
                linked.removed = epoch;
                self.writer.remove(0, linked.rule);
            }
        }
    }

    fn publish(&mut self) {
        self.writer.commit();
        self.program.domain.publish();
    }

    fn held(&self, epoch: Epoch) -> Vec<&Plain> {
        let held = |linked: &&Linked| linked.added <= epoch && epoch < linked.removed;
        self.rules
            .iter()
            .filter(held)
            .map(|linked| &linked.plain)
            .collect()
    }
}

fn key_of(value: u64) -> FlowKey {
    let mut key = FlowKey::ZERO;
    key.words[WORDS[0]] = value & 7;
    key.words[WORDS[1]] = value >> 3 & 7;
    key
}

fn matching(random: &mut Random) -> Match {
    let mut all = Match::any();
    let (first, second) = random.pick(&[(7, 0), (0, 7), (3, 0), (0, 5), (7, 7), (4, 4), (1, 0)]);
    all.set_word(WORDS[0], random.next(), first);
    all.set_word(WORDS[1], random.next(), second);
    all
}

fn ordinary<'r>(rules: &[&'r Plain], key: &FlowKey) -> Option<&'r Plain> {
    let matched = rules
        .iter()
        .filter(|rule| rule.clauses.is_empty() && rule.matching.matches(key));
    matched.copied().max_by_key(|rule| rule.priority)
}

/// The definition, read out.
fn expected<'r>(rules: &[&'r Plain], key: &FlowKey) -> Option<&'r Plain> {
    let best = ordinary(rules, key);
    let mut seen: BTreeMap<(std::cmp::Reverse<u32>, u32, u8), Vec<u8>> = BTreeMap::new();
    for rule in rules.iter().filter(|rule| rule.matching.matches(key)) {
        for clause in &rule.clauses {
            let place = (std::cmp::Reverse(rule.priority), clause.id, clause.of);
            seen.entry(place).or_default().push(clause.index);
        }
    }
    for ((priority, id, of), indices) in seen {
        let whole = (0..of).all(|index| indices.contains(&index));
        if whole && best.is_none_or(|best| best.priority < priority.0) {
            let mut key = *key;
            key.set_u32(at::CONJ_ID, id);
            if let Some(found) = ordinary(rules, &key) {
                return Some(found);
            }
        }
    }
    best
}

fn cases(default: u64) -> std::ops::Range<u64> {
    let number = |name: &str, default| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let first = number("SLUICE_SEED", 1);
    first..first + number("SLUICE_CASES", default)
}

fn seeded(seed: u64) -> Random {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..4).for_each(|_| _ = random.next());
    random
}

/// Rules with several conjunctions, conditions that overlap, conditions without a rule to go to,
/// rules that come and go under readers of older epochs.
#[test]
fn lookups_do_as_the_definition_says() {
    let (mut answers, mut conjunctive) = (0, 0);
    for seed in cases(3000) {
        let mut random = seeded(seed);
        let mut table = Table::new();
        let mut reader = table.program.domain.reader().unwrap();
        // Matches of one priority are different, or a table could not hold them both. Ordinary
        // rules have odd priorities, each its own.
        let mut cookie = 0;
        for _ in 0..random.below(4) + 1 {
            for _ in 0..random.below(30) {
                cookie += 1;
                let mut matching = matching(&mut random);
                match random.below(10) {
                    0..=5 => {
                        let priority = 2 * random.below(4) as u32;
                        let clauses = (0..random.below(3) + 1)
                            .map(|_| {
                                let of = random.pick(&[2, 2, 3]);
                                let index = random.below(of) as u8;
                                Clause {
                                    id: random.below(4) as u32,
                                    index,
                                    of: of as u8,
                                }
                            })
                            .collect();
                        table.remove(|old| old.priority == priority && old.matching == matching);
                        table.insert(Plain {
                            matching,
                            priority,
                            cookie,
                            clauses,
                        });
                    }
                    kind => {
                        if kind > 7 {
                            let id = random.below(4) as u32;
                            matching = random
                                .pick(&[true, false])
                                .then(Match::any)
                                .unwrap_or(matching);
                            matching.set_exact(packet::Field::ConjId, id.into());
                        }
                        let priority = 2 * random.below(4) as u32 + 1;
                        table.remove(|old| old.priority == priority);
                        table.insert(Plain {
                            matching,
                            priority,
                            cookie,
                            clauses: Vec::new(),
                        });
                    }
                }
                if random.below(8) == 0 {
                    let victim = random.below(cookie) + 1;
                    table.remove(|old| old.cookie == victim);
                }
            }
            table.publish();
            let guard = reader.begin();
            // Changes that are not published, and housekeeping, change nothing for this reader.
            if random.below(3) == 0 {
                table.remove(|old| old.cookie % 3 == 0);
                table.writer.commit();
            }
            table.writer.housekeep(usize::MAX);
            table.program.domain.collect();
            let rules = table.held(guard.epoch());
            let keys: Vec<FlowKey> = (0..64).map(key_of).collect();
            let mut out = vec![None; keys.len()];
            table
                .bridge
                .lookup_burst(0, keys.len(), |index| &keys[index], &guard, &mut out);
            for (key, found) in keys.iter().zip(&out) {
                let found = found.map(|rule| rule.spec.cookie);
                let expected = expected(&rules, key);
                assert_eq!(
                    found,
                    expected.map(|rule| rule.cookie),
                    "seed {seed} {key:?}"
                );
                answers += usize::from(found.is_some());
                conjunctive += usize::from(
                    expected.is_some_and(|rule| rule.matching.word_set().contains(CONJ_WORD)),
                );
            }
        }
    }
    assert!(
        answers > 0 && conjunctive * 50 > answers,
        "{conjunctive} of {answers}"
    );
}

/// One condition: for each of its clauses the matches that fulfil it.
struct Condition {
    priority: u32,
    sets: Vec<Vec<Match>>,
}

fn both(one: &Match, other: &Match) -> Option<Match> {
    one.overlaps(other).then(|| {
        let mut all = one.clone();
        other
            .words()
            .iter()
            .for_each(|word| all.set_word(word.word.into(), word.value, word.mask));
        all
    })
}

/// Every way to take one match of each set, as one match.
fn product(sets: &[Vec<Match>]) -> Vec<Match> {
    sets.iter().fold(vec![Match::any()], |all, set| {
        all.iter()
            .flat_map(|one| set.iter().filter_map(|other| both(one, other)))
            .collect()
    })
}

/// Where conditions have priorities of their own they are worth the cross product of their clauses.
#[test]
fn conditions_are_worth_the_cross_product_of_their_clauses() {
    let mut met = 0;
    for seed in cases(1500) {
        let mut random = seeded(seed);
        let mut conditions: Vec<Condition> = (0..random.below(4) + 1)
            .map(|index| Condition {
                priority: 10 * index as u32 + 5,
                sets: vec![Vec::new(); random.below(4) as usize + 2],
            })
            .collect();
        let others: Vec<Plain> = (0..random.below(16))
            .map(|index| Plain {
                matching: matching(&mut random),
                priority: 10 * random.below(5) as u32 + index as u32 % 5,
                cookie: 1000 + index,
                clauses: Vec::new(),
            })
            .collect();
        let mut table = Table::new();
        let mut reader = table.program.domain.reader().unwrap();
        for plain in &others {
            table.remove(|old| old.priority == plain.priority);
            table.insert(plain.clone());
        }
        for (id, condition) in conditions.iter().enumerate() {
            let mut matching = Match::any();
            // Every packet has the number 0.
            matching.set_exact(packet::Field::ConjId, id as u128 + 1);
            table.insert(Plain {
                matching,
                priority: condition.priority,
                cookie: id as u64,
                clauses: Vec::new(),
            });
        }
        for _ in 0..4 {
            for _ in 0..random.below(20) {
                let id = random.below(conditions.len() as u64) as usize;
                let condition = &mut conditions[id];
                let of = condition.sets.len();
                let index = random.below(of as u64) as usize;
                let one = matching(&mut random);
                // A rule says one thing about a condition here: the same match elsewhere in it
                // goes.
                for set in &mut condition.sets {
                    set.retain(|other| *other != one);
                }
                let priority = condition.priority;
                table.remove(|old| old.priority == priority && old.matching == one);
                if random.below(4) != 0 {
                    condition.sets[index].push(one.clone());
                    table.insert(Plain {
                        matching: one,
                        priority,
                        cookie: u64::MAX,
                        clauses: vec![Clause {
                            id: id as u32 + 1,
                            index: index as u8,
                            of: of as u8,
                        }],
                    });
                }
            }
            table.publish();
            let mut plain = Table::new();
            let kept: Vec<Plain> = table
                .held(table.program.domain.current())
                .into_iter()
                .filter(|rule| rule.cookie >= 1000 && rule.clauses.is_empty())
                .cloned()
                .collect();
            kept.into_iter().for_each(|rule| plain.insert(rule));
            for (id, condition) in conditions.iter().enumerate() {
                let mut all = product(&condition.sets);
                all.sort_by_key(|one| format!("{one:?}"));
                all.dedup();
                for matching in all {
                    plain.insert(Plain {
                        matching,
                        priority: condition.priority,
                        cookie: id as u64,
                        clauses: Vec::new(),
                    });
                }
            }
            plain.publish();
            let mut plain_reader = plain.program.domain.reader().unwrap();
            let (guard, plain_guard) = (reader.begin(), plain_reader.begin());
            for key in (0..64).map(key_of) {
                let cookie = |rule: Option<&program::rule::Rule>| rule.map(|rule| rule.spec.cookie);
                let found = cookie(table.bridge.lookup(0, &key, &guard));
                let expected = cookie(plain.bridge.lookup(0, &key, &plain_guard));
                assert_eq!(found, expected, "seed {seed} {key:?}");
                met += usize::from(found.is_some_and(|cookie| cookie < 1000));
            }
            table.writer.housekeep(usize::MAX);
            table.program.domain.collect();
        }
    }
    assert!(met > 1000, "{met} conditions met");
}

/// The most clauses that there may be, and more conditions than a worker's memory has room for at
/// first.
#[test]
fn sixty_four_clauses_and_a_thousand_conditions() {
    let mut table = Table::new();
    let mut reader = table.program.domain.reader().unwrap();
    let word = |bit: u64| {
        let mut matching = Match::any();
        matching.set_word(WORDS[0], 1 << bit, 1 << bit);
        matching
    };
    for index in 0..64_u8 {
        let clauses = (0..1000).map(|id| Clause { id, index, of: 64 }).collect();
        table.insert(Plain {
            matching: word(index.into()),
            priority: 5,
            cookie: 1,
            clauses,
        });
    }
    let mut matching = Match::any();
    matching.set_exact(packet::Field::ConjId, 200);
    table.insert(Plain {
        matching,
        priority: 1,
        cookie: 2,
        clauses: Vec::new(),
    });
    table.publish();
    let guard = reader.begin();
    let mut key = FlowKey::ZERO;
    for (value, expected) in [
        (u64::MAX, Some(2)),
        (u64::MAX - 1, None),
        (u64::MAX >> 1, None),
    ] {
        key.words[WORDS[0]] = value;
        let found = table.bridge.lookup(0, &key, &guard);
        assert_eq!(found.map(|rule| rule.spec.cookie), expected, "{value:x}");
    }
}

/// `cargo test -p sluice-program --test all conjunction -- --ignored --nocapture` prints what a
/// lookup costs among many conditions.
#[test]
#[ignore = "prints a time"]
fn what_a_lookup_costs() {
    for conditions in [1_u32, 10, 100, 400] {
        let mut table = Table::new();
        let mut reader = table.program.domain.reader().unwrap();
        let exact = |word: usize, value: u64| {
            let mut matching = Match::any();
            matching.set_word(word, value, u64::MAX);
            matching
        };
        // Each of 3000 addresses and ports belongs to a tenth of the conditions, at most; clause k
        // of n looks at word k.
        for value in 0..3000_u64 {
            for (index, word) in [6, 9, 10].into_iter().enumerate() {
                let clauses = (0..conditions)
                    .filter(|id| conditions < 10 || u64::from(*id) % 10 == value % 10)
                    .map(|id| Clause {
                        id: id + 1,
                        index: index as u8,
                        of: 3,
                    });
                table.insert(Plain {
                    matching: exact(word, value),
                    priority: 5,
                    cookie: 1,
                    clauses: clauses.collect(),
                });
            }
        }
        for id in 0..conditions {
            let mut matching = Match::any();
            matching.set_exact(packet::Field::ConjId, u128::from(id) + 1);
            table.insert(Plain {
                matching,
                priority: 5,
                cookie: 2,
                clauses: Vec::new(),
            });
        }
        table.publish();
        let guard = reader.begin();
        let mut key = FlowKey::ZERO;
        let (mut found, began) = (0, std::time::Instant::now());
        for turn in 0..100_000_u64 {
            key.words[6] = turn * 7 % 3000;
            key.words[9] = turn * 11 % 3000;
            key.words[10] = turn * 13 % 3000;
            found += u32::from(table.bridge.lookup(0, &key, &guard).is_some());
        }
        let each = began.elapsed().as_nanos() / 100_000;
        println!(
            "{conditions} conditions over 9000 rules: {each} ns a lookup, {found} of 100000 found"
        );
    }
}
