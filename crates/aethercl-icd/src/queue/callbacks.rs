//! The thread that runs the program's callbacks.

use crate::cl;
use crate::cl::Result;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};

type Call = Box<dyn FnOnce() + Send>;

/// Sender for callbacks, and the process of the receiving thread.
static CALLS: Mutex<Option<(u32, Sender<Call>)>> = Mutex::new(None);

/// Starts the thread if it is not running.
///
/// # Errors
/// `CL_OUT_OF_RESOURCES` if the system cannot create a thread; a later call tries again.
pub fn start() -> Result<()> {
    let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
    let process = std::process::id();
    if calls.as_ref().is_none_or(|(owner, _)| *owner != process) {
        let (sender, receiver) = channel::<Call>();
        let thread = std::thread::Builder::new().name("aethercl-callbacks".into());
        thread
            .spawn(move || receiver.into_iter().for_each(|call| call()))
            .map_err(|_| cl::OUT_OF_RESOURCES)?;
        *calls = Some((process, sender));
    }
    Ok(())
}

/// Queues a callback for the thread that [`start`] has started.
pub fn send(call: impl FnOnce() + Send + 'static) {
    if let Some((_, calls)) = &*CALLS.lock().unwrap_or_else(PoisonError::into_inner) {
        // The receiver lives for the whole process, so this cannot fail.
        let _ = calls.send(Box::new(call));
    }
}
