//! The table of handles: the program's objects and their reference counts.
//!
//! A handle is the address of a few bytes that start with the dispatch table, which `cl_khr_icd` requires. This driver never dereferences it. Every
//! call looks up its handles, so a released or invalid handle gives an error code. An ICD loader dereferences a handle before it calls this driver.
//! So the bytes of a released handle stay readable until many others have been released. An object and its handle live as long as the program has a
//! reference or another object needs it.

use crate::cl;
use crate::cl::{Code, Result};
use crate::raw::Handle;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

/// Address of the dispatch table that every handle points to.
static DISPATCH: AtomicUsize = AtomicUsize::new(0);

/// Sets the address of the dispatch table, before the first object is created.
pub fn set_dispatch(address: usize) {
    DISPATCH.store(address, Ordering::Release);
}

/// The data that a handle points to.
#[repr(C)]
struct Face {
    dispatch: usize,
}

/// The handle of an object. Dropping it removes the handle from the table.
#[derive(Debug)]
pub struct Tag(Option<Box<Face>>);

/// Number of released handles whose bytes stay in place, so that a loader that dereferences one finds the dispatch table.
const MAX_RELEASED: usize = 1 << 16;

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
    /// Returns the handle.
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
        if released.len() > MAX_RELEASED {
            released.pop_front();
        }
    }
}

/// An object with a handle.
pub trait Object: Any + Send + Sync {
    /// The error code for a handle of a different kind.
    const INVALID: Code;
    /// Its name in the list of leaked objects.
    const NAME: &'static str;
    /// Returns its handle tag.
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

/// Returns the object of a handle.
///
/// # Errors
/// [`Object::INVALID`].
pub fn get<T: Object>(handle: Handle) -> Result<Arc<T>> {
    let object = read().get(&handle).and_then(|entry| entry.object.upgrade());
    object.and_then(|object| object.downcast::<T>().ok()).ok_or(T::INVALID)
}

/// Returns the program's reference count of an object.
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
/// [`Object::INVALID`], also if the program does not have a reference to it.
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

/// Returns the objects of a list of handles.
///
/// # Errors
/// The error of the first invalid handle.
pub fn all<T: Object>(handles: &[Handle]) -> Result<Vec<Arc<T>>> {
    handles.iter().map(|handle| get(*handle)).collect()
}

/// Returns the number of objects that the program has not released, by kind.
pub fn held() -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for entry in read().values().filter(|e| e.held > 0) {
        *counts.entry(entry.name).or_default() += 1;
    }
    counts
}

/// Checks that a list is null if and only if its length is 0.
///
/// # Errors
/// `CL_INVALID_EVENT_WAIT_LIST` if length and pointer contradict each other.
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

    /// A loader reads the dispatch table from a handle's bytes before it calls the driver. After a release, the allocator used to overwrite these
    /// bytes, so that a second release crashed in the loader.
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
        // Done in this test because the handles of many other objects remove this one.
        for _ in 0..MAX_RELEASED + 10 {
            drop(Tag::default());
        }
        assert!(RELEASED.lock().unwrap_or_else(PoisonError::into_inner).len() <= MAX_RELEASED);
    }
}
