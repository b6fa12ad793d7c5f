//! The loaded XDP program and its maps: what user space publishes to it and reads from it.

use crate::layout::{
    COUNTERS, CPUS_MAX, Candidate, Config, Core, CpumapValue, Entry, EntryKey, FlowKey, Lane,
    MASKS_MAX, Mask, NONE, Own, Placement, Rankings, Room, SLOT_FREE, SLOT_LIVE, Slot, Ticket,
    ViewMask,
};
use crate::object::{
    BpfError, Link, Map, Object, Shared, TestRun, bytes_of, map_id, possible_cpus, sums, test_run,
    xdp_programs, zeroed,
};
use crate::parse::Layout;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use steer::table::Match;

/// The compiled programs of `bpf/`.
const PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/steer.bpf.o"));

/// Tracepoints for measuring cores, and the programs for them.
const SAMPLERS: [(&str, &str); 6] = [
    ("sched_switch", "on_switch"),
    ("irq_handler_entry", "on_irq_entry"),
    ("irq_handler_exit", "on_irq_exit"),
    ("softirq_raise", "on_softirq_raise"),
    ("softirq_entry", "on_softirq_entry"),
    ("softirq_exit", "on_softirq_exit"),
];

/// Tracepoints of the cpumap: batches and drops.
const CPUMAP: [(&str, &str); 2] = [
    ("xdp_cpumap_kthread", "on_cpumap_batch"),
    ("xdp_cpumap_enqueue", "on_cpumap_enqueue"),
];

/// Most frames that wait for a core, as many as a receive ring holds; the kernel drops further
/// ones, counted as `dropped`. (Eight times the kernel's default backlog for devices would be
/// 8,000.)
pub const CPUMAP_QUEUE: u32 = 2048;

/// Sizes of the maps.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Processors, numbered from 0: the highest number that could be online, plus 1.
    pub cpus: u32,
    /// Most entries.
    pub entries: u32,
    /// Most flows with their own choices.
    pub flows: u32,
}

/// Parameters for reading frames, and constants of the program.
#[derive(Clone, Copy, Debug)]
pub struct Constants {
    /// Time after which a choice is forgotten, ns.
    pub choice_age_ns: u64,
    /// Shortest gap after which a flow may move although there is no sign that it has drained, ns.
    pub least_wait_ns: u64,
    /// Position of the flow control field.
    pub layout: Layout,
    /// Whether it is trusted.
    pub trusted: bool,
    /// Whether it is removed.
    pub strip: bool,
    /// VXLAN's UDP port.
    pub vxlan_port: u16,
    /// Seed of flows' hashes.
    pub seed: u64,
}

/// XDP mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// In the driver, before the kernel makes a packet of the frame.
    Driver,
    /// In the kernel's receive path, with any driver.
    Generic,
}

impl Mode {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Driver => "driver",
            Mode::Generic => "generic",
        }
    }

    fn flags(self) -> u32 {
        match self {
            Mode::Driver => libbpf_sys::XDP_FLAGS_DRV_MODE,
            Mode::Generic => libbpf_sys::XDP_FLAGS_SKB_MODE,
        }
    }
}

/// An entry to publish.
#[derive(Clone, Debug)]
pub struct Published {
    /// Its match.
    pub matching: Match<{ crate::layout::KEY_BYTES }>,
    /// Everything else.
    pub entry: Entry,
}

/// The loaded programs.
pub struct Program {
    // Dropped first: no program runs any more when the maps are freed.
    xdp: Option<Link>,
    samplers: Vec<Link>,
    object: Object,
    limits: Limits,
    config: Shared<Config>,
    slots: Shared<Slot>,
    lanes: Shared<Lane>,
    cores: Shared<Core>,
    placements: Shared<Placement>,
    masks: Map<u32, Mask>,
    entries: Map<EntryKey, Entry>,
    flows: Map<FlowKey, u32>,
    vacant: Map<u32, u32>,
    rankings: Map<u32, Rankings>,
    cpumap: Map<u32, CpumapValue>,
    tickets: Shared<Ticket>,
    room: Shared<Room>,
    /// Masks in the map, by slot.
    mask_slots: Vec<Option<[u8; crate::layout::KEY_BYTES]>>,
    /// Contents of the map of entries.
    published: std::collections::HashMap<(u32, [u8; crate::layout::KEY_BYTES]), Entry>,
    view: u32,
    ranking: u32,
}

impl Program {
    /// Loads the programs into the kernel without attaching them.
    ///
    /// # Errors
    ///
    /// The kernel's; also if it does not support so many processors.
    pub fn load(limits: Limits, constants: &Constants) -> Result<Program, BpfError> {
        let mut object = Object::open(PROGRAMS)?;
        let slots = limits.entries + limits.flows;
        object.size_map("entries", limits.entries)?;
        object.size_map("slots", slots)?;
        object.size_map("flows", limits.flows)?;
        object.size_map("vacant", limits.flows)?;
        object.size_map("tickets", slots.saturating_mul(limits.cpus))?;
        object.size_map("lanes", limits.cpus * (limits.cpus + 1))?;
        // One element for each possible processor: the kernel refuses more.
        object.size_map("cpumap", (possible_cpus() as u32).min(limits.cpus))?;
        object.load()?;
        let program = Program {
            xdp: None,
            samplers: Vec::new(),
            limits,
            config: Shared::of(&object, "config")?,
            slots: Shared::of(&object, "slots")?,
            lanes: Shared::of(&object, "lanes")?,
            cores: Shared::of(&object, "cores")?,
            placements: Shared::of(&object, "placements")?,
            masks: Map::of(&object, "masks")?,
            entries: Map::of(&object, "entries")?,
            flows: Map::of(&object, "flows")?,
            vacant: Map::of(&object, "vacant")?,
            rankings: Map::of(&object, "rankings_map")?,
            cpumap: Map::of(&object, "cpumap")?,
            tickets: Shared::of(&object, "tickets")?,
            room: Shared::of(&object, "room")?,
            mask_slots: vec![None; MASKS_MAX],
            published: std::collections::HashMap::new(),
            view: 0,
            ranking: 0,
            object,
        };
        let mut config: Config = zeroed();
        config.cpus = limits.cpus;
        config.slots = slots;
        config.wait_window_ns = 1_000_000_000;
        config.cpumap_id = map_id(&program.object, "cpumap")?;
        program.config.write(0, config);
        program.set_constants(constants);
        // The lowest slots are used first, so that a scan of all used ones is short.
        for slot in (limits.entries..slots).rev() {
            let pushed = program.vacant.push(&slot);
            pushed.map_err(|error| BpfError {
                what: "map vacant".to_owned(),
                error,
            })?;
        }
        let vacant = offset_of!(Room, vacant);
        program.room.store(0, vacant, limits.flows);
        Ok(program)
    }

    /// Changes the constants.
    pub fn set_constants(&self, constants: &Constants) {
        let mut config = self.config.read(0);
        config.choice_age_ns = constants.choice_age_ns;
        config.least_wait_ns = constants.least_wait_ns;
        config.layout = constants.layout as u32;
        config.trusted = u32::from(constants.trusted);
        config.strip = u32::from(constants.strip);
        config.vxlan_port = u32::from(constants.vxlan_port);
        config.seed = constants.seed;
        self.config.write(0, config);
    }

    /// Changes the age at which choices are forgotten, ns.
    pub fn set_choice_age(&self, choice_age_ns: u64) {
        let offset = offset_of!(Config, choice_age_ns);
        for (at, word) in choice_age_ns.to_ne_bytes().chunks_exact(4).enumerate() {
            let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
            self.config.store(0, offset + 4 * at, word);
        }
    }

    /// Returns the sizes of the maps.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Adds a core to the cpumap, with its own thread there, so that packets can be sent to it.
    ///
    /// # Errors
    ///
    /// The kernel's: the core is not online, or there is no memory.
    pub fn open_core(&self, cpu: u32) -> Result<(), BpfError> {
        let value = CpumapValue {
            queue: CPUMAP_QUEUE,
            program: self.object.program_fd("steer_arrive")?,
        };
        self.cpumap.set(&cpu, &value).map_err(|error| BpfError {
            what: format!("core {cpu}: cannot be used"),
            error,
        })?;
        self.set_usable(cpu, true);
        Ok(())
    }

    /// Removes a core from the cpumap; packets for it then stay on the processors that receive
    /// them.
    pub fn close_core(&self, cpu: u32) {
        self.set_usable(cpu, false);
        self.cpumap.remove(&cpu);
    }

    fn set_usable(&self, cpu: u32, usable: bool) {
        let offset = offset_of!(Config, usable) + 4 * (cpu as usize / 32);
        let bit = 1_u32 << (cpu % 32);
        let word = self.config.word(0, offset);
        if usable {
            word.fetch_or(bit, Ordering::AcqRel);
        } else {
            word.fetch_and(!bit, Ordering::AcqRel);
        }
    }

    /// Attaches the programs that measure cores.
    ///
    /// # Errors
    ///
    /// The kernel's: it has no such tracepoints. Programs attached before the error are detached
    /// again.
    pub fn attach_samplers(&mut self) -> Result<(), BpfError> {
        let links = SAMPLERS.iter().map(|(tracepoint, program)| {
            Link::tracepoint(self.object.program_fd(program)?, tracepoint)
        });
        let links: Vec<Link> = links.collect::<Result<_, _>>()?;
        self.samplers.extend(links);
        Ok(())
    }

    /// Attaches the programs for the cpumap's batches and drops.
    ///
    /// # Errors
    ///
    /// The kernel's: it has no such tracepoints.
    pub fn attach_cpumap(&mut self) -> Result<(), BpfError> {
        for (tracepoint, program) in CPUMAP {
            let link = Link::tracepoint(self.object.program_fd(program)?, tracepoint)?;
            self.samplers.push(link);
        }
        Ok(())
    }

    /// Attaches the XDP program to an interface, until this is dropped or the process ends.
    ///
    /// # Errors
    ///
    /// The kernel's: there is another program, or the driver does not support the mode.
    pub fn attach(&mut self, interface: u32, mode: Mode) -> Result<(), BpfError> {
        let program = self.object.program_fd("steer_receive")?;
        self.xdp = Some(Link::xdp(program, interface, mode.flags())?);
        Ok(())
    }

    /// Detaches the XDP program.
    pub fn detach(&mut self) {
        self.xdp = None;
    }

    /// Returns whether the interface still has a program that was attached by this one; false if
    /// the interface has been deleted.
    pub fn is_attached(&self, interface: u32) -> bool {
        self.xdp.as_ref().is_some_and(|link| link.as_raw_fd() >= 0)
            && xdp_programs(interface).is_ok_and(|programs| !programs.is_empty())
    }

    /// Makes the program look up these entries, and no others. Entries of one match and different
    /// precedences share an element, which holds the highest.
    ///
    /// # Errors
    ///
    /// The map is full. The table is unchanged, except that removed entries are gone.
    pub fn publish_entries(&mut self, wanted: &[Published]) -> Result<(), BpfError> {
        let mut places = std::collections::HashMap::new();
        let masks: std::collections::HashSet<_> =
            wanted.iter().map(|entry| *entry.matching.mask()).collect();
        // Unused masks are removed first; the program stops looking them up at once.
        let mut gone = Vec::new();
        for (slot, mask) in self.mask_slots.iter_mut().enumerate() {
            if mask.is_some_and(|mask| !masks.contains(&mask)) {
                *mask = None;
                gone.push(slot as u32);
            }
        }
        for mask in &masks {
            if self.mask_slots.iter().flatten().any(|known| known == mask) {
                continue;
            }
            // Slots that were in use until now are reused last, since a lookup may still use them.
            let vacant = |slot: &usize| self.mask_slots[*slot].is_none();
            let mut slots: Vec<usize> = (0..MASKS_MAX).filter(vacant).collect();
            slots.sort_by_key(|slot| gone.contains(&(*slot as u32)));
            let Some(slot) = slots.first().copied() else {
                return Err(full("masks"));
            };
            let set = self.masks.set(&(slot as u32), &Mask { bits: *mask });
            set.map_err(|error| BpfError {
                what: "map masks".to_owned(),
                error,
            })?;
            self.mask_slots[slot] = Some(*mask);
        }
        for entry in wanted {
            let mask = entry.matching.mask();
            let slot = self
                .mask_slots
                .iter()
                .position(|known| known.as_ref() == Some(mask));
            let place = (slot.unwrap_or(0) as u32, *entry.matching.value());
            let rank = |entry: &Entry| (entry.precedence, std::cmp::Reverse(entry.id));
            let best = places.entry(place).or_insert(entry.entry);
            if rank(best) < rank(&entry.entry) {
                *best = entry.entry;
            }
        }
        let old: Vec<_> = self.published.keys().copied().collect();
        for place in old {
            if !places.contains_key(&place) {
                self.entries.remove(&entry_key(place));
                self.published.remove(&place);
            }
        }
        for (place, entry) in &places {
            let known = self.published.get(place);
            if known.is_some_and(|known| bytes_of(known) == bytes_of(entry)) {
                continue;
            }
            let set = self.entries.set(&entry_key(*place), entry);
            set.map_err(|error| BpfError {
                what: "map entries".to_owned(),
                error,
            })?;
            self.published.insert(*place, *entry);
        }
        self.publish_view(&places);
        Ok(())
    }

    /// Publishes which masks are looked up, the highest precedence first.
    fn publish_view(
        &mut self,
        places: &std::collections::HashMap<(u32, [u8; crate::layout::KEY_BYTES]), Entry>,
    ) {
        let mut best = [None; MASKS_MAX];
        for ((slot, _), entry) in places {
            let best: &mut Option<u16> = &mut best[*slot as usize % MASKS_MAX];
            *best = (*best).max(Some(entry.precedence));
        }
        let mut order: Vec<ViewMask> = (0..)
            .zip(best)
            .filter_map(|(slot, precedence)| {
                Some(ViewMask {
                    slot,
                    precedence: u32::from(precedence?),
                })
            })
            .collect();
        order.sort_by_key(|mask| std::cmp::Reverse(mask.precedence));
        let next = 1 - self.view;
        let mut config = self.config.read(0);
        let view = &mut config.views[next as usize];
        view.count = order.len() as u32;
        view.masks[..order.len()].copy_from_slice(&order);
        let offset = offset_of!(Config, views) + next as usize * size_of::<crate::layout::View>();
        for (at, word) in bytes_of(view).chunks_exact(4).enumerate() {
            let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
            self.config
                .word(0, offset + 4 * at)
                .store(word, Ordering::Relaxed);
        }
        self.config.store(0, offset_of!(Config, view), next);
        self.view = next;
    }

    /// Publishes a ranking. What the program has placed since the moment of `placed` is added to
    /// it.
    ///
    /// # Errors
    ///
    /// Errors of the kernel.
    pub fn publish_rankings(&mut self, rankings: &Rankings) -> Result<(), BpfError> {
        let next = 1 - self.ranking;
        self.rankings
            .set(&next, rankings)
            .map_err(|error| BpfError {
                what: "map rankings_map".to_owned(),
                error,
            })?;
        self.config.store(0, offset_of!(Config, ranking), next);
        self.ranking = next;
        Ok(())
    }

    /// Returns all that the program has ever placed on each core.
    pub fn placements(&self) -> Vec<Placement> {
        (0..CPUS_MAX).map(|cpu| self.placements.read(cpu)).collect()
    }

    /// Returns a consistent copy of a processor's state; none if it changed during every attempt,
    /// or if nothing has been seen of the processor.
    pub fn core(&self, cpu: u32) -> Option<Core> {
        let offset = offset_of!(Core, ended);
        for _ in 0..16 {
            let ended = self
                .cores
                .word(cpu as usize, offset)
                .load(Ordering::Acquire);
            let core = self.cores.read(cpu as usize);
            std::sync::atomic::fence(Ordering::Acquire);
            let begun = offset_of!(Core, begun);
            let begun = self.cores.word(cpu as usize, begun).load(Ordering::Acquire);
            if begun == ended {
                return (core.since_ns != 0).then_some(core);
            }
        }
        None
    }

    /// Returns a processor's counters, which may be from different moments.
    pub fn core_counters(&self, cpu: u32) -> Core {
        self.cores.read(cpu as usize)
    }

    /// Returns a lane; the one to core `cpus` is the direct one.
    pub fn lane(&self, rx: u32, core: u32) -> Lane {
        self.lanes
            .read((rx * (self.limits.cpus + 1) + core) as usize)
    }

    /// Returns a slot.
    pub fn slot(&self, slot: u32) -> Slot {
        self.slots.read(slot as usize)
    }

    /// Starts to use an entry's slot.
    pub fn open_slot(&self, at: u32, entry: u64, core: u32) {
        let mut slot: Slot = zeroed();
        slot.state = SLOT_FREE;
        (slot.core, slot.wanted, slot.entry) = (core, NONE, entry);
        self.clear_tickets(at);
        self.slots.write(at as usize, slot);
        self.slots
            .store(at as usize, offset_of!(Slot, state), SLOT_LIVE);
    }

    /// Stops using an entry's slot.
    pub fn close_slot(&self, at: u32) {
        self.slots
            .store(at as usize, offset_of!(Slot, state), SLOT_FREE);
    }

    /// Changes a slot's state if it is still `from`; returns whether it was.
    pub fn change_state(&self, at: u32, from: u32, to: u32) -> bool {
        let word = self.slots.word(at as usize, offset_of!(Slot, state));
        word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Asks the program to move a choice to a core once it has drained, or cancels that ([`NONE`]).
    pub fn want(&self, at: u32, core: u32) {
        self.slots
            .store(at as usize, offset_of!(Slot, wanted), core);
    }

    /// Removes a flow from the map, so that its next packet makes a new choice.
    pub fn unlink_flow(&self, entry: u64, flow: u64) {
        self.flows.remove(&FlowKey { entry, flow });
    }

    /// Gives a flow its own choice in a vacant slot. Returns false if the map is full.
    pub fn link_flow(&self, slot: u32, entry: u64, flow: u64) -> bool {
        self.flows.set(&FlowKey { entry, flow }, &slot).is_ok()
    }

    /// Frees a flow's slot.
    pub fn vacate_slot(&self, at: u32) {
        self.close_slot(at);
        self.clear_tickets(at);
        // There is room, since the slot was taken from there.
        let _ = self.vacant.push(&at);
        let vacant = self.room.word(0, offset_of!(Room, vacant));
        vacant.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a flow of the entry in this slot no longer has its own slot.
    pub fn flow_gone(&self, of_entry: u32) {
        let flows = self.slots.word(of_entry as usize, offset_of!(Slot, flows));
        flows.fetch_sub(1, Ordering::Relaxed);
    }

    fn clear_tickets(&self, slot: u32) {
        for cpu in 0..self.limits.cpus {
            let at = slot * self.limits.cpus + cpu;
            self.tickets.write(at as usize, zeroed());
        }
    }

    /// Returns the program's counters, by name.
    ///
    /// # Errors
    ///
    /// Errors of the kernel.
    pub fn counters(&self) -> Result<Vec<(&'static str, u64)>, BpfError> {
        let cpus = self.limits.cpus as usize;
        let sums = sums(&self.object, "counters", COUNTERS.len(), cpus)?;
        Ok(COUNTERS.iter().map(|(name, _)| *name).zip(sums).collect())
    }

    /// Runs the XDP program on a frame, without a device.
    ///
    /// # Errors
    ///
    /// Errors of the kernel.
    pub fn test(&self, frame: &[u8], repeat: u32) -> Result<TestRun, BpfError> {
        test_run(self.object.program_fd("steer_receive")?, frame, repeat)
    }
}

fn full(map: &str) -> BpfError {
    BpfError {
        what: format!("map {map}"),
        error: std::io::ErrorKind::StorageFull.into(),
    }
}

fn entry_key((mask, key): (u32, [u8; crate::layout::KEY_BYTES])) -> EntryKey {
    EntryKey { mask, zero: 0, key }
}

/// Converts a ranking of `steer` to the program's form. `cpus` are the processors of the policy's
/// cores, in ascending order, and `placed` is what the program had placed when the core table was
/// read.
pub fn rankings(
    from: &steer::ranking::Rankings,
    cores: &steer::cores::CoreTable,
    cpus: &[u32],
    placed: &[Placement],
) -> Rankings {
    let cpu = |core: steer::cores::CoreId| cpus.get(core.index()).copied().unwrap_or(NONE);
    let mut to: Rankings = zeroed();
    to.usable_until_ns = from.usable_until_ns;
    to.high = from.high.0;
    to.held_limit = match from.held_cores {
        u16::MAX => u32::MAX,
        limit => u32::from(limit),
    };
    to.all_high = u32::from(from.all_high);
    for (cpu, placed) in placed.iter().enumerate().take(CPUS_MAX) {
        to.placed[cpu] = placed.load;
        to.priority[cpu] = placed.priority;
    }
    for core in cores.ids() {
        let bit = 1_u64.checked_shl(cpu(core)).unwrap_or(0);
        if cores.is_held(core) {
            to.held |= bit;
        }
        if cores.runs_vm(core) {
            to.vm_cores |= bit;
        }
    }
    let candidate = |from: &steer::ranking::Candidate| Candidate {
        load: from.load.0,
        core: cpu(from.core),
    };
    for (from, to, count) in [
        (&from.normal, &mut to.normal, &mut to.normal_count),
        (
            &from.displacing,
            &mut to.displacing,
            &mut to.displacing_count,
        ),
    ] {
        for (from, to) in from.iter().zip(to) {
            *to = candidate(from);
            *count += 1;
        }
    }
    for ((vm, from), own) in from.own.iter().zip(&mut to.own) {
        *own = Own {
            vm: u32::from(vm.0),
            load: from.load.0,
            core: cpu(from.core),
        };
        to.own_count += 1;
    }
    to
}
