//! A small persistent thread pool for products that take microseconds.
//!
//! One job runs at a time. Its tasks are claimed from a counter by the caller and by whichever
//! workers are awake, so a worker that is asleep or was pre-empted before it claimed anything delays
//! nobody. Which thread runs a task never changes a result: tasks write disjoint outputs and every
//! output element is computed by one task. Workers spin for a moment after a job, because during
//! decoding the next one follows within microseconds, and then park; an idle engine burns nothing.
//!
//! A work-stealing pool (rayon) was rejected: its wake-up costs as much as one of these products.

use std::any::Any;
use std::cell::UnsafeCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long an idle worker looks for the next job before it parks.
const SPIN: Duration = Duration::from_micros(60);
/// Looks between two readings of the clock, and before a waiting caller gives up its time slice.
const LOOKS: u32 = 64;

/// Worker threads plus the calling thread.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Set while a job runs; a second or nested job then runs on its caller alone.
    busy: AtomicBool,
}

type Task<'a> = dyn Fn(usize) + Sync + 'a;

struct Shared {
    /// A job is open for claiming. Closed by the caller before it waits for `inside`.
    open: AtomicBool,
    /// Workers that may be looking at the job.
    inside: AtomicUsize,
    /// The next task to claim.
    next: AtomicUsize,
    /// The open job's number of tasks, for the question whether to look closer.
    count: AtomicUsize,
    /// The job; written by the caller while no job is open and nobody is inside.
    job: UnsafeCell<Job>,
    stop: AtomicBool,
    /// Workers that are parked or about to.
    parked: AtomicUsize,
    sleepers: Mutex<Vec<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy)]
struct Job {
    task: Option<*const Task<'static>>,
    count: usize,
}

// SAFETY: `job` is written only by the thread that holds `busy`, while `open` is false and after it
// saw `inside` at zero; it is read only by threads that raised `inside` and then saw `open` true.
// The sequentially consistent order of those four accesses makes the two exclude each other. The
// pointer in it refers to a `Sync` closure that outlives the open phase.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only dereferenced under that protocol.
unsafe impl Send for Shared {}

impl Pool {
    /// A pool of `threads` threads including the caller; 0 counts as 1.
    ///
    /// A worker that the system refuses to start is left out: [`Pool::threads`] tells.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            open: AtomicBool::new(false),
            inside: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            count: AtomicUsize::new(0),
            job: UnsafeCell::new(Job {
                task: None,
                count: 0,
            }),
            stop: AtomicBool::new(false),
            parked: AtomicUsize::new(0),
            sleepers: Mutex::new(Vec::new()),
            panic: Mutex::new(None),
        });
        let mut workers = Vec::new();
        for i in 1..threads {
            let shared = Arc::clone(&shared);
            match thread::Builder::new()
                .name(format!("dflash-cpu-{i}"))
                .spawn(move || shared.work())
            {
                Ok(worker) => workers.push(worker),
                Err(_) => break,
            }
        }
        Self {
            shared,
            workers,
            busy: AtomicBool::new(false),
        }
    }

    /// Threads that can work on a job, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(i)` once for every `i < count`, on several threads, and returns when all are done.
    ///
    /// Called from inside a task or while another thread's job runs, it does the work on the calling
    /// thread. A panic of a task is passed on after the other tasks have ended.
    pub fn run(&self, count: usize, task: &Task<'_>) {
        if count <= 1 || self.workers.is_empty() || self.busy.swap(true, Ordering::Acquire) {
            for i in 0..count {
                task(i);
            }
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is dereferenced between the opening and the
        // end of the waiting loop below, before which this function neither returns nor unwinds.
        let task: *const Task<'static> = unsafe { std::mem::transmute(std::ptr::from_ref(task)) };
        // SAFETY: this thread holds `busy`, no job is open, and the previous job's caller saw nobody
        // inside after closing it, so no worker reads the job.
        unsafe {
            *shared.job.get() = Job {
                task: Some(task),
                count,
            }
        };
        shared.next.store(0, Ordering::Relaxed);
        shared.count.store(count, Ordering::Relaxed);
        shared.open.store(true, Ordering::SeqCst);
        if shared.parked.load(Ordering::SeqCst) > 0 {
            shared.wake();
        }
        // SAFETY: the closure outlives this call, see above.
        shared.claim(unsafe { &*task }, count);
        shared.open.store(false, Ordering::SeqCst);
        let mut looks = 0;
        while shared.inside.load(Ordering::SeqCst) != 0 {
            looks += 1;
            if looks % LOOKS == 0 {
                thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        let panic = shared
            .panic
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        self.busy.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Shared {
    /// Claims and runs tasks until none is left; keeps the first panic.
    fn claim(&self, task: &Task<'_>, count: usize) {
        let work = AssertUnwindSafe(|| {
            loop {
                let i = self.next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    break;
                }
                task(i);
            }
        });
        if let Err(panic) = catch_unwind(work) {
            // Nobody needs to start what is left of a failed job.
            self.next.store(count, Ordering::Relaxed);
            self.panic
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(panic);
        }
    }

    fn work(&self) {
        loop {
            if !self.wait() {
                return;
            }
            self.inside.fetch_add(1, Ordering::SeqCst);
            if self.open.load(Ordering::SeqCst) {
                // SAFETY: this thread is inside and saw an open job, so the caller will not write the
                // job or return before `inside` falls again.
                let job = unsafe { *self.job.get() };
                if let Some(task) = job.task {
                    // SAFETY: the closure lives until the caller has seen this thread leave.
                    self.claim(unsafe { &*task }, job.count);
                }
            }
            self.inside.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// True if tasks of an open job may be unclaimed.
    fn wanted(&self) -> bool {
        self.open.load(Ordering::SeqCst)
            && self.next.load(Ordering::Relaxed) < self.count.load(Ordering::Relaxed)
    }

    /// Waits for a job, spinning first; false when the pool ends.
    fn wait(&self) -> bool {
        let mut since = Instant::now();
        let mut looks = 0;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return false;
            }
            if self.wanted() {
                return true;
            }
            looks += 1;
            if looks % LOOKS != 0 {
                std::hint::spin_loop();
                continue;
            }
            if since.elapsed() < SPIN {
                continue;
            }
            self.sleepers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(thread::current());
            self.parked.fetch_add(1, Ordering::SeqCst);
            if !self.wanted() && !self.stop.load(Ordering::SeqCst) {
                thread::park();
            }
            self.parked.fetch_sub(1, Ordering::SeqCst);
            let me = thread::current().id();
            self.sleepers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .retain(|t| t.id() != me);
            since = Instant::now();
        }
    }

    fn wake(&self) {
        for sleeper in self
            .sleepers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            sleeper.unpark();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its tasks, so there is nothing left to report.
            let _ = worker.join();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in 0..5 {
            let pool = Pool::new(threads);
            for count in [0, 1, 2, 7, 100] {
                for _ in 0..200 {
                    let seen: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                    pool.run(count, &|i| {
                        seen[i].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(
                        seen.iter().all(|s| s.load(Ordering::Relaxed) == 1),
                        "{threads} threads, {count} tasks"
                    );
                }
            }
        }
    }

    #[test]
    fn a_parked_pool_wakes_up() {
        let pool = Pool::new(3);
        for _ in 0..20 {
            thread::sleep(SPIN * 5);
            let sum = AtomicUsize::new(0);
            pool.run(50, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 49 * 50 / 2);
        }
    }

    #[test]
    fn an_idle_pool_parks() {
        let pool = Pool::new(3);
        pool.run(8, &|_| {});
        let since = Instant::now();
        while pool.shared.parked.load(Ordering::SeqCst) < 2 {
            assert!(
                since.elapsed() < Duration::from_secs(20),
                "workers still spin"
            );
            thread::sleep(SPIN);
        }
    }

    #[test]
    fn nested_and_concurrent_jobs_finish() {
        let pool = Pool::new(3);
        let sum = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        pool.run(4, &|_| {
                            pool.run(4, &|_| {
                                sum.fetch_add(1, Ordering::Relaxed);
                            })
                        });
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 3 * 50 * 16);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_leaves_the_pool_usable() {
        let pool = Pool::new(3);
        for _ in 0..20 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(16, &|i| assert!(i != 5, "task five"))
            }));
            assert!(result.is_err());
            let sum = AtomicUsize::new(0);
            pool.run(16, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 120);
        }
    }
}
