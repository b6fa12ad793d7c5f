//! The switch's main loop, from the connection to the database to the daemon's end.

use crate::Shell;
use crate::clock;
use crate::switch::Switch;
use crate::switch::database::Database;
use crate::turns;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

/// Interval at which rules time out, addresses age and devices are checked.
const HOUSEKEEPING: Duration = Duration::from_millis(1000);
/// Interval at which tables are checked while their rules need another classifier.
const SHAPING: Duration = Duration::from_millis(100);
/// Packet-ins fetched at a time, so that a flood of them leaves time for controllers' messages.
const PACKET_INS: usize = 256;
/// Learn requests carried out at a time.
const REQUESTS: usize = 256;
/// How often requests are looked for while they keep coming from busy workers.
const LOOK: Duration = Duration::from_millis(1);
/// Looks in vain after which they do not keep coming any more.
const LOOKS: usize = 16;

/// A task that is aborted when its owner drops it.
struct Task(JoinHandle<anyhow::Result<()>>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Free memory kept at the end of the heap, in bytes.
const SPARE: usize = 32 << 20;
/// The same with `--mlockall`, and the size of the slices in which it is populated, so that no
/// other task waits long.
const SPARE_LOCKED: usize = 1 << 20;
const SPARE_SLICE: usize = 256 << 10;
/// Interval at which the heap is checked for growth.
const SPARE_EVERY: Duration = Duration::from_millis(1000);

/// Makes the heap keep some free memory, because rules come and go in large numbers all the time:
/// giving memory back interrupts every processor with a worker to flush its TLB, and getting it
/// again takes a page fault for each page. Returns the present end of the heap. With `locked` all
/// memory is populated at once, in the heaps of other threads, too, so less is kept.
pub(crate) fn keep_free_memory(locked: bool) -> usize {
    let spare = if locked { SPARE_LOCKED } else { SPARE };
    // SAFETY: these parameters are there in glibc and take any number; the last call only asks.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 20);
        libc::mallopt(libc::M_TOP_PAD, spare as libc::c_int);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 4 << 20);
        libc::sbrk(0) as usize
    }
}

/// Populates the end of the heap from `begin` on, so that using it takes no page faults: these cost
/// a tenth of the time of a long bundle. Asks for huge pages, where the system gives them on
/// request, because workers look packets up in thousands of small pages, more than a TLB holds.
async fn fill_free_memory(begin: usize) {
    let mut filled = begin.next_multiple_of(SPARE_SLICE);
    let mut asked = filled;
    loop {
        // SAFETY: this only asks where the heap ends.
        let end = unsafe { libc::sbrk(0) } as usize & !(SPARE_SLICE - 1);
        if asked < end {
            // SAFETY: this does not change the contents of these pages, which are the process's
            // own; if it fails, they stay small pages.
            unsafe { libc::madvise(asked as *mut libc::c_void, end - asked, libc::MADV_HUGEPAGE) };
        }
        asked = end;
        let from = filled.clamp(end.saturating_sub(SPARE), end);
        filled = (from + SPARE_SLICE).min(end);
        if filled == from {
            tokio::time::sleep(SPARE_EVERY).await;
            continue;
        }
        // SAFETY: this populates the process's own pages and does not change their contents. It
        // fails where no memory is left, and before Linux 5.14, which lacks this advice.
        unsafe {
            libc::madvise(
                from as *mut libc::c_void,
                filled - from,
                libc::MADV_POPULATE_WRITE,
            )
        };
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Runs the switch until it is asked to end. An error ends the daemon with status 1.
pub async fn run(shell: Rc<Shell>) -> anyhow::Result<()> {
    let locked = shell.options.mlockall;
    let heap_end = keep_free_memory(locked);
    let switch = Switch::new(Rc::clone(&shell));
    clock::attach(&switch.clock);
    crate::commands::register(&switch);
    crate::commands::vector::tell();
    let (database, events) = Database::connect(&switch, &shell.options.database)?;
    let mut follow = Task(turns::spawn(
        "the database",
        Rc::clone(&database).follow(events),
    ));
    let ready = Rc::clone(&shell);
    let writer = Rc::clone(&database);
    let mut write = Task(turns::spawn("writing to the database", async move {
        writer.write(move || ready.ready()).await;
        anyhow::bail!("nothing is written to the database any more")
    }));
    let mut packets = Task(turns::spawn(
        "packet-ins",
        deliver_packet_ins(Rc::clone(&switch)),
    ));
    let mut metrics = Task(turns::spawn(
        "metrics",
        crate::metrics::serve(Rc::clone(&switch)),
    ));
    let mut predictions = Task(turns::spawn(
        "predictions",
        crate::switch::predict::keep(Rc::clone(&switch)),
    ));
    let mut shape = Task(turns::spawn("tables", shape_tables(Rc::clone(&switch))));
    let _fill = Task(turns::spawn("free memory", async move {
        if !locked {
            fill_free_memory(heap_end).await;
        }
        Ok(())
    }));
    let mut links = Task(turns::spawn("links", Rc::clone(&database).follow_links()));
    let mut routes = Task(turns::spawn("routes", Rc::clone(&switch).follow_routes()));
    let mut neighbours = Task(turns::spawn(
        "neighbours",
        Rc::clone(&switch).tell_neighbours(),
    ));
    let mut monitors = Task(turns::spawn(
        "monitors",
        Rc::clone(&switch).follow_monitors(Rc::clone(&database)),
    ));
    let mut vms = Task(turns::spawn(
        "virtual machines",
        Rc::clone(&switch).follow_vms(),
    ));
    let mut steering = Task(turns::spawn("steering", steer(Rc::clone(&switch))));
    let _leftovers = Task(turns::spawn(
        "leftovers",
        Rc::clone(&database).remove_leftovers(),
    ));
    let mut cleanup = false;
    let mut watch = Task(turns::spawn(
        "watchdog",
        crate::service::watch(Rc::clone(&switch)),
    ));
    let mut devices = Task(turns::spawn("devices", keep_devices(Rc::clone(&database))));
    let mut keep = Task(turns::spawn(
        "housekeeping",
        keep_house(Rc::clone(&switch), Rc::clone(&database)),
    ));
    // The end of any of these tasks ends the daemon; otherwise nobody would notice that it is
    // missing.
    let result = tokio::select! {
        request = shell.exit_requested() => {
            cleanup = request.cleanup;
            Ok(())
        }
        ended = &mut neighbours.0 => ended.unwrap_or_else(|error| Err(error.into())),
        ended = &mut monitors.0 => ended.unwrap_or_else(|error| Err(error.into())),
        ended = &mut routes.0 => ended.unwrap_or_else(|error| Err(error.into())),
        ended = &mut links.0 => ended.unwrap_or_else(|error| Err(error.into())),
        ended = &mut follow.0 => ended.unwrap_or_else(|error| Err(error.into())),
        ended = &mut keep.0 => ended.unwrap_or_else(|error| Err(error.into())),
        ended = &mut devices.0 => ended.unwrap_or_else(|error| Err(error.into())),
        ended = &mut packets.0 => ended.unwrap_or_else(|error| Err(error.into())),
        ended = &mut watch.0 => ended.unwrap_or_else(|error| Err(error.into())),
        ended = &mut write.0 => ended.unwrap_or_else(|error| Err(error.into())),
        ended = &mut metrics.0 => ended.unwrap_or_else(|error| Err(error.into())),
        ended = &mut predictions.0 => ended.unwrap_or_else(|error| Err(error.into())),
        ended = &mut vms.0 => ended.unwrap_or_else(|error| Err(error.into())),
        ended = &mut steering.0 => ended.unwrap_or_else(|error| Err(error.into())),
        ended = &mut shape.0 => ended.unwrap_or_else(|error| Err(error.into())),
    };
    drop((
        follow, keep, devices, packets, links, routes, neighbours, monitors, vms, steering,
    ));
    // Their futures end with what they wait for, such as a device that has just been opened.
    for _ in 0..4 {
        tokio::task::yield_now().await;
    }
    switch.shut_down(cleanup);
    result
}

/// Builds classifiers for tables whose rules have changed, and frees what deleted rules have left,
/// in slices until all is done. Uses real time, whatever clock the rules' timeouts use; sleeps
/// while nothing changes.
async fn shape_tables(switch: Rc<Switch>) -> anyhow::Result<()> {
    loop {
        switch.rules_changed.notified().await;
        loop {
            tokio::time::sleep(SHAPING).await;
            let shaping = switch.shape_tables();
            while switch.reclaim() {
                tokio::task::yield_now().await;
            }
            if !shaping && !switch.has_garbage() {
                break;
            }
        }
    }
}

/// Interval at which steering is checked while there is nothing to steer.
const STEERING_IDLE: Duration = Duration::from_millis(500);

/// Lets workers hand flows over to each other where that is configured.
async fn steer(switch: Rc<Switch>) -> anyhow::Result<()> {
    let mut told = None;
    loop {
        let outcome = switch.with_datapath(|datapath| {
            let period = datapath.steering_period();
            datapath
                .steer()
                .map(|steers| if steers { period } else { STEERING_IDLE })
        });
        let wait = match outcome {
            Ok(Ok(wait)) => {
                told = None;
                wait
            }
            Ok(Err(error)) => {
                if told.as_ref() != Some(&error) {
                    tracing::warn!(target: "dpif_netdev", "steering: {error}");
                    told = Some(error);
                }
                STEERING_IDLE
            }
            Err(_) => STEERING_IDLE,
        };
        tokio::time::sleep(wait).await;
    }
}

/// Logs long turns: for each thread the longest one since the last call, so at most one line per
/// second and thread.
fn tell_long_turns(switch: &Switch) {
    let (workers, ms) = (datapath::turns::LONG, |time: Duration| {
        time.as_secs_f64() * 1e3
    });
    let told = switch.with_datapath(|datapath| datapath.take_turns(true));
    for (name, alone, turns) in told.unwrap_or_default() {
        let text = format!(
            "{name}: {} turns of {} ms or more; the longest took {:.1} ms ({:.1} of them without a processor), mostly {}",
            turns.long,
            workers.as_millis(),
            ms(turns.longest),
            ms(turns.away),
            turns.doing
        );
        // A worker that floats may have lost its processor to other processes.
        if alone || turns.long_work > 0 {
            tracing::warn!(target: "dpif_netdev", "{text}");
        } else {
            tracing::debug!(target: "dpif_netdev", "{text}");
        }
    }
    if let Some(turns) = turns::take_long() {
        tracing::warn!(target: "timeval", "control: {} turns of {} ms or more; the longest took {:.1} ms ({:.1} of them without a processor), mostly {}",
            turns.long, turns::LONG.as_millis(), ms(turns.longest), ms(turns.away), turns.doing);
    }
}

/// Looks at devices about once a second. Apart from the housekeeping: where the kernel takes long
/// to open or close one, rules time out all the same.
async fn keep_devices(database: Rc<Database>) -> anyhow::Result<()> {
    loop {
        clock::sleep(HOUSEKEEPING).await;
        database.watch_devices().await?;
    }
}

/// Does the housekeeping, about once a second, and writes statistics when they are due.
async fn keep_house(switch: Rc<Switch>, database: Rc<Database>) -> anyhow::Result<()> {
    let mut since_statistics = Duration::ZERO;
    loop {
        clock::sleep(HOUSEKEEPING).await;
        turns::step(|| "rules and addresses".into(), || switch.housekeep());
        switch.expire().await;
        switch.expire_connections().await;
        switch.collect().await;
        tell_long_turns(&switch);
        since_statistics += HOUSEKEEPING;
        if since_statistics >= database.statistics_interval() {
            since_statistics = Duration::ZERO;
            database.want_statistics();
        }
        // The status of tunnels says by which device they leave.
        if switch.take_changed_ways() {
            database.write_soon();
        }
    }
}

/// Fetches packet-ins from the workers and passes them to controllers; carries out learn requests.
async fn deliver_packet_ins(switch: Rc<Switch>) -> anyhow::Result<()> {
    let descriptor = loop {
        match switch.with_datapath(|datapath| datapath.packet_in_fd()) {
            Ok(descriptor) => break descriptor,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    // SAFETY: the datapath's descriptor is open, since the datapath exists; a copy of it stays
    // valid whatever becomes of the datapath.
    let descriptor = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()?;
    // SAFETY: the descriptor belongs to `ready` and is closed with it, not before.
    let ready = unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE)? };
    // How many looks for requests are to follow, one each millisecond, without a wakeup.
    let mut looks = 0;
    loop {
        let wakeup = ready.readable();
        if looks == 0 {
            wakeup.await?.clear_ready();
        } else if let Ok(guard) = tokio::time::timeout(LOOK, wakeup).await {
            guard?.clear_ready();
        }
        let Ok((packets, keep_coming)) = switch.with_datapath(|datapath| {
            let packets = datapath.take_packet_ins(PACKET_INS);
            (packets, datapath.requests_keep_coming())
        }) else {
            return Ok(());
        };
        // Learn requests first, because packets wait for them.
        let some = switch.grant_requests(REQUESTS);
        let polled = looks > 0;
        looks = match (keep_coming, some) {
            (true, _) => LOOKS,
            (false, true) if polled => LOOKS,
            _ => usize::saturating_sub(looks, 1),
        };
        if polled != (looks > 0) {
            let _ = switch.with_datapath(|datapath| datapath.poll_requests(looks > 0));
        }
        for packet in packets {
            switch.deliver(packet);
        }
        tokio::task::yield_now().await;
    }
}
