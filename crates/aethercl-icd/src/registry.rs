//! The table of handles: which objects the program has, and their reference counts.
//!
//! A handle is the address of a few bytes that begin with the dispatch table, as `cl_khr_icd` asks. It is never followed here: every call
//! looks its handles up, so one that was released, or never was one, is an error code. An ICD loader does follow a handle, before this driver is
//! called: the bytes of a released handle stay readable until many others have been released. An object lives while the program holds it or
//! another object needs it, and its handle is valid as long as that.

use crate::cl;
use crate::cl::{Code, Result};
use crate::raw::Handle;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

/// Address of the dispatch table that every handle points to.
static DISPATCH: AtomicUsize = AtomicUsize::new(0);

/// Says where the dispatch table is, before the first object is made.
pub fn set_dispatch(address: usize) {
    DISPATCH.store(address, Ordering::Release);
}

/// What a handle points to.
#[repr(C)]
struct Face {
    dispatch: usize,
}

/// The handle of an object. Dropping it removes the handle from the table.
#[derive(Debug)]
pub struct Tag(Option<Box<Face>>);

/// Released handles whose bytes stay where they are, so that a loader that follows one finds the dispatch table.
const MOST_RELEASED: usize = 1 << 16;

static RELEASED: Mutex<VecDeque<Box<Face>>> = Mutex::new(VecDeque::new());

impl std::fmt::Debug for Face {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.dispatch)
    }
}

impl Default for Tag {
    fn default() -> Self {
        Self(Some(Box::new(Face { dispatch: DISPATCH.load(Ordering::Acquire) })))
    }
}

impl Tag {
    /// The handle.
    pub fn handle(&self) -> Handle {
        self.0.as_ref().map_or(Handle::NULL, |face| Handle((&raw const **face).expose_provenance()))
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        let gone = write().remove(&self.handle());
        // Dropping the entry may drop another object, which locks the table again.
        drop(gone);
        let mut released = RELEASED.lock().unwrap_or_else(PoisonError::into_inner);
        released.extend(self.0.take());
        if released.len() > MOST_RELEASED {
            released.pop_front();
        }
    }
}

/// An object with a handle.
pub trait Object: Any + Send + Sync {
    /// The error code for a handle of a different kind.
    const INVALID: Code;
    /// Its name in the list of what was not released.
    const NAME: &'static str;
    /// Its handle.
    fn tag(&self) -> &Tag;
}

type Shared = Arc<dyn Any + Send + Sync>;

struct Entry {
    object: Weak<dyn Any + Send + Sync>,
    name: &'static str,
    /// Reference count of the program; 0 if only other objects keep it alive.
    held: u32,
    keep: Option<Shared>,
}

static TABLE: RwLock<BTreeMap<Handle, Entry>> = RwLock::new(BTreeMap::new());

fn read() -> RwLockReadGuard<'static, BTreeMap<Handle, Entry>> {
    TABLE.read().unwrap_or_else(PoisonError::into_inner)
}
fn write() -> RwLockWriteGuard<'static, BTreeMap<Handle, Entry>> {
    TABLE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Adds an object to the table with a reference count of 1, and returns its handle.
pub fn publish<T: Object>(object: &Arc<T>) -> Handle {
    let handle = object.tag().handle();
    let keep: Shared = Arc::clone(object) as Shared;
    let entry = Entry { object: Arc::downgrade(&keep), name: T::NAME, held: 1, keep: Some(keep) };
    write().insert(handle, entry);
    handle
}

/// The object of a handle.
///
/// # Errors
/// [`Object::INVALID`].
pub fn get<T: Object>(handle: Handle) -> Result<Arc<T>> {
    let object = read().get(&handle).and_then(|entry| entry.object.upgrade());
    object.and_then(|object| object.downcast::<T>().ok()).ok_or(T::INVALID)
}

/// The program's reference count of an object.
pub fn references<T: Object>(object: &T) -> u32 {
    read().get(&object.tag().handle()).map_or(0, |entry| entry.held)
}

/// Increments the reference count (`clRetain…`).
///
/// # Errors
/// [`Object::INVALID`].
pub fn retain<T: Object>(handle: Handle) -> Result<()> {
    let object = get::<T>(handle)?;
    let mut table = write();
    let entry = table.get_mut(&handle).ok_or(T::INVALID)?;
    entry.held += 1;
    entry.keep.get_or_insert(object as Shared);
    Ok(())
}

/// Decrements the reference count (`clRelease…`).
///
/// # Errors
/// [`Object::INVALID`], also where the program does not hold it.
pub fn release<T: Object>(handle: Handle) -> Result<()> {
    let object = get::<T>(handle)?;
    let mut table = write();
    let entry = table.get_mut(&handle).filter(|e| e.held > 0).ok_or(T::INVALID)?;
    entry.held -= 1;
    let kept = if entry.held == 0 { entry.keep.take() } else { None };
    drop(table);
    drop((kept, object));
    Ok(())
}

/// Handles of a list of objects.
///
/// # Errors
/// Of the first that is none.
pub fn all<T: Object>(handles: &[Handle]) -> Result<Vec<Arc<T>>> {
    handles.iter().map(|handle| get(*handle)).collect()
}

/// Objects that the program has not released, counted by kind.
pub fn held() -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for entry in read().values().filter(|e| e.held > 0) {
        *counts.entry(entry.name).or_default() += 1;
    }
    counts
}

/// Checks that a list is null exactly if its length is 0.
///
/// # Errors
/// `CL_INVALID_EVENT_WAIT_LIST` where they do not.
pub fn wait_list_length(count: u32, is_null: bool) -> Result<()> {
    if (count == 0) == is_null { Ok(()) } else { Err(cl::INVALID_EVENT_WAIT_LIST) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Thing(Tag);

    impl Object for Thing {
        const INVALID: Code = cl::INVALID_EVENT;
        const NAME: &'static str = "things";
        fn tag(&self) -> &Tag {
            &self.0
        }
    }

    /// A loader reads the dispatch table from the bytes that a handle names before it calls the driver. After a release they used to be
    /// whatever the allocator left there, so that a second release crashed in the loader.
    #[test]
    fn a_second_release_finds_the_dispatch_table_and_is_an_error() {
        let thing = Arc::new(Thing::default());
        let handle = publish(&thing);
        drop(thing);
        assert_eq!(release::<Thing>(handle), Ok(()));
        let dispatch = DISPATCH.load(Ordering::Acquire);
        let kept = |face: &Face| (&raw const *face).addr() == handle.0 && face.dispatch == dispatch;
        assert!(RELEASED.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|face| kept(face)));
        assert_eq!(release::<Thing>(handle), Err(cl::INVALID_EVENT));
        // In this test too, because the handles of many others push this one out.
        for _ in 0..MOST_RELEASED + 10 {
            drop(Tag::default());
        }
        assert!(RELEASED.lock().unwrap_or_else(PoisonError::into_inner).len() <= MOST_RELEASED);
    }
}
