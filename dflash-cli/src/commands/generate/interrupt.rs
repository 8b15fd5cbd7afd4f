//! Ctrl-C: asks a running generation to end, and ends everything else at once.

use std::sync::atomic::{AtomicBool, Ordering};

/// What shells report for a program that Ctrl-C has ended.
const INTERRUPTED: i32 = 130;

static ACCEPTED: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicBool = AtomicBool::new(false);

/// Takes over Ctrl-C. Until [`accept`], and when it is pressed twice, it ends the program.
pub(super) fn watch() {
    let handler = || {
        if !ACCEPTED.load(Ordering::SeqCst) || ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(INTERRUPTED);
        }
    };
    // Where the system refuses a handler, Ctrl-C ends the program at once, as it does by itself.
    let _ = ctrlc::set_handler(handler);
}

/// From here on Ctrl-C is a wish that is looked at between two steps.
pub(super) fn accept() {
    ACCEPTED.store(true, Ordering::SeqCst);
}

/// Whether Ctrl-C was pressed.
pub(super) fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}
